"""The long-term memory: the same as LangGraph's own in memory, for any sequence of operations."""

import asyncio
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from agent_checkpoint import InvalidInputError
from agent_checkpoint.adapters.langgraph import Store


def embed(texts):
    return [[float(text.count(letter)) + 0.1 for letter in "abc"] for text in texts]


INDEX = {"dims": 3, "embed": embed, "fields": ["text"]}

labels = st.sampled_from(["a", "b", "a/b", "ü"])
namespaces = st.lists(labels, min_size=1, max_size=3).map(tuple)
keys = st.sampled_from(["k", "l", "k/l", "%2F"])
values = st.fixed_dictionaries(
    {"text": st.text("abc", max_size=4), "n": st.integers(0, 3)},
    optional={"more": st.one_of(st.none(), st.lists(st.integers(0, 2)), st.just({"x": 1}))},
)
filters = st.sampled_from(
    [
        None,
        {"n": 1},
        {"n": {"$gte": 1, "$lt": 3}},
        {"n": {"$ne": 2}},
        {"more": {"x": 1}},
        {"more": [1]},
        {"n": {"$eq": 0}, "text": "a"},
    ]
)
conditions = st.builds(
    MatchCondition,
    st.sampled_from(["prefix", "suffix"]),
    st.lists(st.one_of(labels, st.just("*")), min_size=1, max_size=2).map(tuple),
)
operations = st.one_of(
    st.builds(GetOp, namespaces, keys),
    st.builds(
        PutOp,
        namespaces,
        keys,
        st.one_of(st.none(), values, values),
        index=st.sampled_from([None, False]),
        ttl=st.none(),
    ),
    st.builds(
        SearchOp,
        st.lists(labels, max_size=2).map(tuple),
        filter=filters,
        limit=st.just(1000),
        offset=st.just(0),
        query=st.sampled_from([None, "a", "bbc"]),
    ),
    st.builds(
        ListNamespacesOp,
        st.one_of(st.none(), st.lists(conditions, max_size=2).map(tuple)),
        max_depth=st.sampled_from([None, 1, 2]),
        limit=st.sampled_from([1000, 2]),
        offset=st.sampled_from([0, 1]),
    ),
)


def plain(result):
    """A result without times; what a search finds in a fixed order."""
    if isinstance(result, list):
        if result and not isinstance(result[0], tuple):
            found = [(*plain(item), round(item.score or 0.0, 9)) for item in result]
            return sorted(found, key=lambda item: (-item[-1], item[:2]))
        return result
    return None if result is None else (result.namespace, result.key, result.value)


@settings(max_examples=60, deadline=None)
@given(st.lists(operations, max_size=12), st.booleans())
def test_it_does_what_the_store_in_memory_does(ops, with_index):
    index = INDEX if with_index else None
    ours, theirs = Store(index=index), InMemoryStore(index=index)
    for op in ops:
        for namespace in [name for name, items in theirs._data.items() if not items]:
            del theirs._data[namespace]  # it lists namespaces that were only asked for
        assert list(map(plain, ours.batch([op]))) == list(map(plain, theirs.batch([op])))


def test_a_batch_reads_before_it_puts_and_the_last_put_counts():
    for memory in (Store(), InMemoryStore()):
        ops = [PutOp(("n",), "k", {"n": 1}), GetOp(("n",), "k"), PutOp(("n",), "k", {"n": 2})]
        assert memory.batch(ops) == [None, None, None]
        assert memory.get(("n",), "k").value == {"n": 2}


def test_values_come_back_in_another_process(tmp_path):
    with Store(tmp_path / "s") as memory:
        memory.put(("u", "1"), "k", {"n": 1})
        first = memory.get(("u", "1"), "k")
        memory.put(("u", "1"), "k", {"n": 2})
    with Store(tmp_path / "s") as memory:
        found = memory.get(("u", "1"), "k")
        assert found.value == {"n": 2}
        assert found.created_at == first.created_at < found.updated_at
        assert isinstance(found.created_at, datetime)
        assert len(memory.manager.history("langgraph-store/u/1/k")) == 2
        memory.delete(("u", "1"), "k")
        memory.delete(("u", "1"), "k")
        assert memory.get(("u", "1"), "k") is None
        assert memory.list_namespaces() == []


def test_the_best_match_comes_first_and_pages_follow(tmp_path):
    with Store(tmp_path / "s", index=INDEX) as memory:
        for text in ("aaaa", "abab", "bbbb", "cccc"):
            memory.put(("n",), text, {"text": text})
        memory.put(("n",), "none", {"text": "aaaa"}, index=False)
        assert [item.key for item in memory.search(("n",), query="aa", limit=2)] == ["aaaa", "abab"]
        assert [item.key for item in memory.search(("n",), query="aa")][-1] == "none"
        assert len(memory.search(("n",), limit=2, offset=4)) == 1


def test_it_works_in_asyncio():
    async def run():
        memory = Store()
        await memory.aput(("n",), "k", {"n": 1})
        return (await memory.aget(("n",), "k")).value, await memory.asearch(("n",))

    value, found = asyncio.run(run())
    assert value == {"n": 1}
    assert [item.key for item in found] == ["k"]


def test_what_is_unknown_is_refused():
    memory = Store()
    memory.put(("n",), "k", {"n": 1, "t": "x"})
    with pytest.raises(InvalidInputError, match=r"unknown comparison '\$like'"):
        memory.search(("n",), filter={"n": {"$like": 1}})
    with pytest.raises(InvalidInputError, match="is not an operation"):
        memory.batch(["get"])
    assert memory.search(("n",), filter={"t": {"$gt": 1}}) == []
