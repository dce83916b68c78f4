"""`revert` in random histories: exact where steps are apart, a conflict where they overlap."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_checkpoint import CheckpointManager, RevertConflictError, Session
from agent_checkpoint.session.current_session import as_current
from tests.unit.trajectory.trajectories import delete, rename, shell, write

LENGTH = 12
common = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@st.composite
def disjoint_hunks(draw):
    """Draw changes of separate ranges of a text; neighbouring ones are among them.

    An insertion beside a removed line, or beside another insertion, is left out: without the step,
    nothing says which of the two comes first.
    """
    hunks, at = [], 0
    while at < LENGTH and len(hunks) < 5:
        at += draw(st.integers(0, 2))
        kind = draw(st.sampled_from(["replace", "grow", "remove", "insert"]))
        size = 0 if kind == "insert" else draw(st.integers(1, 2))
        if at + size > LENGTH:
            break
        last = hunks[-1] if hunks else None
        if (
            last
            and last[1] == at
            and {kind, last[3]} & {"insert"}
            and "replace"
            not in (
                kind,
                last[3],
            )
        ):
            at += 1
            continue
        number = {"replace": size, "grow": size + 1, "remove": 0, "insert": 1}[kind]
        hunks.append((at, at + size, [f"new {len(hunks)}.{n}" for n in range(number)], kind))
        at += size
        if kind == "insert":
            at += 1
    order = draw(st.permutations(range(len(hunks))))
    return [hunks[index] for index in order]


def text_with(hunks, end, final):
    lines, done = [], 0
    base = [f"line {number}" for number in range(LENGTH)]
    for start, stop, new, _ in sorted(hunks):
        lines += [*base[done:start], *new]
        done = stop
    return end.join([*lines, *base[done:]]) + (end if final else "")


histories = st.tuples(
    disjoint_hunks(),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.integers(0, 4),
    st.lists(st.sampled_from(["rename", "chmod", "other", "resave"]), max_size=3),
)


def play(session, hunks, end, final, extra, without=None):
    """Make the changes one step at a time; return the checkpoints of the steps."""
    name, steps, made = "f", [], []
    with as_current(session._tools):
        write(name, text_with([], end, final))
        for number, hunk in enumerate(hunks):
            made.append(hunk)
            if number != without:
                kept = [one for index, one in enumerate(made) if index != without]
                write(name, text_with(kept, end, final))
            steps.append(session.head)
            for what in extra if number == len(hunks) // 2 else ():
                if what == "rename":
                    rename(name, f"{name}x")
                    name = f"{name}x"
                elif what == "chmod":
                    shell(f"chmod 700 {name}")
                elif what == "other":
                    write("d/other", str(number))
                else:
                    session.save()
    return steps


def files(place):
    return {
        str(path.relative_to(place)): (path.read_bytes(), path.stat().st_mode & 0o777)
        for path in place.rglob("*")
        if path.is_file()
    }


def meet_at_the_end(hunks):
    """Whether another change is beside one that moves the end of a text without a final newline.

    That one changes the line before it, too: it gets or loses its newline.
    """
    for start, stop, _, kind in hunks:
        if stop == LENGTH and kind in ("insert", "remove"):
            others = [hunk for hunk in hunks if hunk[:2] != (start, stop)]
            if any(other[1] >= start for other in others):
                return True
    return False


def check_disjoint(history):
    hunks, end, final, chosen, extra = history
    if not hunks or (not final and meet_at_the_end(hunks)):
        return
    chosen %= len(hunks)
    found = []
    with tempfile.TemporaryDirectory() as name, CheckpointManager() as manager:
        for without in (None, chosen):
            place = Path(name) / str(without)
            place.mkdir()
            session = Session(f"s{without}", workspace=place, store=manager)
            steps = play(session, hunks, end, final, extra, without)
            if without is None:
                report = session.revert(steps[chosen])
                assert report.conflicts == []
            session.close()
            found.append(files(place))
    assert found[0] == found[1]


@given(histories)
@settings(max_examples=25, **common)
def test_without_a_step_it_is_the_history_without_it(history):
    check_disjoint(history)


@pytest.mark.slow
@given(histories)
@settings(max_examples=500, **common)
def test_without_a_step_it_is_the_history_without_it_500_times(history):
    check_disjoint(history)


@st.composite
def overlapping(draw):
    start = draw(st.integers(0, LENGTH - 2))
    stop = draw(st.integers(start + 1, LENGTH))
    other_start = draw(st.integers(max(0, start - 2), stop - 1))
    other_stop = draw(st.integers(max(start, other_start) + 1, LENGTH))
    between = draw(st.sampled_from(["nothing", "rename", "delete", "chmod"]))
    flags = [draw(st.booleans()) for _ in range(3)]
    return start, stop, other_start, other_stop, *flags, between


def check_overlap(case):
    start, stop, other_start, other_stop, removes, crlf, final, between = case
    end = "\r\n" if crlf else "\n"
    base = [f"line {number}" for number in range(LENGTH)]
    first = [*base[:start], *(f"step {n}" for n in range(stop - start)), *base[stop:]]
    new = [] if removes else ["later"]
    second = [*first[:other_start], *new, *first[other_stop:]]
    with tempfile.TemporaryDirectory() as name, CheckpointManager() as manager:
        place = Path(name)
        with Session("s", workspace=place, store=manager) as session:
            last = end if final else ""
            for lines in (base, first):
                write("f", end.join(lines) + last)
            step, name = session.head, "f"
            if between == "rename":
                name = "g"
                rename("f", name)
            elif between == "delete":  # and made again
                delete("f")
            elif between == "chmod":
                shell("chmod 755 f")
            write(name, end.join(second) + last)
            before = files(place)
            with pytest.raises(RevertConflictError):
                session.revert(step)
            assert files(place) == before


@given(overlapping())
@settings(max_examples=25, **common)
def test_overlapping_changes_always_conflict(case):
    check_overlap(case)


@pytest.mark.slow
@given(overlapping())
@settings(max_examples=300, **common)
def test_overlapping_changes_conflict_300_times(case):
    check_overlap(case)
