"""Data sets by name: a module for each family, every one found when a name is looked up."""
