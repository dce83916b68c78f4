"""What a state weighs: who writes and who reads agree, so that what is saved can be loaded."""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_checkpoint import CheckpointManager, InvalidInputError, KeepLatest, Log, MemoryBackend
from agent_checkpoint.manager.checkpoint_parts import states_of
from agent_checkpoint.store import canonical_json, checkpoint_entries
from agent_checkpoint.store.archive import importer
from agent_checkpoint.store.canonical_json import indented_size, write_json
from agent_checkpoint.store.objects import decode_budget, writer
from agent_checkpoint.store.objects.decode_budget import pieces_cost, text_cost
from agent_checkpoint.store.objects.writer import Writer
from tests.agents import managers
from tests.properties.values import values
from tests.unit.store.shelves import cut_small

ours = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

REPEATED = [{"a": [1, 2], "b": "text"}] * 3000


def limit(patch: pytest.MonkeyPatch, free: int, for_a_byte: int = 1) -> None:
    """Have other limits than the real ones."""
    for module in (decode_budget, writer):
        patch.setattr(module, "BASE_BUDGET", free)
    patch.setattr(decode_budget, "COST_PER_BYTE", for_a_byte)


class Weighing:
    """Saves and loads states, and tells what they weighed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.manager = CheckpointManager()
        self.written = 0
        flush = Writer.flush

        def weighed(writer: Writer, *args: Any) -> Any:
            self.written = writer.decode_cost
            return flush(writer, *args)

        patch.setattr(Writer, "flush", weighed)

    def save(self, state: Any) -> int:
        self.manager.save("key", state)
        return self.written

    def load(self) -> int:
        found, reader = self.manager._fetch("key")
        states_of(found.parts, reader=reader)
        return reader._budget.cost


def test_values_are_counted_and_not_their_length() -> None:
    assert text_cost(b"[]") == 2
    assert text_cost(b'{"a":[1,2]}') == 8
    assert text_cost(b'"' + b"x" * 10_000 + b'"') == 2
    assert pieces_cost([b"x" * 1000] * 64, is_text=True) == 1000
    assert pieces_cost([b"x" * 1000] * 63 + [("é" * 500).encode()], is_text=True) == 4000
    assert pieces_cost([b"\xff" * 1000] * 64, is_text=False) == 1000


@pytest.mark.slow
@ours
@given(values)
def test_a_reader_finds_what_the_writer_said(value: Any) -> None:
    state = {"value": value, "list": [value, [value] * 5], "text": "a text above the limits é"}
    for small in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AGENT_CHECKPOINT_SECRET", "of these tests")
            if small:
                cut_small(patch)
            weighing = Weighing(patch)
            assert weighing.save(state) == weighing.load()


def test_a_list_that_goes_on_weighs_as_much_as_one_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weighing = Weighing(monkeypatch)
    texts = [{"n": n, "text": "word " * random.Random(n).randrange(2000)} for n in range(200)]
    log: Log[Any] = Log()
    plain: list[Any] = []
    for n, text in enumerate(texts):
        log.append(text)
        plain.append(n * 1000)
        written = weighing.save({"log": log, "plain": plain, "more": 1})
        assert written == weighing.load()
    assert written == Weighing(monkeypatch).save({"log": Log(texts), "plain": plain, "more": 1})


def test_what_repeats_too_often_is_refused_when_it_is_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = MemoryBackend()
    manager = CheckpointManager(backend)
    limit(monkeypatch, 10_000)
    with pytest.raises(InvalidInputError, match=r"is 45,\d\d\d, too high for its distinct"):
        manager.save("key", {"list": REPEATED, "n": 1})
    assert manager.list_keys() == []
    assert list(backend.list_objects()) == []
    manager.save("key", {"list": REPEATED[:500], "n": 1})
    assert manager.state_dict("key") == {"list": REPEATED[:500], "n": 1}


def test_what_does_not_repeat_may_weigh_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 1000)
    numbers = random.Random(1)
    state = {"list": [[numbers.random()] for _ in range(5000)], "n": 1}
    manager = CheckpointManager()
    manager.save("key", state)
    assert manager.state_dict("key") == state


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_log_is_vouched_for_by_what_was_stored_before(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, 1000, 2)
    numbers = random.Random(1)
    log = Log({"number": numbers.random()} for _ in range(3000))
    with managers(tmp_path)[kind] as manager:
        for _ in range(30):
            manager.save("key", {"log": log, "n": 1})
            log.append({"number": 1})
        manager.prune("key", KeepLatest(1))
        manager.gc()
        manager.save("key", {"log": log, "n": 1})
        assert CheckpointManager(manager.store.backend).state_dict("key")["log"] == log


def test_a_part_is_vouched_for_by_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 1000, 2)
    manager = CheckpointManager()
    repeated, other = Log(REPEATED), Log([random.Random(1).randbytes(300_000)])
    manager.save("key", {"repeated": repeated, "other": other})
    fresh: Log[Any] = Log()
    CheckpointManager(manager.store.backend).load("key", {"repeated": fresh})
    assert fresh == repeated
    with pytest.raises(InvalidInputError):
        manager.save("key", {"repeated": repeated})


def test_two_heavy_states_can_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = CheckpointManager()
    weighing = Weighing(monkeypatch)
    limit(monkeypatch, weighing.save({"list": REPEATED, "n": 1}))
    manager.save("key", {"list": REPEATED, "n": 1})
    manager.save("key", {"list": REPEATED, "n": 2})
    found = manager.diff("key", checkpoint_id_a="key@1", checkpoint_id_b="key@2")
    assert found["changed"] == {"n": (1, 2)}


@ours
@given(
    st.lists(
        st.tuples(st.sampled_from([[], {}, [1, 2], {"a": "text"}, "é", 7]), st.integers(0, 300)),
        max_size=4,
    ),
    st.integers(0, 2000),
    st.integers(0, 30),
)
def test_what_can_be_saved_can_be_loaded(runs: Any, free: int, for_a_byte: int) -> None:
    state = {"runs": [[item] * count for item, count in runs], "n": 1}
    with pytest.MonkeyPatch.context() as patch:
        cut_small(patch)
        limit(patch, free, for_a_byte)
        manager = CheckpointManager()
        try:
            manager.save("key", state)
        except InvalidInputError:
            return
        assert CheckpointManager(manager.store.backend).state_dict("key") == state


def test_a_file_store_exports_nothing_that_could_not_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, 10_000)
    with CheckpointManager(backend="file", path=tmp_path / "store") as manager:
        manager.save("key", {"list": REPEATED, "n": 1})  # in full, as it is loaded
        assert manager.state_dict("key")["list"] == REPEATED
        with pytest.raises(InvalidInputError, match="too high for its distinct content"):
            manager.export_archive(tmp_path / "a", "key")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


# -- states in full -------------------------------------------------------------------------------


def test_a_readable_state_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = CheckpointManager()
    source.save("key", {"a": 1})
    source.save("key", {"list": list(range(3000))})
    source.export_archive(tmp_path / "a", "key")
    for module in (checkpoint_entries, importer):
        monkeypatch.setattr(module, "MAX_READABLE", 20_000)
    with CheckpointManager(backend="file", path=tmp_path / "store") as manager:
        manager.save("other", {"list": list(range(1000))})
        with pytest.raises(InvalidInputError, match='Use backend="sqlite"'):
            manager.save("other", {"list": list(range(3000))})
        with pytest.raises(InvalidInputError, match='Use backend="sqlite"'):
            manager.import_archive(tmp_path / "a")
        assert manager.list_keys() == ["other"]
        assert len(manager.history("other")) == 1


@ours
@given(values)
def test_the_length_of_a_readable_text_is_known_before(value: Any) -> None:
    tree = canonical_json.read_json(write_json(_plain(value)))
    length = len(write_json(tree, indent=True))
    assert length <= indented_size(tree, 1 << 40) <= 2 * length + 20
    assert indented_size(tree, length // 2) >= length // 2


def _plain(value: Any) -> Any:
    """Return something of JSON that is as long and as deep as a value."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {repr(key): _plain(item) for key, item in value.items()}
    return repr(value)
