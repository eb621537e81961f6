"""Party folders: the files that an organisation brings, read, checked and written."""
