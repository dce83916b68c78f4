"""Directory trees in a store: format, snapshots, comparison, diff."""
