"""Maintenance of a store: gc, verify, retention, statistics, purge."""
