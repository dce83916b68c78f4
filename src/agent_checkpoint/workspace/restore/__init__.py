"""Restoring files: plan, staging, journal, apply, crash recovery."""
