"""Merging two sets of edits: what can be taken, and what is a conflict."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_checkpoint import CheckpointManager, Workspace
from agent_checkpoint.session.branch.file_merge import merge


def tree(files, tmp_path, store):
    """Return the tree of a directory with these files; a value of None is an empty directory."""
    root = tmp_path / "root"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            path.mkdir(exist_ok=True)
        else:
            path.write_text(text)
    with Workspace(root, store, watch=False) as workspace:
        return workspace.snapshot(full=True)


BASE = {"a": "a", "b": "b", "d/x": "x", "d/y": "y"}


@pytest.mark.parametrize(
    ("ours", "theirs", "conflicts"),
    [
        ({**BASE, "a": "1"}, {**BASE, "b": "2"}, []),
        ({**BASE, "a": "1"}, {**BASE, "a": "2"}, ["a"]),
        ({**BASE, "a": "1"}, {**BASE, "a": "1"}, []),
        ({"a": "a", "b": "b", "d/x": "x"}, {**BASE, "d/y": "2"}, ["d/y"]),
        ({**BASE, "e/one": "1"}, {**BASE, "e/two": "2"}, []),
        ({**BASE, "e/one": "1"}, {**BASE, "e": "2"}, ["e", "e/one"]),
        ({**BASE, "d/new": "1"}, {"a": "a", "b": "b"}, ["d", "d/new"]),
        ({"a": "a", "b": "b"}, {**BASE, "d/new": "1"}, ["d/new"]),
        ({"a": "a", "b": "b", "d": "1"}, {**BASE, "d/x": "2"}, ["d/x"]),
        ({"a": "a", "b": "b"}, {"a": "a", "b": "b"}, []),
        (BASE, {**BASE, "d/x": "2"}, []),
    ],
)
def test_conflicts(ours, theirs, conflicts, tmp_path):
    store = CheckpointManager().store
    found = merge(*(tree(files, tmp_path, store) for files in (BASE, ours, theirs)))
    assert [path.decode() for path in found.conflicts] == conflicts


FILES = st.dictionaries(
    st.sampled_from(["a", "b", "d/x", "d/y", "d/e/z", "e", "e/w", "f"]),
    st.sampled_from(["1", "2", "3"]),
)


def possible(files):
    """Leave out what would need a directory where a file is."""
    return {
        name: text
        for name, text in files.items()
        if not any(other.startswith(f"{name}/") for other in files)
    }


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(FILES, FILES, FILES)
def test_a_merge_keeps_both_sides_or_says_no(tmp_path_factory, base, ours, theirs):
    """Every path ends as the side that changed it has it, and nothing else changes."""
    tmp_path = tmp_path_factory.mktemp("merge")
    manager = CheckpointManager()
    base, ours, theirs = (possible(files) for files in (base, ours, theirs))
    trees = [tree(files, tmp_path, manager.store) for files in (base, theirs, ours)]
    found = merge(trees[0], trees[2], trees[1])
    if found.conflicts:
        return
    root = tmp_path / "root"
    with Workspace(root, manager.store, watch=False) as workspace:
        workspace.restore(trees[1], paths=[path.decode() for path in found.paths])
    present = {str(p.relative_to(root)): p.read_text() for p in root.rglob("*") if p.is_file()}
    expected = {}
    for name in {*base, *ours, *theirs}:
        was, mine, other = base.get(name), ours.get(name), theirs.get(name)
        text = other if mine == was else mine
        if text is not None:
            expected[name] = text
    assert present == expected
    shutil.rmtree(tmp_path)


def test_modes_of_directories(tmp_path):
    store = CheckpointManager().store
    trees = []
    for mode, text in ((0o755, "x"), (0o755, "y"), (0o700, "x")):
        root = tmp_path / "root"
        shutil.rmtree(root, ignore_errors=True)
        Path(root / "d").mkdir(parents=True)
        (root / "d/x").write_text(text)
        (root / "d").chmod(mode)
        with Workspace(root, store, watch=False) as workspace:
            trees.append(workspace.snapshot(full=True))
    assert merge(*trees).conflicts == [b"d"]
    assert merge(trees[0], trees[0], trees[2]).paths == [b"d"]
