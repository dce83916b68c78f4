"""Objects as states and states as JSON. Owns capture, loading, the codec, diffs and migrations."""
