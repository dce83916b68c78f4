"""Differences between two checkpoints: states and lines of text."""
