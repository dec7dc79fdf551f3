"""One file per layout read, one per layout written."""
