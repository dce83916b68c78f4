"""Trees of files in a store: format, snapshots, comparison, diff."""
