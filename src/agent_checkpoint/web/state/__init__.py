"""Stored states on the page, read object by object within bounds."""
