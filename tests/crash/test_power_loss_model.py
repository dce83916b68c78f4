"""The model of a loss of power: it can lose, keep and tear, and it finds naive stores out."""

import pytest

from tests.crash.call_log import read_operations
from tests.crash.power_loss import Disk
from tests.crash.recorded import acknowledged, lose_power, states_between
from tests.crash.survivors import Kept, Lost, NamesKept, Torn


def hexed(text):
    data = text if isinstance(text, bytes) else text.encode()
    return '"' + "".join(f"\\x{byte:02x}" for byte in data) + '"'


def opened(path, fd, flags="O_RDWR|O_CREAT|O_CLOEXEC"):
    return f"7 openat(AT_FDCWD, {hexed(path)}, {flags}, 0600) = {fd}"


def written(fd, data, at):
    return f"7 pwrite64({fd}, {hexed(data)}, {len(data)}, {at}) = {len(data)}"


def synced(fd):
    return f"7 fsync({fd})   = 0"


def called(name, *paths):
    return f"7 {name}({', '.join(map(hexed, paths))}) = 0"


def left(tmp_path, survivors, *lines):
    """The files that are left of a disk on which these calls were made."""
    disk = Disk("/disk")
    for operation in read_operations("\n".join(lines)):
        disk.apply(operation)
    target = tmp_path / "built"
    disk.build(target, survivors)
    return {
        str(path.relative_to(target)): path.read_bytes()
        for path in target.rglob("*")
        if path.is_file()
    }


ROOT_SYNCED = (opened("/disk", 9, "O_RDONLY|O_DIRECTORY"), synced(9))
NEW = (opened("/disk/a", 3), written(3, b"one", 0))


def test_a_file_needs_its_content_and_its_name_synced(tmp_path):
    cases = {
        (): {},
        (synced(3),): {},
        ROOT_SYNCED: {"a": b""},
        (synced(3), *ROOT_SYNCED): {"a": b"one"},
    }
    for number, (syncs, found) in enumerate(cases.items()):
        (tmp_path / str(number)).mkdir()
        assert left(tmp_path / str(number), Lost(), *NEW, *syncs) == found
    assert left(tmp_path, Kept(), *NEW) == {"a": b"one"}


def test_names_may_be_kept_without_contents(tmp_path):
    assert left(tmp_path, NamesKept(), *NEW) == {"a": b""}


def test_a_rename_is_lost_or_kept_as_one(tmp_path):
    lines = (*NEW, synced(3), *ROOT_SYNCED, called("rename", "/disk/a", "/disk/b"))
    for number in range(20):
        (tmp_path / str(number)).mkdir()
        found = left(tmp_path / str(number), Torn(number), *lines)
        assert found in ({"a": b"one"}, {"b": b"one"})


def test_an_open_file_is_written_under_its_new_name(tmp_path):
    lines = (*NEW, called("rename", "/disk/a", "/disk/b"), written(3, b"two", 3), synced(3))
    assert left(tmp_path, Lost(), *lines, *ROOT_SYNCED) == {"b": b"onetwo"}


def test_a_name_in_a_folder_that_was_lost_is_lost(tmp_path):
    lines = (
        f"7 mkdir({hexed('/disk/f')}, 0700) = 0",
        opened("/disk/f/a", 3),
        opened("/disk/f", 4, "O_RDONLY|O_DIRECTORY"),
        synced(4),
    )
    assert left(tmp_path, Lost(), *lines) == {}


def test_an_unlink_that_was_not_synced_may_be_undone(tmp_path):
    lines = (*NEW, synced(3), *ROOT_SYNCED, called("unlink", "/disk/a"))
    assert left(tmp_path, Lost(), *lines) == {"a": b"one"}


def test_a_cut_and_a_write_at_the_present_place(tmp_path):
    lines = (
        opened("/disk/a", 3),
        f"7 write(3, {hexed('abcd')}, 4) = 4",
        f"7 write(3, {hexed('ef')}, 2) = 2",
        "7 ftruncate(3, 5) = 0",
    )
    assert left(tmp_path, Kept(), *lines) == {"a": b"abcde"}


def test_writes_are_torn_at_sectors(tmp_path):
    old, new = b"o" * 8192, b"n" * 8192
    lines = (opened("/disk/a", 3), written(3, old, 0), synced(3), *ROOT_SYNCED, written(3, new, 0))
    seen = set()
    for number in range(60):
        (tmp_path / str(number)).mkdir()
        content = left(tmp_path / str(number), Torn(number), *lines)["a"]
        assert len(content) == 8192
        seen.add(content)
    mixed = seen - {old, new}
    assert {old, new} <= seen
    assert any(b"no" in content and b"on" in content for content in mixed), "out of order"


def test_a_sync_that_is_tried_again_brings_nothing_back(tmp_path):
    """As Linux does it: the second sync says that all is well."""
    failed = "7 fsync(3) = -1 EIO (Input/output error)"
    lines = (*ROOT_SYNCED[:1], *NEW, synced(9), failed, synced(3))
    assert left(tmp_path, Lost(), *lines) == {"a": b""}
    (tmp_path / "2").mkdir()
    lines = (*lines, written(3, b"two", 3), written(3, b"one", 0), synced(3))
    assert left(tmp_path / "2", Lost(), *lines) == {"a": b"onetwo"}


def test_what_is_not_understood_is_refused():
    with pytest.raises(ValueError, match="cut"):
        read_operations('7 pwrite64(3, "\\x61"..., 9, 0) = 9')
    with pytest.raises(ValueError, match="not understood"):
        read_operations("7 <... pwrite64 resumed>) = 9")
    with pytest.raises(ValueError, match="does not know"):
        Disk("/disk").apply(read_operations("7 copy_file_range(3, NULL, 4, NULL, 5, 0) = 5")[0])


def test_the_steps_of_the_recorded_run_are_many():
    assert len(states_between()) > 25


# -- naive stores are found out ------------------------------------------------------------------


def a_dozen(recording):
    moments = recording.moments()
    return moments[:: len(moments) // 12]


@pytest.mark.slow
def test_a_store_that_only_says_that_it_is_durable_is_found_out(recordings, scratch):
    """`synchronous=NORMAL` sold as full: acknowledged saves are lost."""
    recording = recordings("fast")
    failures = lose_power(recording, a_dozen(recording), scratch, acknowledged)
    assert len(failures.told) > failures.tried / 10
    assert "the store holds" in failures.told[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "ignore"),
    [
        ("no sync at all", lambda operation, path: True),
        ("no sync of SQLite's log", lambda operation, path: path.endswith("-wal")),
        ("no sync of directories", lambda operation, path: "." not in path.split("/")[-1][1:]),
    ],
)
def test_a_store_that_leaves_syncs_out_is_found_out(recordings, scratch, kind, ignore):
    recording = recordings("full")
    failures = lose_power(recording, a_dozen(recording), scratch, acknowledged, ignore=ignore)
    assert failures.told, f"nobody noticed that there was {kind}"
