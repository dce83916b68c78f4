"""Trying several ways from one moment: forks, strategies, and what came of them."""
