"""The worlds of the tests, as fixtures."""

from tests.cli.world import repo, request_id, session

__all__ = ["repo", "request_id", "session"]
