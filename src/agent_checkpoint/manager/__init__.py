"""The checkpoint verbs.

Owns what users call on a store; the state is core's, the bytes the store's.
"""
