"""Backends that wrap another one: retry, object cache, encryption, counting, read-only."""
