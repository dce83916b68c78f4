"""The path of the hook client in version 0.1. Owns a stub that runs `agents.hook.client`."""
