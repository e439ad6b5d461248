"""Holding the rows of a server against the archive: checksums by table and key range, each side by code of its own."""
