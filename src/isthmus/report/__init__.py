"""The report of a study: reads result files only."""
