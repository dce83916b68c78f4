"""Coding agents: hook, daemon, settings, transcript files, rewind."""
