"""Objects and streams on a medium. Owns the backends; knows nothing of checkpoints."""
