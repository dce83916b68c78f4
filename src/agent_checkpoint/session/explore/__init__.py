"""Trying several variants from one checkpoint: trials, workers, outcomes."""
