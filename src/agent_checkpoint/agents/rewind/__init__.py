"""Rewind: files and conversation of a coding agent, set back together."""
