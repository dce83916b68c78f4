"""The agent loop: runs the tool calls of a model once each, and records model calls."""
