"""Tables and figures of papers: what a file says is run, kept, set beside the paper's numbers and checked."""
