"""Data sets by name, a module for each family."""
