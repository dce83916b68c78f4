"""Restores files: plan, staging, journal, apply, crash recovery."""
