"""Wrappers by URL: the options work with every scheme, and the URL opens the same wrappers."""

import itertools
import subprocess
import sys

import pytest

from agent_checkpoint import (
    CacheBackend,
    CheckpointManager,
    CountingBackend,
    FileBackend,
    InvalidInputError,
    MemoryBackend,
    ReadOnlyBackend,
    RetryBackend,
    WrapperBackend,
)
from agent_checkpoint.agents.rewind.rewind_journal import store_name
from agent_checkpoint.backends.registry import as_shared, open_url
from agent_checkpoint.backends.sqlite import SQLiteBackend
from agent_checkpoint.backends.wrappers.url_options import split_options, with_options
from agent_checkpoint.store.store import Store

ALL = "read_only=1&count=1&cache=/nowhere/cache&retry=3&cache_bytes=9000"
LAYERS = [ReadOnlyBackend, CountingBackend, CacheBackend, RetryBackend]


def layers(backend):
    """The classes from the outside to the inside."""
    found = [type(backend)]
    while isinstance(backend, WrapperBackend):
        backend = backend.inner
        found.append(type(backend))
    return found


@pytest.mark.parametrize(("scheme", "backend"), [("file", FileBackend), ("sqlite", SQLiteBackend)])
def test_the_order_is_fixed(tmp_path, scheme, backend):
    for options in itertools.permutations(ALL.split("&")):
        found = open_url(f"{scheme}://{tmp_path}/store?{'&'.join(options)}")
        assert layers(found) == [*LAYERS, backend]


def test_flags_can_be_off(tmp_path):
    assert layers(open_url("memory://?read_only=0&count=0")) == [MemoryBackend]


def test_other_options_reach_the_backend(tmp_path):
    backend = open_url(f"sqlite://{tmp_path}/store?retry=2&durability=fast&count=1&shared=1")
    assert backend.properties.durability == "fast"
    assert backend.properties.shared


@pytest.mark.usefixtures("installed_package")
def test_a_registered_scheme_gets_the_rest_of_the_url():
    backend = open_url(f"shelf://top?row=2&{ALL}&column=%26")
    assert layers(backend)[:-1] == LAYERS
    assert backend.inner.inner.inner.inner.url == "shelf://top?row=2&column=%26"
    assert backend.properties.url == (
        "shelf://top?row=2&column=%26&retry=3&cache=/nowhere/cache&cache_bytes=9000&count=1"
        "&read_only=1"
    )


@pytest.mark.parametrize("scheme", ["file", "sqlite"])
def test_the_url_opens_the_same_wrappers(tmp_path, scheme):
    backend = open_url(f"{scheme}://{tmp_path}/a%20%26b?shared=1&{ALL}")
    again = open_url(backend.properties.url)
    assert again.properties == backend.properties
    assert layers(again) == layers(backend)


def test_another_process_opens_the_same_store(tmp_path):
    with CheckpointManager(f"sqlite://{tmp_path}/store?retry=2&count=1") as manager:
        manager.save("a", {"n": 1})
        url = manager.store.backend.properties.url
    program = (
        "import sys; from agent_checkpoint import CheckpointManager\n"
        "manager = CheckpointManager(sys.argv[1])\n"
        "print(manager.state_dict('a'), manager.store.backend)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, url], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("{'n': 1} CountingBackend(RetryBackend(SQLiteBackend(")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("retry=often", "'retry=often' must be a number of attempts"),
        ("retry=0", "must be a positive number of attempts, not 0"),
        ("retry", "'retry' must be a number of attempts"),
        ("retry=2&retry=2", "The option retry is repeated"),
        ("read_only=yes", "'read_only=yes' must be 0 or 1"),
        ("count=2", "'count=2' must be 0 or 1"),
    ],
)
def test_invalid_options(tmp_path, query, message):
    for url in (f"sqlite://{tmp_path}/store", "memory://"):
        with pytest.raises(InvalidInputError) as caught:
            open_url(f"{url}?{query}")
        assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_option_lists_those_of_wrappers(tmp_path):
    with pytest.raises(InvalidInputError, match=r"Valid options: .*shared, retry, .*read_only"):
        open_url(f"sqlite://{tmp_path}/store?retries=3")


def test_an_invalid_option_closes_the_backend(monkeypatch):
    closed = []
    monkeypatch.setattr(MemoryBackend, "close", lambda self: closed.append(self))
    with pytest.raises(InvalidInputError):
        open_url("memory://?retry=-1")
    assert len(closed) == 1


@pytest.mark.parametrize(
    "url", ["file:///a", "file:///a?", "file:///a?&", "s3://b?x=1&&y=%26", "memory://", "x?y"]
)
def test_a_url_without_wrappers_is_not_changed(url):
    assert split_options(url) == (url, {})


def test_options_are_escaped_and_replaced():
    assert with_options("x://y?retry=3&a=%26", retry=4) == "x://y?a=%26&retry=4"
    assert with_options("x://y", cache="/a b&é?#") == "x://y?cache=/a%20b%26%C3%A9%3F%23"
    assert with_options(None, retry=4) is None


def test_a_shared_store_stays_wrapped(tmp_path):
    url = as_shared(f"sqlite://{tmp_path}/store?count=1")
    assert layers(open_url(url)) == [CountingBackend, SQLiteBackend]
    assert open_url(url).properties.shared


def test_an_interrupted_rewind_is_found_with_other_wrappers(tmp_path):
    plain, wrapped = (
        Store(open_url(f"sqlite://{tmp_path}/store?{query}"))
        for query in ("shared=1", "count=1&shared=1&retry=2")
    )
    assert store_name(wrapped) == store_name(plain) == f"sqlite://{tmp_path}/store?shared=1"
    assert store_name(Store(MemoryBackend())).startswith("<")
