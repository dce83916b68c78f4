"""Backends that wrap another one: retry, object cache, counting, read-only."""
