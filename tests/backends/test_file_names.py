"""Stream names as directory names: no two meet, none leads elsewhere."""

import hashlib

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from agent_checkpoint.backends.file_names import directory_name, is_shortened, stream_name
from agent_checkpoint.testing.name_tests import NAMES

# Letters that meet in escapes, in cut names and on file systems that do not tell case apart.
CLOSE = st.text(alphabet="aAeE.%~/2fF_ \\\0\u212a\u0130\u00e9\u0301", min_size=1, max_size=12)
ANY = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)
KINDS = st.sampled_from(["key", "fx", "meta"])
STREAMS = st.builds("{}/{}".format, KINDS, CLOSE | ANY | st.sampled_from(sorted(NAMES.values())))


@pytest.mark.parametrize(
    ("stream", "name"),
    [
        ("key/session_1", "session_1"),
        ("key/a-b.c=d+e,f@g", "a-b.c=d+e,f@g"),
        ("key/a/b", "a%2fb"),
        ("key/..", "%2e."),
        ("key/.tmp", "%2etmp"),
        ("key/%2e", "%252e"),
        ("key/a~2", "a%7e2"),
        ("key/\0\n", "%00%0a"),
        ("key/é", "%c3%a9"),
        ("fx/session_1", ".fx%2fsession_1"),
        ("meta/format", ".meta%2fformat"),
    ],
)
def test_names_that_people_can_read(stream, name):
    assert directory_name(stream) == name
    assert not is_shortened(name)
    assert stream_name(name) == stream


@pytest.mark.parametrize("stream", ["key/A", "key/objects", "key/" + "k" * 121, "fx/Ledger"])
def test_names_that_are_cut(stream):
    name = directory_name(stream)
    assert is_shortened(name)
    assert name.endswith("~" + hashlib.sha256(stream.encode()).hexdigest()[:32])
    assert stream_name(name) is None


def test_the_longest_name_that_is_not_cut():
    assert directory_name("key/" + "k" * 120) == "k" * 120
    assert is_shortened(directory_name("key/" + "k" * 121))
    assert not is_shortened(directory_name("key/" + "é" * 20))
    assert is_shortened(directory_name("key/" + "é" * 21))


@given(STREAMS, STREAMS)
@example("key/A", "key/a")
@example("key/objects", "key/Objects")
@example("key/é", "key/e\u0301")
@example("key/a/b", "key/a%2fb")
@example("key/fx/a", "fx/a")
@example("key/.fx%2fa", "fx/a")
@example("key/" + directory_name("key/A"), "key/A")
def test_no_two_streams_meet_even_where_case_does_not_count(one, other):
    assume(one != other)
    assert directory_name(one).casefold() != directory_name(other).casefold()


@given(STREAMS)
def test_a_name_that_is_not_cut_can_be_read_back(stream):
    name = directory_name(stream)
    assert stream_name(name) == (None if is_shortened(name) else stream)


@given(STREAMS)
def test_a_directory_name_is_one_plain_component(stream):
    name = directory_name(stream)
    assert 0 < len(name.encode()) <= 255
    assert name.isascii()
    assert name.isprintable()
    assert "/" not in name
    assert "\\" not in name
    assert name not in (".", "..", ".tmp", ".lock", "objects")


@given(STREAMS)
def test_only_streams_that_are_not_keys_are_hidden(stream):
    assert directory_name(stream).startswith(".") == (not stream.startswith("key/"))


@given(st.text(alphabet="aAfx.%/2 efgz~\u00e9\ud800", max_size=12))
@example(".git")
@example("..")
@example(".")
@example("")
@example(".fx%2f")
@example(".key%2fa")
@example("%2F")
@example("%2")
@example("%")
@example("%ff")
@example("%2 e")
def test_a_foreign_directory_is_no_stream_or_exactly_the_one_it_stands_for(name):
    stream = stream_name(name)
    assert stream is None or (directory_name(stream) == name and stream.count("/") >= 1)
