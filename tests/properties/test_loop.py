"""Agent loops that are killed at random points: every call takes effect once, whatever happens."""

import tempfile
from collections import Counter
from itertools import count
from pathlib import Path
from threading import Lock

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_checkpoint import CheckpointManager, tool, transcripts
from tests.unit.session.loop.replies import PROVIDERS, USER, reply, results
from tests.unit.session.stores import Killed, killed

NAMES = ["write", "post", "blind_post", "put", "look", "fail"]
turns = st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4), min_size=1, max_size=2)
kills = st.lists(
    st.tuples(st.sampled_from(["before", "after", "save", "saved"]), st.integers(0, 6)), max_size=4
)


class World:
    """What the tools change, and the point at which the process is killed next."""

    def __init__(self, place, plan):
        self.lines = place / "lines"
        self.posts = Counter()
        self.blind = Counter()
        self.puts = {}
        self.plan = list(plan)
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
                return f"wrote {n}"

            return step(change)

        def fail(n):
            step(lambda: None)
            raise ValueError(f"no {n}")

        @tool(effect="read")
        def look(n):
            return step(lambda: f"saw {n}")

        def found(effect):
            return "posted" if effect.key in self.posts else None

        @tool(effect="irreversible", verify=found)
        def post(n, *, effect):
            return step(lambda: self.posts.update([effect.key]) or "posted")

        @tool(effect="irreversible", key=lambda n: n)
        def blind_post(n):
            return step(lambda: self.blind.update([n]) or "posted blindly")

        @tool(effect="idempotent")
        def put(n, *, effect):
            return step(lambda: self.puts.update({effect.key: n}) or "put")

        return [write, post, blind_post, put, look, fail]


def watch(session, world):
    """Let the process be killed before and after each save."""
    real, areal = session._state.save, session._state.asave

    def save(**options):
        world.reach("save")
        saved = real(**options)
        world.reach("saved")
        return saved

    session._state.save, session._state.asave = save, areal


def run(session, world, batches, provider, parallel, ids):
    """Run the loop, as the how-to page has it."""
    tools = world.tools()
    if not session.messages:
        session.messages.append(USER[provider])
    session.run_tools(session.messages, tools, parallel=parallel)
    while True:
        done = len(results(session.messages))
        turn = next(
            (n for n in range(len(batches)) if sum(map(len, batches[:n])) == done), len(batches)
        )
        if turn == len(batches):
            return
        calls = [
            (f"c{next(ids)}", name, {"n": f"{turn}.{place}"})
            for place, name in enumerate(batches[turn])
        ]
        session.run_tools(reply(provider, *calls), tools, parallel=parallel)


EXPECTED = {
    "write": "wrote",
    "post": "posted",
    "put": "put",
    "look": "saw",
    "fail": "ValueError: no",
}


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    batches=turns,
    plan=kills,
    provider=st.sampled_from(PROVIDERS),
    parallel=st.sampled_from([False, True, 2]),
)
def test_every_call_takes_effect_once(batches, plan, provider, parallel):
    with tempfile.TemporaryDirectory() as name:
        place = Path(name, "work")
        place.mkdir()
        world, manager, ids = World(place, plan), CheckpointManager(), count()
        options = {"provider": provider, "workspace": place, "on_drift": "restore"}
        is_done = False
        while not is_done:
            with killed("job", manager, **options) as session:
                watch(session, world)
                run(session, world, batches, provider, parallel, ids)
                is_done = True
            world.next_run()
        check(session, world, batches, provider)
        session.close()


def check(session, world, batches, provider):
    wanted = [
        (call, f"{turn}.{n}") for turn, calls in enumerate(batches) for n, call in enumerate(calls)
    ]
    lines = world.lines.read_text().split() if world.lines.exists() else []
    assert sorted(lines) == sorted(n for call, n in wanted if call == "write")
    assert len(world.posts) == sum(call == "post" for call, _ in wanted)
    assert set(world.posts.values()) <= {1}
    assert sorted(world.puts.values()) == sorted(n for call, n in wanted if call == "put")
    assert transcripts.check(session.messages, provider=provider) == []
    told = results(session.messages)
    assert len(told) == len(wanted)
    for (call, n), (_, result) in zip(wanted, told):
        text = result.get("error") if isinstance(result, dict) else result
        if call == "blind_post":
            assert world.blind[n] <= 1
            assert ("outcome is unknown" in text) or (text == "posted blindly" and world.blind[n])
        else:
            assert text.startswith(EXPECTED[call])
    rows = [row for row in session.calls if "call_id" in row]
    assert len({row["call_id"] for row in rows}) == len(rows)
