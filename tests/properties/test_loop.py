"""Agent loops that are killed at random points: every call takes effect once, whatever happens.

Ids and arguments of calls may be equal, in one message and in several, and calls that have not been
made are edited after a restart. Each result names its call, so a result that went to another call
is seen.
"""

import tempfile
from collections import Counter
from itertools import count
from pathlib import Path
from threading import Lock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agent_checkpoint import CheckpointManager, tool, transcripts
from tests.unit.session.loop.replies import PROVIDERS, USER, reply, results
from tests.unit.session.stores import Killed, killed

NAMES = ["write", "post", "blind_post", "put", "look", "fail", "mail"]
# Few tools in an example: equal calls are the hard ones.
turns = st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True).flatmap(
    lambda names: st.lists(
        st.lists(st.sampled_from(names), min_size=1, max_size=4), min_size=1, max_size=3
    )
)
points = st.sampled_from(["before", "after", "save", "saved"])
kills = st.lists(st.tuples(points, st.integers(0, 5)), min_size=1, max_size=4)


DOUBT = "outcome is unknown"


class World:
    """What the model says, what the tools change, and when the process is killed next."""

    def __init__(self, place, plan, edits):
        self.lines = place / "lines"
        self.posts = Counter()
        self.blind = Counter()
        self.puts = Counter()
        self.mails = Counter()
        self.in_doubt = Counter()
        self.asked = count()
        self.serial = count()
        self.plan = list(plan)
        self.edits = list(edits)
        self.turns = []
        """The calls of each turn."""
        self.lock = Lock()
        self.next_run()

    def next_run(self):
        self.kill = self.plan.pop(0) if self.plan else None
        self.seen = Counter()

    def reach(self, point):
        """Kill the process if this is the point."""
        with self.lock:
            number = self.seen[point]
            self.seen[point] += 1
        if self.kill == (point, number):
            raise Killed

    def tools(self):
        def step(change):
            self.reach("before")
            with self.lock:
                result = change()
            self.reach("after")
            return result

        def write(n):
            def change():
                with self.lines.open("a") as file:
                    file.write(f"{n}\n")
                return f"wrote {n} in line {len(self.lines.read_text().splitlines())}"

            return step(change)

        def fail(n):
            step(lambda: None)
            raise ValueError(f"no {n}, try {next(self.serial)}")

        @tool(effect="read")
        def look(n):
            return step(lambda: f"saw {n}, look {next(self.serial)}")

        def found(n, effect):
            return f"posted {n} as {effect.key}" if effect.key in self.posts else None

        @tool(effect="irreversible", verify=found)
        def post(n, *, effect):
            return step(lambda: self.posts.update([effect.key]) or found(n, effect))

        @tool(effect="irreversible", key=lambda n: n)
        def blind_post(n):
            return step(lambda: self.blind.update([n]) or f"posted {n} blindly")

        @tool(effect="irreversible")
        def mail(n):
            with self.lock:
                self.mails[n] += 1
            try:
                return step(lambda: f"mailed {n} as {next(self.serial)}")
            except Killed:
                self.in_doubt[n] += 1
                raise

        @tool(effect="idempotent")
        def put(n, *, effect):
            return step(lambda: self.puts.update([effect.key]) or f"put {n} at {effect.key}")

        return [write, post, blind_post, put, look, fail, mail]


def watch(session, world):
    """Let the process be killed before and after each save."""
    real, areal = session._state.save, session._state.asave

    def save(**options):
        world.reach("save")
        saved = real(**options)
        world.reach("saved")
        return saved

    session._state.save, session._state.asave = save, areal


def message(provider, calls, ids):
    """Return a message of the model; `ids` of calls: their own, repeated in each turn, none."""
    names = [f"call_{n}" if ids == "repeated" else call_id for n, (call_id, *_) in enumerate(calls)]
    said = reply(provider, *((name, *call[1:]) for name, call in zip(names, calls)))
    for part in said["parts"][1:] if ids == "none" else ():
        del part["function_call"]["id"]
    return said


def edit_the_last_call(session, world, provider, ids):
    """Change the arguments of the last open call, unless it has changed something."""
    for calls in reversed(world.turns):
        said = message(provider, calls, ids)
        said = said if isinstance(said, list) else [said]
        start = len(session.messages) - len(said)
        if session.messages[start:] == said:
            break
    else:
        return
    *others, (call_id, name, arguments) = calls
    shown = {"none": f"#{len(others)}", "repeated": f"call_{len(others)}", "own": call_id}[ids]
    if session.call_outcome(shown).status == "not-done" or name in ("look", "fail"):
        world.turns.append([*others, (call_id, name, {"n": f"{arguments['n']}*"})])
        said = message(provider, world.turns[-1], ids)
        session.messages.truncate(start)
        session.messages.extend(said if isinstance(said, list) else [said])


