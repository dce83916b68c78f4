"""Scans a directory: walk, stat pass, stat index."""
