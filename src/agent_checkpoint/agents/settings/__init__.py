"""Settings files of coding agents, and installing the hook in them."""
