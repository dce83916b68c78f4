"""Stored states, read object by object within a byte budget."""
