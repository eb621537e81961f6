"""Sections of the report, a module each."""
