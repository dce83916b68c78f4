"""A session moves between hosts that share a PostgreSQL store and nothing else."""

import re
from contextlib import suppress
from itertools import count

import pytest

pytest.importorskip("psycopg", reason="needs psycopg: pip install 'agent-checkpoint[postgres]'")

from tests.crash.hosts import Host, HostError

pytestmark = pytest.mark.slow

MANY = {f"folder{number}/file{number}": f"content {number}\n" for number in range(5)}


@pytest.fixture
def store(postgres_server):
    return postgres_server.url(postgres_server.new_schema())


@pytest.fixture
def hosts(tmp_path, store):
    """Call it with the name of a host, to have one."""
    started = []

    def host(name, **options):
        started.append(Host(tmp_path, name, store, **options))
        return started[-1]

    yield host
    for item in started:
        item.kill()


@pytest.fixture
def outbox(tmp_path):
    """What was done outside."""
    path = tmp_path / "outbox"
    path.touch()
    return lambda: path.read_text().splitlines()


@pytest.fixture
def a(hosts):
    """A host at work, with some files."""
    host = hosts("a")
    for path, text in MANY.items():
        (host.files / path).parent.mkdir(parents=True)
        (host.files / path).write_text(text)
    host.open()
    return host


def refused(call, *arguments, **options):
    """The type and the message of the error of a call."""
    with pytest.raises(HostError) as caught:
        call(*arguments, **options)
    return caught.value.args


# -- resume ----------------------------------------------------------------------------------------


def test_everything_is_there_on_another_host(a, hosts, outbox):
    assert a("tasks", "two") == ["one", "two"]
    assert a("ask", "production") == "suspended"
    before, files = a("state"), a.content()
    assert before["pending"] == 1
    a.kill()
    b, c = hosts("b"), hosts("c")
    assert b.open() is True
    assert b("state") == {**before, "drift": None}
    assert b.content() == files
    # A third host, with neither files nor agent, sees and answers it.
    status, listed, _ = c("command", "approvals")
    assert status == 0
    (request,) = re.findall("approval-[0-9a-f]+", listed)
    assert c("command", "approvals", "approve", request)[0] == 0
    assert b("carry_out")
    # The interrupted task runs again from its top; its mail is not sent again.
    assert b("tasks") == ["two", "three"]
    assert b("state")["tasks"] == dict.fromkeys(["one", "two", "three"], "completed")
    assert outbox() == ["step one", "step two", "production", "step three"]


def test_the_page_of_a_third_host_answers(a, hosts, outbox):
    a("ask", "production")
    a.kill()
    b = hosts("b")
    b.open()
    assert hosts("c")("approve_on_page") == 303
    assert b("carry_out")
    assert outbox() == ["production"]


def test_without_a_shared_secret(a, hosts):
    """A session without pickles needs none: only its directories are not trusted."""
    a("work", "one")
    a.kill()
    b = hosts("b", secret=None)
    assert b.open() is True
    assert b("state")["count"] == 1
    assert b.content() == {**MANY, "src/app.py": "step one\n"}
    b("work", "two")
    b.kill()
    assert b.open() is True  # its directory is its own


# -- fencing ---------------------------------------------------------------------------------------


