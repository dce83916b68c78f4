"""Checkpoint records on a backend. Owns how a record becomes an entry; knows no Python state."""
