"""Federated graph learning: organisations that may not pool their graphs train graph models together."""

__version__ = "0.1.0"
