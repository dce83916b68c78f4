"""Rollback of a session: target, report, and the steps."""
