"""The path of the hook client before it moved to `agents.hook`. Owns the forwarding only."""
