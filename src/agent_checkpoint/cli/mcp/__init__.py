"""The MCP server: checkpoints of a directory as tools of an agent."""
