"""LangGraph: checkpoints of graphs in a store of this library. Needs the extra `langgraph`."""

from agent_checkpoint.adapters.langgraph.saver import CheckpointSaver

__all__ = ["CheckpointSaver"]
