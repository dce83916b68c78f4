"""Rewinds the files and the conversation of a coding agent together."""
