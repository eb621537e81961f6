"""Which method fits the data."""
