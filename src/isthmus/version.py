"""The version of this package, for every module that records it."""

from importlib import metadata

VERSION = metadata.version("isthmus")
"""What `pyproject.toml` says, as installed."""

LAWS = 2
"""The number of the laws of draws, sums and products, which decide a run's figures. Raise it with every change after
which the same study with the same seed gives other figures; results of papers name the runs made before."""
