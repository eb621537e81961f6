"""Federations: settle the set-up, start the processes, preview the ledger."""
