"""Noise that hides what it is added to, and the account of what it costs."""
