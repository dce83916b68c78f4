"""Keeps stores within a disk budget: automatic retention, garbage collection, their process."""
