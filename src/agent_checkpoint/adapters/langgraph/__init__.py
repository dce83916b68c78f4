"""LangGraph: checkpoints and memory of graphs in a store. Needs the extra `langgraph`."""

from agent_checkpoint.adapters import needs_extra

with needs_extra("langgraph"):
    from agent_checkpoint.adapters.langgraph.memory_store import Store
    from agent_checkpoint.adapters.langgraph.saver import CheckpointSaver

__all__ = ["CheckpointSaver", "Store"]
