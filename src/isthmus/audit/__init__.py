"""Attacks run against what the ledger says left."""
