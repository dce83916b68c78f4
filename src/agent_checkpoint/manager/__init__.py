"""The checkpoint operations that users call on a store: save, load, rollback, diff, fork, prune."""
