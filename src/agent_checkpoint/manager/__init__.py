"""The checkpoint verbs that users call on a store: save, load, rollback, diff, fork, prune."""
