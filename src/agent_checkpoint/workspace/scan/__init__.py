"""Scanning a directory: the walk, the stat pass, the stat index, reading file contents."""
