"""Sessions: an agent's state, files, tool calls and external side effects, saved together."""
