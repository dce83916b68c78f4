"""The web UI: shows the timeline of a store, with rollback, fork, export and approvals.

Needs the extra `web`.
"""
