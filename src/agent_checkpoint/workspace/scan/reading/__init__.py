"""Reads files for a scan: whole or in chunks, in this process and in reader processes."""
