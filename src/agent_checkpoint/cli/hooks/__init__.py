"""Events of coding agents, made checkpoints. `client.py` is what such an agent starts."""
