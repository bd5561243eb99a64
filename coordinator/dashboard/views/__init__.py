"""Pages: each view reads one snapshot of the store and returns typed records of plain text."""
