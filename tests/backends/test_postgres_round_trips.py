"""Round trips of sessions to a PostgreSQL store: few, and not more with a longer history."""

from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="needs psycopg: pip install 'agent-checkpoint[postgres]'")

from agent_checkpoint import CheckpointManager, Session, tool
from agent_checkpoint.store.directory_claims import HOST
from tests.agents import Agent
from tests.backends.postgres_proxy import Proxy


@tool
def edit(path, text):
    Path(path).write_text(text)


@tool(effect="irreversible")
def post(text, *, effect):
    return f"posted {text}"


class Remote:
    """A store behind a proxy that counts."""

    def __init__(self, server):
        self.proxy = Proxy(server.port)
        plain = "&sslmode=disable&gssencmode=disable"  # so that the proxy can count messages
        self.url = server.url(server.new_schema(), port=self.proxy.port, more=plain)

    def trips(self, call, *args, **options):
        before = self.proxy.round_trips
        call(*args, **options)
        return self.proxy.round_trips - before


@pytest.fixture
def remote(postgres_server):
    remote = Remote(postgres_server)
    yield remote
    remote.proxy.close()


def make_files(place, folders):
    for folder in range(folders):
        (place / f"folder{folder}" / "inner").mkdir(parents=True)
        for number in range(10):
            (place / f"folder{folder}" / "inner" / f"{number}").write_text(f"{folder} {number}")


def test_a_save(remote):
    with CheckpointManager(remote.url) as manager:
        manager.save("key", {"n": 0})
        assert remote.trips(manager.save, "key", {"n": 1, "text": "1" * 5000}) <= 3
        for n in range(2, 30):
            assert remote.trips(manager.save, "key", {"n": n, "text": f"{n}" * 5000}) == 1


def test_the_steps_of_a_session(remote, tmp_path):
    make_files(tmp_path, 3)
    with Session("work", agent=Agent(), workspace=tmp_path, store=remote.url) as session:
        edit(tmp_path / "file", "0")
        edits, posts = [], []
        for n in range(1, 10):
            session.messages.append({"role": "user", "content": f"{n}" * 5000})
            edits.append(remote.trips(edit, tmp_path / f"folder1/inner/{n}", f"{n}"))
            posts.append(remote.trips(post, f"{n}"))
    # One more if the store is asked for an object, as when a list gets deeper.
    assert sorted(edits)[4] == 1
    assert max(edits) <= 2
    # One to look for new records; `started`, `committed` and the checkpoint take one each, because
    # each is durable before the next step.
    assert sorted(posts)[4] == 4
    assert max(posts) <= 5


@pytest.fixture
def resumed_trips(remote, monkeypatch, tmp_path):
    """Returns the round trips of opening a session with many or few files."""

    def count(folders, steps, *, elsewhere):
        place = tmp_path / f"{folders} {steps}"
        make_files(place, folders)
        key = f"{folders}-{steps}-{elsewhere}"
        with Session(key, agent=Agent(), workspace=place, store=remote.url):
            for n in range(steps):
                edit(place / "file", f"{n}")
                post(f"{n}")
        with monkeypatch.context() as patch:
            if elsewhere:
                patch.setenv(HOST, "another")
                place = tmp_path / f"{folders} {steps} elsewhere"

            def resume():
                Session(key, agent=Agent(), workspace=place, store=remote.url).close()

            return remote.trips(resume), remote.trips(resume)

    return count


@pytest.mark.parametrize("elsewhere", [False, True])
def test_resuming(resumed_trips, elsewhere):
    """With an index of the files, or after restoring them on another host."""
    few = resumed_trips(8, 6, elsewhere=elsewhere)
    many = resumed_trips(40, 12, elsewhere=elsewhere)
    assert max(many[0] - few[0], many[1] - few[1]) <= 2  # lists of the state may be deeper
    assert max(many[1], few[1]) <= 18
    assert max(many[0], few[0]) <= (40 if elsewhere else 18)


def test_an_object_cache_saves_the_second_restore(remote, monkeypatch, tmp_path):
    place = tmp_path / "work"
    make_files(place, 40)
    with Session("work", agent=Agent(), workspace=place, store=remote.url):
        pass
    monkeypatch.setenv(HOST, "another")

    def resume(name):
        url = f"{remote.url}&cache={tmp_path / 'cache'}"
        Session("work", agent=Agent(), workspace=tmp_path / name, store=url).close()
        assert (tmp_path / name / "folder9/inner/9").read_text() == "9 9"

    first, second = remote.trips(resume, "first"), remote.trips(resume, "second")
    assert second <= first - 5  # directories and files come from the cache
