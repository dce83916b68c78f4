"""From a name or a URL to a backend."""

import pytest

from agent_checkpoint import CheckpointManager, FileBackend, MemoryBackend
from agent_checkpoint.backends.default_paths import default_store
from agent_checkpoint.backends.registry import open_backend, open_named, open_url
from agent_checkpoint.backends.sqlite import SQLiteBackend
from agent_checkpoint.errors import InvalidInputError


def test_backends_by_name(tmp_path):
    assert isinstance(open_backend("memory"), MemoryBackend)
    backend = open_backend("file", tmp_path / "store")
    assert isinstance(backend, FileBackend)
    assert backend.path == tmp_path / "store"


@pytest.mark.parametrize(
    ("name", "path", "message"),
    [
        ("memory", "somewhere", "takes no path"),
        ("file", None, "needs a directory"),
        ("files", None, "Unknown backend 'files'"),
        ("", None, "Unknown backend ''"),
        ("Memory", None, "Unknown backend"),
    ],
)
def test_names_that_open_nothing(name, path, message):
    with pytest.raises(InvalidInputError, match=message):
        open_backend(name, path)


def test_backends_by_url(tmp_path):
    assert isinstance(open_url("memory://"), MemoryBackend)
    for url in (f"file://{tmp_path}/store", f"file://localhost{tmp_path}/store"):
        backend = open_url(url)
        assert isinstance(backend, FileBackend)
        assert backend.path == tmp_path / "store"
    assert open_url(f"file://{tmp_path}/a%20b%23c").path == tmp_path / "a b#c"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("checkpoints", "is not a store URL"),
        ("", "not a store URL"),
        ("/var/checkpoints", "not a store URL"),
        ("file:/var/checkpoints", "not a store URL"),
        ("file://", "must be file:///absolute/path"),
        ("file://elsewhere/path", "must be file:///absolute/path"),
        ("file:///path?durability=fast", "The file backend has no option durability."),
        ("sqlite:///path?durability=slow", "durability must be 'full' or 'fast', not 'slow'"),
        ("sqlite:///path?durability=fast&durability=full", "is repeated"),
        ("sqlite:///path?speed=9", "'speed=9' is not an option"),
        ("sqlite:///a?b/c", "Write a ? in the path as %3f"),
        ("sqlite:///path?max_bytes=lots", "'max_bytes=lots' must be a number of bytes"),
        ("sqlite:///path?max_bytes=0", "max_bytes must be a positive number of bytes"),
        ("sqlite:///path?min_free=-1", "min_free must be a number of bytes"),
        ("sqlite://?durability=fast", "must be sqlite:///absolute/path"),
        ("file:///path#2", "must be file:///absolute/path"),
        ("file://[", "must be file:///absolute/path"),
        ("file:///a%00b", "NUL"),
        ("nowhere://host/path", "No backend is registered for nowhere:// URLs"),
    ],
)
def test_urls_that_open_nothing(url, message):
    with pytest.raises(InvalidInputError) as caught:
        open_url(url)
    assert message in str(caught.value)


def level(backend):
    """SQLite's own word for the durability: 2 is FULL, 1 is NORMAL."""
    backend.append("key/a", b"entry")
    with backend._connections.read_connection() as db:
        (found,) = db.execute("PRAGMA synchronous").fetchone()
    backend.close()
    return found


def test_durability_is_an_option(tmp_path):
    assert level(open_backend("sqlite", tmp_path / "a")) == 2
    assert level(open_backend("sqlite", tmp_path / "b", durability="full")) == 2
    assert level(open_backend("sqlite", tmp_path / "c", durability="fast")) == 1
    assert level(open_url(f"sqlite://{tmp_path}/d?durability=fast")) == 1
    assert level(open_url(f"sqlite://{tmp_path}/e")) == 2