def run(session, world, batches, provider, parallel, ids, equal):
    """Run the loop, as the how-to page has it."""
    tools = world.tools()
    if not session.messages:
        session.messages.append(USER[provider])
    if world.edits and world.edits.pop():
        edit_the_last_call(session, world, provider, ids)
    session.run_tools(session.messages, tools, parallel=parallel)
    while True:
        done = len(results(session.messages))
        turn = next(
            (n for n in range(len(batches)) if sum(map(len, batches[:n])) == done), len(batches)
        )
        if turn == len(batches):
            return
        asked = 0 if equal == "all" else next(world.asked)  # the model repeats nothing exactly
        calls = [
            (f"c{turn}{place}", name, {"n": f"{asked}.{place if equal == 'none' else 0}"})
            for place, name in enumerate(batches[turn])
        ]
        world.turns.append(calls)
        session.run_tools(message(provider, calls, ids), tools, parallel=parallel)


@pytest.mark.slow
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    batches=turns,
    plan=kills,
    edits=st.lists(st.booleans(), max_size=4),
    provider=st.sampled_from(PROVIDERS),
    parallel=st.sampled_from([False, True, 2]),
    ids=st.sampled_from(["own", "repeated", "none"]),
    equal=st.sampled_from(["none", "in a turn", "all"]),
)
@example([["mail", "mail", "mail"]], [("after", 0)], [], "openai", False, "own", "in a turn")
@example([["mail", "mail", "mail"]], [("before", 1)], [], "openai", 2, "own", "in a turn")
@example([["look"], ["look"]], [("saved", 1)], [True], "gemini", False, "none", "all")
def test_every_call_takes_effect_once(batches, plan, edits, provider, parallel, ids, equal):
    provider = "gemini" if ids == "none" else provider
    with tempfile.TemporaryDirectory() as name:
        place = Path(name, "work")
        place.mkdir()
        world, manager = World(place, plan, edits), CheckpointManager()
        options = {"provider": provider, "workspace": place, "on_drift": "restore"}
        is_done = False
        while not is_done:
            with killed("job", manager, **options) as session:
                watch(session, world)
                run(session, world, batches, provider, parallel, ids, equal)
                is_done = True
            world.next_run()
        check(session, world, provider, ids, equal)
        session.close()


def check(session, world, provider, ids, equal):
    """Check the results by the calls of the conversation, and what the calls have done."""
    dialect = transcripts.dialect_for(provider)
    blocks = [block for one in session.messages for block in dialect.read(one, 0).blocks]
    calls = [
        (block.name, dialect.arguments(block)["n"]) for block in blocks if block.kind == "call"
    ]
    problems = transcripts.check(session.messages, provider=provider)
    assert {problem.code for problem in problems} <= ({"duplicate-id"} if ids != "own" else set())
    told = [
        result.get("error") if isinstance(result, dict) else result
        for _, result in results(session.messages)
    ]
    assert len(told) == len(calls)
    made = [(name, n) for name, n in calls if name != "blind_post"]
    lines = world.lines.read_text().split() if world.lines.exists() else []
    assert sorted(lines) == sorted(n for name, n in made if name == "write")
    assert len(world.posts) == sum(name == "post" for name, _ in made)
    assert len(world.puts) == sum(name == "put" for name, _ in made)
    assert set(world.posts.values()) <= {1}
    assert set(world.blind.values()) <= {1}
    in_doubt = Counter(
        n for (name, n), text in zip(calls, told) if name == "mail" and DOUBT in text
    )
    assert in_doubt >= world.in_doubt if equal == "all" else in_doubt == world.in_doubt
    if equal != "all":  # else a mail in doubt blocks those of later turns
        assert world.mails == Counter(n for name, n in calls if name == "mail")
    begins = {"write": "wrote {} ", "post": "posted {} ", "put": "put {} ", "look": "saw {},"}
    begins.update(fail="ValueError: no {},", mail="mailed {} ")
    for (name, n), text in zip(calls, told):
        if name == "blind_post":
            assert DOUBT in text or (text, world.blind[n]) == (
                f"posted {n} blindly",
                1,
            )
        elif name != "mail" or DOUBT not in text:
            assert text.startswith(begins[name].format(n))
    others = [
        text for (name, _), text in zip(calls, told) if name != "blind_post" and DOUBT not in text
    ]
    assert len(set(others)) == len(others)  # each call has its own result
    refs = [row["call_ref"] for row in session.calls if "call_ref" in row]
    assert len(set(refs)) == len(refs)
