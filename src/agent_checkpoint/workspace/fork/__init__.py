"""Forks of a workspace: overlay mounts, private mount namespaces, reflinks and copies."""
