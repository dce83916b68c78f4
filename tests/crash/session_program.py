"""An agent with ten tasks that may be killed at any moment: see `test_session_killed`.

It says on its standard output how far it is, so that a test can tell where it was killed. Run it
again, and it goes on; it ends by itself when all is done.
"""

import argparse
import json
import os
import subprocess
from pathlib import Path
from urllib.request import Request, urlopen

from agent_checkpoint import Checkpointable, Session, tool
from agent_checkpoint.errors import EffectUnknownError

KEY = "ten tasks"
TASKS = [f"task {number}" for number in range(1, 11)]
UNKNOWN = ("unknown", "undoing")

_url = ""


class Worker(Checkpointable):
    def __init__(self):
        self.done = []
        self.total = 0
        self.plans = {}


class Diary(Checkpointable):
    """A further part."""

    def __init__(self):
        self.lines = []


def ask(method, path, body=None, key=""):
    """Ask the server outside, and return what it says."""
    request = Request(
        _url + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Idempotency-Key": key},
        method=method,
    )
    with urlopen(request, timeout=20) as reply:
        return json.load(reply)


# -- tools ---------------------------------------------------------------------------------------


@tool
def write(path, text):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
    return len(text)


@tool
def append(path, text):
    with open(path, "a") as file:
        file.write(text)


@tool
def shell(command):
    return subprocess.run(
        ["/bin/sh", "-ec", command], check=True, capture_output=True, text=True
    ).stdout


@tool(effect="read")
def prices():
    return ask("GET", "/prices")


@tool(effect="idempotent")
def put(name, value, *, effect):
    return ask("PUT", f"/values/{name}", {"value": value}, effect.key)


@tool(effect="irreversible")
def mail(subject, *, effect):
    return ask("POST", "/mails", {"subject": subject}, effect.key)


def find_parcel(address, effect):
    return ask("GET", f"/parcels/{effect.key}")


@tool(effect="irreversible", key=lambda address: address, verify=find_parcel)
def send_parcel(address, *, effect):
    return ask("POST", f"/parcels/{effect.key}", {"address": address}, effect.key)


def cancel(room, effect):
    ask("DELETE", f"/rooms/{room}", key=effect.key)


@tool(effect="reversible", undo=cancel)
def book(room, *, effect):
    return ask("POST", f"/rooms/{room}", {}, effect.key)


@tool(effect="reversible", undo=cancel, verify=lambda room: ask("GET", f"/rooms/{room}"))
def book_surely(room, *, effect):
    return ask("POST", f"/rooms/{room}", {}, effect.key)


# -- a person --------------------------------------------------------------------------------------


class Person:
    """Looks at the server and says what happened; notes each thing that was reported."""

    def __init__(self, session, reports):
        self.session = session
        self.reports = reports

    def look(self, effect):
        told = [notice for notice in self.session.notices if effect.id in notice]
        assert len(told) == 1, (effect, self.session.notices)
        from agent_checkpoint.session.effects.approvals import arguments_of

        arguments = arguments_of(self.session._state.ledger, effect)
        if effect.tool == "mail":
            found = ask("GET", f"/mails/{self._number_of(effect)}")
        else:
            found = ask("GET", f"/rooms/{arguments['room']}")
        with open(self.reports, "a") as file:
            file.write(json.dumps([effect.id, effect.tool, found is not None, told[0]]) + "\n")
        self.session.resolve(effect.id, happened=found is not None, result=found, note="looked")

    def _number_of(self, effect):
        """Return the idempotency key under which the server knows a mail."""
        from agent_checkpoint.session.effects.effect_context import EffectContext

        return EffectContext(effect, self.session._state.ledger.lineage).key

    def look_at_all(self):
        for effect in self.session.effects:
            if effect.status in UNKNOWN and effect.kind != "idempotent":  # that is done again
                self.look(effect)

    def asked(self, function, **arguments):
        """Call a tool; if nobody knows, find out, and call again."""
        try:
            return function(**arguments)
        except EffectUnknownError as error:
            (unknown,) = [item for item in self.session.effects if item.id in str(error)]
            self.look(unknown)
        return function(**arguments)


# -- the work --------------------------------------------------------------------------------------


def work(session, task, number, person):
    agent, diary = session.agent, session._state.parts["diary"]
    folder = f"d{number % 3}"
    session.messages.append({"role": "user", "content": f"do {task.id}"})
    agent.plans[task.id] = {"steps": list(range(number)), "tuple": (number, "é")}
    write(f"out/{number}.txt", f"{task.id}\n" * number)
    append("log.txt", f"begun {number}\n")
    shell(
        f"echo line {number} >> log.txt; mkdir -p {folder}; mv out/{number}.txt {folder}; "
        f"ln -sf ../log.txt {folder}/link; chmod 6{number % 8}4 {folder}/{number}.txt"
    )
    agent.total += prices()["price"] * number
    if number in (1, 4, 9):
        person.asked(put, name=f"value-{number}", value=number)
    if number in (2, 5):
        for _ in range(2):  # two that are meant twice
            session.messages.append(person.asked(mail, subject=f"news {number}"))
    if number in (3, 8):
        agent.plans["parcel"] = person.asked(send_parcel, address=f"street {number}")
    if number in (4, 7):
        agent.plans["room"] = person.asked(book if number == 4 else book_surely, room=f"{number}")
    if number in (6, 10):
        change_the_mind(session, number, person)
    shell(f"sed -i 's/begun {number}$/done {number}/' log.txt; rm -f {folder}/{number - 3}.txt")
    diary.lines.append(f"{task.id}: {agent.total}")
    agent.done.append(task.id)
    task.result = {"total": agent.total}
    session.messages.append({"role": "assistant", "content": f"did {task.id}"})


def change_the_mind(session, number, person):
    """Do what turns out to be wrong, and go back: files, state, and what was done outside."""
    good = session.save(label=f"before {number}")
    session.messages.append({"role": "assistant", "content": "a bad idea"})
    shell("rm -rf d0 d1 log.txt; echo bad > bad.txt")
    person.asked(book if number == 6 else book_surely, room=f"bad-{number}")
    session.agent.total = -1
    print("restoring", flush=True)
    report = session.rollback(to=good, effects="compensate")
    print("working", flush=True)
    assert [effect.tool for effect in report.compensated] in (["book"], ["book_surely"]), report
    assert not report.notices, report.notices


def main():
    global _url
    parser = argparse.ArgumentParser()
    parser.add_argument("store", type=Path)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("url")
    parser.add_argument("reports", type=Path)
    parser.add_argument("--every", default="tool")
    parser.add_argument("--look-first", action="store_true")
    given = parser.parse_args()
    _url = given.url
    every = int(given.every) if given.every.isdigit() else given.every
    print("opening", flush=True)
    session = Session(
        KEY,
        agent=Worker(),
        parts={"diary": Diary()},
        workspace=given.workspace,
        store=given.store,
        every=every,
    )
    os.chdir(given.workspace)
    with session:
        person = Person(session, given.reports)
        if given.look_first:
            person.look_at_all()
        print("restoring", flush=True)
        tasks = session.tasks(TASKS)
        print("working", flush=True)
        for task in tasks:
            with task:
                work(session, task, TASKS.index(task.id) + 1, person)
        print("closing", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main()
