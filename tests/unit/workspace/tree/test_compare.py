"""Comparing trees: the same result however many directories are read at a time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_checkpoint.backends.memory import MemoryBackend
from agent_checkpoint.store.objects.object_format import make_object
from agent_checkpoint.store.objects.reader import fetch_objects
from agent_checkpoint.workspace.tree import compare
from agent_checkpoint.workspace.tree.compare import Side, differences
from agent_checkpoint.workspace.tree.tree_format import FILE, FOLDER, Item, put_directory

NAMES = st.sampled_from(["a", "b", "c"])
TREES = st.recursive(
    st.integers(0, 2), lambda inner: st.dictionaries(NAMES, inner, max_size=3), max_leaves=12
).filter(lambda tree: isinstance(tree, dict))


class Trees:
    """Stores trees given as nested dicts with numbers as files; counts the reads."""

    def __init__(self):
        self.backend = MemoryBackend()
        self.reads = []

    def put(self, tree):
        def put(kind, payload, refs=()):
            name, packed = make_object(kind, payload, refs)
            self.backend.put_objects({name: packed.stored("zlib")})
            return name

        items = []
        for name, content in sorted(tree.items()):
            if isinstance(content, dict):
                stored = self.put(content)
                items.append(Item(name.encode(), FOLDER, 0o755, id=stored.id, ref=stored.ref))
            else:
                ref = f"{content:064x}"
                items.append(Item(name.encode(), FILE, 0o644, content, ref, ref))
        return put_directory(items, put)

    def get(self, names):
        self.reads.append(list(names))
        found = dict(fetch_objects(self.backend, dict.fromkeys(names)))
        return [found[name] for name in names]

    def differences(self, before, after):
        sides = [None if tree is None else self.put(tree).ref for tree in (before, after)]
        self.reads = []
        return list(differences(*(Side(side, self.get) for side in sides)))


@settings(deadline=None)
@given(TREES, TREES)
def test_reading_ahead_changes_nothing(before, after):
    trees = Trees()
    found = trees.differences(before, after)
    for batch, ahead in ((1, 50_000), (500, 2), (500, -1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compare, "_BATCH", batch)
            patch.setattr(compare, "_MOST_AHEAD", ahead)
            assert trees.differences(before, after) == found


def test_a_new_subtree_takes_one_read_for_each_level():
    tree = {f"{n}": {f"{m}": {"file": n} for m in range(10)} for n in range(30)}
    trees = Trees()
    assert len(trees.differences({}, tree)) == 30 + 300 + 300
    assert len(trees.reads) <= 4  # the two roots, and two levels
    assert len(trees.differences(tree, {})) == 630
    assert len(trees.reads) <= 4


def test_equal_subtrees_are_not_read():
    large = {f"{n}": {"file": n} for n in range(30)}
    trees = Trees()
    old, new = ({"large": large, "x": {"y": {"file": n}}} for n in range(2))
    (changed,) = trees.differences(old, new)
    assert changed.path == b"x/y/file"
    assert sum(map(len, trees.reads)) == 6
