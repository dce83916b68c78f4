"""With `redact=`, a planted secret of each kind is in no file of the store, at any depth."""

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from agent_checkpoint import CheckpointManager, Log, Session, Suspended, tool
from tests.agents import Agent
from tests.secrets_of_each_kind import CORES, SECRETS, places

around = st.sampled_from(["", " ", "\n", '"', "'", "(", "é ", "x = ", "\\n", "\u2028"])
plain = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=20))


def planted(secret: str, with_logs: bool = True) -> "st.SearchStrategy[Any]":
    """Return values that have the secret at some depth, among others."""
    text = st.builds(lambda a, b: f"{a}{secret}{b}", around, around)
    leaf = st.one_of(text, text.map(str.encode), text.map(lambda value: value * 1 + "y" * 2000))

    def wrap(inner: "st.SearchStrategy[Any]") -> "st.SearchStrategy[Any]":
        return st.one_of(
            st.tuples(plain, inner),
            st.lists(plain, max_size=3).flatmap(lambda rest: inner.map(lambda it: [*rest, it])),
            inner.map(lambda it: {"content": it}),
            st.tuples(plain, inner).map(lambda pair: {(1, "a"): pair}),
            text.map(lambda key: {key: 1, "b": 2}),
            inner.map(lambda it: Log([1, it]) if with_logs else [it]),
        )

    return st.recursive(leaf, wrap, max_leaves=4)


@pytest.mark.parametrize("kind", SECRETS)
def test_each_kind(kind: str) -> None:
    check(kind, "sqlite", [f"a {SECRETS[kind]}"], {"x": SECRETS[kind]}, (SECRETS[kind].encode(),))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sqlite", "file"])
@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.sampled_from(list(SECRETS)), st.data())
def test_a_planted_secret_is_in_no_file(backend: Any, kind: str, data: st.DataObject) -> None:
    value, result = (data.draw(planted(SECRETS[kind])) for _ in range(2))
    argument = data.draw(planted(SECRETS[kind], with_logs=False))  # a log is refused there
    check(kind, backend, value, argument, result)


def check(kind: str, backend: Any, value: Any, argument: Any, result: Any) -> None:
    """Run a session with a secret everywhere, and look for it in the store."""

    @tool(name=f"local {kind}")
    def local(given: Any) -> Any:
        return result

    @tool(name=f"failing {kind}")
    def failing(given: Any) -> Any:
        raise ValueError(str(result))

    @tool(effect="idempotent", name=f"outside {kind}")
    def outside(given: Any) -> Any:
        return result

    @tool(effect="irreversible", approve=True, name=f"approved {kind}")
    def approved(given: Any) -> Any:
        return result

    with TemporaryDirectory() as name:
        folder = Path(name) / "store"
        with CheckpointManager(backend=backend, path=folder, redact="secrets") as manager:
            agent = Agent()
            agent.memory = [value]
            with Session("k", agent=agent, store=manager) as session:
                session.messages.append({"content": value})
                (task,) = session.tasks(["one"])
                with task:
                    task.note, task.result = str(value), result
                    local(argument)
                    outside(argument)
                    with suppress(ValueError):
                        failing(argument)
                    with suppress(Suspended):
                        approved(argument)
                session.save(label=f"<{SECRETS[kind]}>", tags=[SECRETS[kind]])
                (request,) = session.approvals.pending()
                session.approvals.deny(request.id, SECRETS[kind], by=SECRETS[kind])
                session.messages.append(value)
                session.save()
            assert places(manager, CORES[kind], folder) == []  # while open: with its log
        assert [path for path in folder.rglob("*") if path.is_file()]
