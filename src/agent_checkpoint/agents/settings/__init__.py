"""Installs the hook in the settings files of coding agents."""
