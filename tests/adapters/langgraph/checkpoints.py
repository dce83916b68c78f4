"""Makes checkpoints as LangGraph does, without a graph."""

from typing import Any

from langgraph.checkpoint.base.id import uuid6


def config(thread: str = "t", namespace: str = "", checkpoint_id: "str | None" = None) -> Any:
    inner = {"thread_id": thread, "checkpoint_ns": namespace}
    if checkpoint_id:
        inner["checkpoint_id"] = checkpoint_id
    return {"configurable": inner}


def checkpoint(values: "dict[str, Any]", version: int = 1) -> Any:
    return {
        "v": 4,
        "id": str(uuid6()),
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, version),
        "versions_seen": {"node": dict.fromkeys(values, version)},
        "updated_channels": None,
    }


def put(
    saver: Any, parent: Any, values: "dict[str, Any]", version: int = 1, **metadata: Any
) -> Any:
    made = checkpoint(values, version)
    described = {"source": "loop", "step": version, "parents": {}, **metadata}
    return saver.put(parent, made, described, made["channel_versions"])


def id_of(found: Any) -> str:
    where = getattr(found, "config", found)
    return str(where["configurable"]["checkpoint_id"])


def values_of(saver: Any, where: Any) -> Any:
    found = saver.get_tuple(where)
    return None if found is None else found.checkpoint["channel_values"]
