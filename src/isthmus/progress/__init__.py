"""Progress of a study: terminal, live page, trackers."""
