"""Converts objects to states, and states to JSON.

Owns capture, loading, the codec, diffs and migrations.
"""
