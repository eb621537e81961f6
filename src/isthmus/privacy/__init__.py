"""Noise that protects what parties release, and the account of its privacy cost."""