def test_the_earlier_host_is_fenced_off(a, hosts, outbox):
    a("work", "one")
    b = hosts("b")
    b.open()
    assert refused(a, "save")[0] == "ConflictError"
    assert refused(a, "send", "twice")[0] == "ConflictError"
    assert refused(a, "ask", "production")[0] == "ConflictError"
    assert refused(a, "rollback")[0] == "ConflictError"
    b("work", "two")
    assert outbox() == ["step one", "step two"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_host_that_wakes_up_in_an_effect(hosts, outbox, when):
    """B does not repeat what A may have done, and A reports it after it was fenced off."""
    a, b = hosts("a"), hosts("b")
    a.files.mkdir()
    a.start(PAUSED=when)
    a.open()
    a.send("send", "hello")
    a.wait_until_stopped()
    assert outbox() == (["hello"] if when == "after" else [])
    b.open()
    assert b("state")["effects"] == {"mail(to='hello')": "unknown"}
    assert refused(b, "send", "hello")[0] == "EffectUnknownError"
    a.wake()
    with pytest.raises(HostError) as caught:  # it is sent and recorded; only the save fails
        a.reply()
    assert caught.value.args[0] == "ConflictError"
    assert b("send", "hello") == "sent to hello"  # the result that A recorded
    assert outbox() == ["hello"]


# -- directories -----------------------------------------------------------------------------------


def test_a_directory_with_files_is_refused_and_the_owner_goes_on(a, hosts):
    a("work", "one")
    b = hosts("b")
    b.files.mkdir()
    (b.files / "own").write_text("of B")
    head = a("head")
    error, message = refused(b.open)
    assert error == "InvalidInputError"
    assert "rebind=True" in message
    assert a("head") == head
    a("work", "two")  # not fenced off
    assert b.open(rebind=True) is True
    assert b.content() == {"own": "of B"}  # the files in it are kept
    b.kill()
    assert b.open(on_drift="restore") is True
    assert b.content() == {"own": "of B"}
    assert refused(a, "save")[0] == "ConflictError"


def test_files_of_the_session_replace_those_of_a_directory(a, hosts):
    a("work", "one")
    b = hosts("b")
    b.files.mkdir()
    (b.files / "own").write_text("of B")
    b.open(rebind=True, on_drift="restore")
    assert b.content() == a.content()
    assert b("command", "log", f"workspace:{b.files}")[0] == 0  # the safety checkpoint has them


def test_the_path_of_another_host_is_not_used(a, hosts):
    """Not even if it exists here."""
    a("work", "one")
    b = hosts("b")
    error, message = refused(b, "open_session")
    assert error == "InvalidInputError"
    assert "Pass workspace=" in message
    (a.files / "mine").write_text("not in a checkpoint")
    error, message = refused(b, "open_session", workspace=str(a.files))
    assert error == "InvalidInputError"
    assert "another host" in message
    a("save")


@pytest.mark.long
@pytest.mark.parametrize("again", ["b", "b twice", "c"])
def test_killed_while_restoring(a, hosts, full_faults, tried, again):
    """On the next open of the same directory, or of another host, the files are exact."""
    a("work", "one")
    files = a.content()
    a.kill()
    for number in count(1) if full_faults else (1, 2, 4, 9, 14, 20, 30):
        b = hosts(f"b{number}")
        with suppress(EOFError):
            b.open(die_at=number)
            break
        other = hosts(f"c{number}") if again == "c" else b
        if again == "b twice":
            with suppress(EOFError):
                other.open(die_at=number)
                other.kill()
        other.open()
        assert other("state")["messages"] == ["step one"]
        assert other.content() == files
        other("work", "two")
        other("rollback", steps=2)
        assert other("state")["count"] == 1
        assert other.content() == files
        other.kill()
        tried("killed while restoring on another host")
    assert full_faults or number == 30


# -- secrets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"agent": "OpaqueAgent"}, {"external": True}, {}])
def test_pickles_need_the_same_secret(hosts, options):
    """In the state of the agent, of an external part, or of a sub-agent."""
    a, b, c = hosts("a"), hosts("b", secret="another"), hosts("c")
    a.files.mkdir()
    a.open(**options)
    a("work", "one")
    if not options:
        a("delegate")
    head = a("head")
    error, message = refused(b.open, **options)
    assert error == "UntrustedDataError"
    assert "AGENT_CHECKPOINT_SECRET" in message
    assert a("head") == head
    a("work", "two")  # not fenced off by a host that cannot go on
    assert c.open(**options) is True
    assert c("state")["count"] == 2


# -- journals --------------------------------------------------------------------------------------


def killed_rollback(a):
    """A host that is killed in the middle of a rollback, when it is decided."""
    a("work", "one")
    target = a("save")
    a("work", "two")
    for number in count(1):
        with pytest.raises(EOFError):
            a("rollback", to=target, die_at=number)
        if '"rollback"' in a("command", "log", "work", "--json")[1]:
            a.kill()
            return
        a.open()


def test_an_interrupted_rollback_is_not_finished_by_another_host(a, hosts):
    killed_rollback(a)
    b = hosts("b")
    b.open()
    target = {**MANY, "src/app.py": "step one\n"}
    assert b.content() == target
    b.kill()
    # As before the rollback of A: on B somebody has written it.
    (b.files / "src/app.py").write_text("step two\n")
    b.open()
    assert b.content() == {**MANY, "src/app.py": "step two\n"}
    assert b("state")["drift"] == ["src/app.py"]
    # A completes the change of its own directory.
    a.open(rebind=True, on_drift="restore")
    assert a.content() == {**MANY, "src/app.py": "step two\n"}
