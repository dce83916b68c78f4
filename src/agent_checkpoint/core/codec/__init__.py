"""Converts Python values to JSON and back. Owns the tags, the type registry and signed pickles."""
