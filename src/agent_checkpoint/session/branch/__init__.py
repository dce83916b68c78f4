"""Branches of a session: fork, adopt, merge."""
