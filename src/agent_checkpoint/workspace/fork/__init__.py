"""Forks of a workspace: overlay, namespace view, reflink and copy drivers."""
