"""Maintenance of a store: gc, verify, retention policies, prune, statistics, purge."""
