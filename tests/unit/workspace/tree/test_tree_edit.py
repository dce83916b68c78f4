"""The tree that a restore leads to, computed from its plan, equals a snapshot taken after it."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import given, reject, settings
from hypothesis import strategies as st

from agent_checkpoint import CheckpointManager, MemoryBackend, RestoreIncompleteError, Workspace
from agent_checkpoint.workspace.tree.tree_edit import EditedTree

NAMES = st.sampled_from(["a", "b", "c", "d.txt"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
ENTRIES = st.one_of(
    st.tuples(st.just("file"), st.text("xy", max_size=2), st.sampled_from([0o644, 0o755])),
    st.tuples(st.just("link"), st.sampled_from(["a", "nowhere"]), st.just(0)),
    st.tuples(st.just("dir"), st.just(""), st.sampled_from([0o755, 0o700])),
)
TREES = st.dictionaries(PATHS, ENTRIES, max_size=8)
SELECTED = st.none() | st.lists(PATHS, min_size=1, max_size=3)


def write_tree(root: Path, tree: dict[str, tuple[str, str, int]]) -> None:
    for path in root.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    for name, (kind, text, mode) in sorted(tree.items()):
        path = root / name
        if any(parent.is_symlink() or parent.is_file() for parent in path.parents):
            continue
        if os.path.lexists(path):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "link":
            path.symlink_to(text)
            continue
        path.mkdir() if kind == "dir" else path.write_text(text)
        path.chmod(mode)


@settings(max_examples=60, deadline=None)
@given(
    TREES, TREES, st.none() | st.lists(PATHS, min_size=1, max_size=3), st.lists(NAMES, max_size=1)
)
def test_the_planned_tree_is_the_tree_after_the_restore(then, now, paths, exclude) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root, store = Path(directory), CheckpointManager(MemoryBackend()).store
        with Workspace(root, store, watch=False) as workspace:
            write_tree(root, then)
            target = workspace.snapshot(full=True)
            write_tree(root, now)
            before = workspace.snapshot(full=True)
            plan = workspace.restore(target, paths=paths, exclude=exclude, dry_run=True)
            planned = EditedTree(before, plan.steps, plan.tree).checkpoint_to(store.writer())
            try:
                workspace.restore(target, paths=paths, exclude=exclude)
            except RestoreIncompleteError:  # a parent of a path is a file now
                reject()
            assert planned == workspace.snapshot(full=True).ref
