"""The dossier of a run: a signed document on what left whom, under which protection, and what it does not protect."""