@pytest.mark.parametrize("name", ["file", "sqlite"])
def test_limits_are_options(tmp_path, name):
    backend = open_backend(name, tmp_path)
    assert (backend._limits.min_free, backend._limits.max_bytes) == (None, None)
    backend = open_backend(name, tmp_path, min_free=0, max_bytes=5)
    assert (backend._limits.min_free, backend._limits.max_bytes) == (0, 5)
    backend = open_url(f"{name}://{tmp_path}?min_free=7&max_bytes=8")
    assert (backend._limits.min_free, backend._limits.max_bytes) == (7, 8)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("memory", {"durability": "full"}),
        ("memory", {"min_free": 0}),
        ("memory", {"max_bytes": 1}),
        ("file", {"durability": "full"}),
        ("sqlite", {"durability": "none"}),
        ("file", {"min_free": "16 MB"}),
        ("sqlite", {"max_bytes": True}),
        ("sqlite", {"max_bytes": 0}),
    ],
)
def test_options_that_make_no_sense(tmp_path, name, options):
    path = None if name == "memory" else tmp_path
    with pytest.raises(InvalidInputError, match=next(iter(options))):
        open_backend(name, path, **options)
    with pytest.raises(InvalidInputError, match=next(iter(options))):
        CheckpointManager(backend=name, path=path, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_manager_takes_the_options(tmp_path):
    manager = CheckpointManager(
        backend="sqlite", path=tmp_path, durability="fast", min_free=1, max_bytes=10**9
    )
    limits = manager.store.backend._limits
    assert (limits.min_free, limits.max_bytes) == (1, 10**9)
    assert level(manager.store.backend) == 1
    manager.close()


@pytest.mark.parametrize("options", [{"durability": "fast"}, {"min_free": 0}, {"max_bytes": 9}])
def test_a_manager_takes_no_options_beside_a_url_or_an_instance(tmp_path, options):
    with pytest.raises(InvalidInputError, match=r"Put \w+ into the URL"):
        CheckpointManager(f"sqlite://{tmp_path}", **options)
    with pytest.raises(InvalidInputError, match="cannot be combined with a Backend instance"):
        CheckpointManager(FileBackend(tmp_path), **options)
    with pytest.raises(InvalidInputError, match="The memory backend has no"):
        CheckpointManager(**options)


def test_a_password_in_a_url_is_not_repeated():
    with pytest.raises(InvalidInputError) as caught:
        open_url("nowhere://user:hunter2@host/path")
    assert "hunter2" not in str(caught.value)


@pytest.mark.usefixtures("installed_package")
def test_an_installed_package_brings_a_scheme():
    backend = open_url("shelf://top?row=2")
    assert type(backend).__name__ == "Shelf"
    assert backend.url == "shelf://top?row=2"


@pytest.mark.usefixtures("installed_package")
def test_a_manager_opens_a_registered_scheme():
    manager = CheckpointManager("shelf://top")
    manager.save("a", {"x": 1})
    assert manager.state_dict("a") == {"x": 1}
    with pytest.raises(InvalidInputError):
        open_url("shelves://top")


def test_a_store_in_one_word(tmp_path):
    backend = MemoryBackend()
    assert open_named(backend) is backend
    assert isinstance(open_named("memory://"), MemoryBackend)
    for path in (tmp_path / "store", str(tmp_path / "store"), f"sqlite://{tmp_path}/store"):
        assert isinstance(open_named(path), SQLiteBackend)
        assert open_named(path).path == tmp_path / "store"
    assert open_named(None).path == default_store()


@pytest.mark.parametrize("store", [7, b"store", ["store"], object()])
def test_what_is_no_store(store):
    with pytest.raises(InvalidInputError, match="A store is a path, a store URL, a Backend"):
        open_named(store)


def test_no_database_is_made_in_a_store_of_readable_files(tmp_path):
    with CheckpointManager(backend="file", path=tmp_path) as manager:
        manager.save("session", {"step": 1})
    for store in (tmp_path, f"sqlite://{tmp_path}"):
        with pytest.raises(InvalidInputError, match="is a file store") as caught:
            open_named(store)
        assert str(caught.value).endswith(f'Pass backend="file", or file://{tmp_path}.')
    with CheckpointManager(backend="file", path=tmp_path) as manager:
        assert manager.state_dict("session") == {"step": 1}


def test_a_database_that_is_among_readable_files_is_still_opened(tmp_path):
    with CheckpointManager(backend="sqlite", path=tmp_path / "a") as manager:
        manager.save("session", {"step": 1})
    with CheckpointManager(backend="file", path=tmp_path / "b") as manager:
        manager.save("other", {"step": 2})
    (tmp_path / "a" / "store.db").rename(tmp_path / "b" / "store.db")
    with CheckpointManager(backend="sqlite", path=tmp_path / "b") as manager:
        assert manager.state_dict("session") == {"step": 1}
    with pytest.raises(InvalidInputError, match=f"is an SQLite store.*sqlite://{tmp_path}/b"):
        CheckpointManager(backend="file", path=tmp_path / "b")


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_a_url_with_four_slashes_is_an_absolute_path(tmp_path, scheme):
    path = tmp_path / "store"
    with CheckpointManager(f"{scheme}:///{path}") as manager:  # the path begins with the fourth
        manager.save("a", {"n": 1})
    with CheckpointManager(f"{scheme}://{path}") as manager:
        assert manager.state_dict("a") == {"n": 1}
