"""Backends that wrap another one: retry, cache, counting, read-only."""
