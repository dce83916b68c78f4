"""Runs random agent loops, each killed and interrupted at random lines until it is done.

    python -m tests.crash.loop_storm FIRST COUNT

Each seed has its own provider, tools, batches and way to run them: in threads, on an event loop,
with sub-agents, approvals that are answered between the runs, and redaction. Prints what is wrong:
a call that took effect twice or not at all, a result of another call, a conversation that the API
refuses. Every process is a fork of this one, which has no session.
"""

import asyncio
import itertools
import os
import random
import signal
import sys
import tempfile
import threading
import traceback
from collections import Counter
from pathlib import Path

import agent_checkpoint
from agent_checkpoint import Approvals, Checkpointable, Session, Suspended, tool, transcripts
from tests.unit.session.loop.replies import PROVIDERS, USER, reply, results

TRACED = tuple(str(Path(agent_checkpoint.__file__).parent / name) for name in ("session", "store"))
LOCAL = ("write", "outer")
TOOLS = [*LOCAL, "post", "mail", "pay", "ask", "fail", "research"]
WORDS = dict(zip(TOOLS, ["wrote", "outer", "posted", "mailed", "paid", "asked", "no", "found"]))
KILLS = 10


class Notes(Checkpointable):
    def __init__(self):
        self.lines = []


class World:
    """The plan of a seed, and what is outside of the session: files with a line for each effect."""

    def __init__(self, seed, place):
        chance = self.chance = random.Random(seed)
        self.seed, self.place, self.work = seed, place, place / "work"
        self.work.mkdir()
        self.provider = chance.choice(PROVIDERS)
        self.is_async = chance.random() < 0.5
        self.parallel = chance.choice([False, True, 2])
        self.redact = chance.choice([None, "secrets", "[0-9a-f]{12,}"])
        self.repeats_ids = chance.random() < 0.5
        names = chance.sample(TOOLS, chance.randint(2, 4))
        self.batches = self.plan(chance, names)
        if self.parallel and "research" in names:  # a sub-agent saves a part of local calls beside
            self.batches = [[n for n in b if n not in LOCAL] or ["mail"] for b in self.batches]

    @staticmethod
    def plan(chance, names):
        return [chance.choices(names, k=chance.randint(1, 4)) for _ in range(chance.randint(1, 3))]

    def add(self, name, line):
        file = os.open(self.place / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{line}\n".encode())
        os.close(file)

    def lines(self, name):
        path = self.place / name
        return path.read_text().splitlines() if path.exists() else []

    def open(self):
        options = {"store": self.place / "store", "provider": self.provider, "redact": self.redact}
        return Session("job", agent=Notes(), workspace=self.work, on_drift="restore", **options)

    def tools(self, session):
        lock = threading.Lock()

        def change(n):
            with lock, (self.work / "lines").open("a") as file:
                file.write(f"{n}\n")
                session.agent.lines.append(n)

        def outside(name, word, **options):
            @tool(effect="irreversible", name=name, **options)
            def effect(n):
                self.add(name, n)
                return f"{word} {n}"

            return effect

        def found(n):
            return f"posted {n}" if n in self.lines("post") else None

        def write(n):
            change(n)
            return f"wrote {n}"

        def fail(n):
            raise ValueError(f"no {n}")

        ask = outside("ask", "asked", approve=True)

        def outer(n):
            change(n)
            return f"outer {n}: {ask(f'{n} inner')}"

        async def research(n):
            async with session.subagent(f"on {n}") as child:
                if not child.finished:
                    names = [name for name in tools if name not in (*LOCAL, "research")]
                    plan = self.plan(random.Random(f"{self.seed} {n}"), names)
                    await self.loop(child, plan, {name: tools[name] for name in names}, f"{n}-")
                    child.result = f"found {n}"
            return child.result

        tools = {"write": write, "outer": outer, "fail": fail, "ask": ask}
        tools.update(post=outside("post", "posted", verify=found), mail=outside("mail", "mailed"))
        tools.update(pay=outside("pay", "paid", key=lambda n: n))
        tools["research"] = research if self.is_async else lambda n: run_at_once(research(n))
        return tools

    async def loop(self, agent, batches, tools, prefix=""):
        if not agent.messages:
            agent.messages.append(USER[self.provider])
        message = agent.messages
        while message is not None:
            if self.is_async:
                await agent.arun_tools(message, tools, parallel=self.parallel)
            else:
                agent.run_tools(message, tools, parallel=self.parallel)
            message = self.ask_model(agent, batches, prefix)

    def ask_model(self, agent, batches, prefix):
        """Return the next message of the model, which repeats no arguments; None at the end."""
        done = len(results(agent.messages))
        turn = next((t for t in range(len(batches)) if sum(map(len, batches[:t])) == done), None)
        if turn is None:
            return None
        number = len(self.lines("asked"))
        self.add("asked", prefix)
        return reply(
            self.provider,
            *(
                (
                    f"call_{k if self.repeats_ids else f'{number}_{k}'}",
                    name,
                    {"n": f"{prefix}{number}.{k}"},
                )
                for k, name in enumerate(batches[turn])
            ),
        )

    def run(self, at, is_killed):
        """Run the program in a fork, until the n-th line; return its exit status, or None."""
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                trace(at, is_killed)
                with self.open() as session:
                    run = asyncio.run if self.is_async else run_at_once
                    run(self.loop(session, self.batches, self.tools(session)))
                status = 0
            except (Suspended, KeyboardInterrupt):
                status = 2
            except BaseException:
                sys.settrace(None)
                traceback.print_exc(file=sys.stdout)
            finally:
                sys.stdout.flush()
                os._exit(status)
        status = os.waitpid(pid, 0)[1]
        return None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def answer(self):
        with Approvals(self.place / "store") as approvals:
            for request in approvals.pending():
                if self.chance.random() < 0.7:
                    approvals.approve(request.id)
                else:
                    approvals.deny(request.id, "no")

    def wrong(self):
        """Return what is wrong at the end."""
        found = []
        with self.open() as session:
            agents = [session]
            agents += [session.subagent(f"on {n}") for n in self.names_of_children(session)]
            for agent in agents:
                found += self.wrong_results(agent)
            local = Counter(n for name, n, _ in self.calls(session) if name in LOCAL)
            lines = (self.work / "lines").read_text().split() if local else []
            if not Counter(lines) == Counter(session.agent.lines) == local:
                found.append(f"{lines}, {session.agent.lines} for {local}")
        for name in ("mail", "post", "pay", "ask"):
            found += [
                f"{name} {n}: {k} times" for n, k in Counter(self.lines(name)).items() if k > 1
            ]
        return found

    def names_of_children(self, session):
        return [n for name, n, text in self.calls(session) if name == "research"]

    def calls(self, agent):
        """Return tool, argument and result of each call of a conversation."""
        dialect = transcripts.dialect_for(self.provider)
        blocks = [block for one in agent.messages for block in dialect.read(one, 0).blocks]
        calls = [block for block in blocks if block.kind == "call"]
        told = [str(result) for _, result in results(agent.messages)]
        assert len(calls) == len(told), (calls, told)
        return [(c.name, dialect.arguments(c)["n"], text) for c, text in zip(calls, told)]

    def wrong_results(self, agent):
        problems = transcripts.check(agent.messages, provider=self.provider)
        yield from (str(one) for one in problems if one.code != "duplicate-id")
        for name, n, text in self.calls(agent):
            is_open = "unknown" in text or "denied" in text
            if not is_open and f"{WORDS[name]} {n}" not in text:
                yield f"{name} {n} has the result {text}"
            if not is_open and name in ("mail", "post", "pay", "ask") and n not in self.lines(name):
                yield f"{name} {n} was not made"


def run_at_once(coroutine):
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value


def trace(at, is_killed):
    """Kill or interrupt this process at the n-th line of the package that it executes."""
    counter = itertools.count(1)
    main = threading.main_thread()

    def line(frame, event, _):
        is_counted = event == "line" and (is_killed or threading.current_thread() is main)
        if is_counted and next(counter) == at:
            if is_killed:
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyboardInterrupt
        return line

    def call(frame, event, _):
        return line if frame.f_code.co_filename.startswith(TRACED) else None

    if at:
        threading.settrace(call)
        sys.settrace(call)


def main():
    first, count = map(int, sys.argv[1:])
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory() as name:
            world = World(seed, Path(name))
            for number in range(100):
                at = int(10 ** world.chance.uniform(1.5, 4.3)) if number < KILLS else 0
                status = world.run(at, is_killed=world.chance.random() < 0.7)
                if status in (0, 1):
                    break
                if status == 2 or world.chance.random() < 0.3:
                    world.answer()
            for words in ["it failed"] if status else world.wrong():
                print(f"seed {seed}: {words}", flush=True)


if __name__ == "__main__":
    main()
