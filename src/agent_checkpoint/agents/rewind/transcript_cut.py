"""Decides where a conversation is cut at a rewind. Owns the rules; reads lines, never invents any.

Agents write the result of a call after its hook has run, so the transcript in a checkpoint ends
before the moment of its files. The missing lines come from a later checkpoint of the same line of
work, or from the transcript itself, if they extend the saved lines byte for byte. Some agents are
several steps behind: there the times of events and lines tell which lines were said before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from agent_checkpoint.agents.agent_events import (
    AFTER,
    BATCH,
    BEFORE,
    CLAUDE,
    CODEX,
    COPILOT,
    QWEN,
    TURN,
    moment_of,
)
from agent_checkpoint.agents.session_note import SessionNote
from agent_checkpoint.agents.transcript_lines import Conversation, Step, read_conversation, said_at
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.named_tuple import NamedTuple

_ENDS = ("Stop", "AfterAgent", "SessionEnd")
_BETWEEN = ("PreCompact", "PreCompress")


class Row(NamedTuple):
    """A checkpoint of a session, or the transcript as it is now."""

    seq: int
    note: SessionNote | None
    """None for the transcript as it is now."""
    lines: Callable[[], list[str] | None]
    """Reads the transcript."""


class Cut(NamedTuple):
    """The lines of a conversation at a moment."""

    lines: list[str]
    warning: str | None = None
    """What the lines lack."""


class _Place(NamedTuple):
    """Where a tool call stands in a transcript."""

    source: list[str]
    step: Step
    before: int
    """The end of the step before."""
    after: int
    """The line at which the next step or turn begins."""
    by_id: bool
    """Whether the call was found by its id, not by its position."""

    def holds(self, note: SessionNote, *, is_later: bool) -> bool:
        """Return whether the tool call of another checkpoint belongs to the same step."""
        if any(call.id in self.step.calls for call in note.calls):
            return True
        if not all(_has_no_place(note, call.id) for call in note.calls):
            return False
        if is_later:
            last = max(self.step.results.values(), default=len(self.source))
            return _is_before(note, self.source, last)
        return not self.before or not _is_before(note, self.source, self.before - 1)


def _is_before(note: SessionNote, lines: list[str], number: int) -> bool:
    """Return whether a checkpoint is before a line of the transcript was said."""
    said = said_at(lines[number]) if note.time is not None and number < len(lines) else None
    if said is not None and note.time is not None:
        return note.time < said
    return number >= (0 if note.transcript is None else note.transcript["lines"])


def _has_no_place(note: SessionNote, call: str | None) -> bool:
    """Return whether transcripts do not have the id of a call.

    Gemini CLI and Copilot CLI report no ids, Qwen Code others, and so does Codex in its code mode.
    """
    if call is None or note.agent == QWEN:
        return True
    return note.agent == CODEX and call.startswith("exec-")


def cut_at(
    seq: int,
    note: SessionNote,
    lines: list[str],
    later: Callable[[], Iterable[Row]],
    earlier: Callable[[], Iterable[Row]],
) -> Cut:
    """Return the conversation at the moment of a checkpoint.

    Args:
        seq: the number of the checkpoint.
        note: its note.
        lines: its transcript.
        later: returns the following checkpoints of the same line of work, oldest first, then the
            transcript as it is now if it belongs to that line.
        earlier: returns the preceding checkpoints of the line, newest first.

    Raises:
        InvalidInputError: the checkpoint is between parallel calls of one reply, where no
            conversation can continue.
        CheckpointError: a later checkpoint cannot be read.
    """
    lines = _said_until(note, lines, later())
    moment = moment_of(note.event)
    if moment == TURN:
        is_known = note.event in (*_ENDS, *_BETWEEN)
        return _cut_at_end(note, lines, later()) if is_known else Cut(lines)
    place = _find_step(note, lines, later())
    if place is not None and moment != BATCH:
        _check_not_inside(seq, note, place, later, earlier)
    if moment == BEFORE:
        if place is not None:
            return Cut(place.source[: place.step.start])
        return Cut(lines[: _start_of_open_step(note, lines)])
    if place is None or not place.step.is_complete or not _is_placed(note, place):
        return Cut(lines, _NO_RESULT)
    # Nothing is said between the step and the next one.
    end = len(lines) if place.step.end < len(lines) <= place.after else place.step.end
    return Cut(place.source[:end])


_NO_RESULT = (
    "The result of this call is in no saved transcript, so the resumed model hears that the call "
    "was interrupted."
)
_NO_REPLY = (
    "The last reply of this turn is in no saved transcript, so the resumed model does not hear it."
)


def _is_placed(note: SessionNote, place: _Place) -> bool:
    return place.by_id or all(_has_no_place(note, call.id) for call in note.calls)


def _find_step(note: SessionNote, lines: list[str], later: Iterable[Row]) -> _Place | None:
    """Return the step of a tool call, from the first transcript that completes it."""
    best = None
    for source in _sources(lines, later):
        said = read_conversation(note.agent, source, note.cwd)
        found, by_id = _step_of(note, said, len(lines))
        starts = [*said.prompts, *said.resets, *(step.start for step in said.steps)]
        if found is not None:
            index = said.steps.index(found)
            before = said.steps[index - 1].end if index else 0
            after = min((line for line in starts if line >= found.end), default=len(source))
            best = _Place(source, found, before, after, by_id)
            if found.is_complete or after < len(source):
                break
        elif max((*said.prompts, *said.resets), default=-1) >= len(lines):  # another turn
            break
    return best


def _step_of(note: SessionNote, said: Conversation, length: int) -> tuple[Step | None, bool]:
    ids = {call.id for call in note.calls if call.id}
    for step in reversed(said.steps):
        if ids & step.calls.keys():
            return step, True
    # The first step whose results were not written yet, unless another turn has begun before it.
    limit = min((line for line in said.prompts if line >= length), default=None)
    for step in said.steps:
        if step.calls and (not step.is_complete or max(step.results.values()) >= length):
            # A program in code mode, or a sub-agent, makes calls that the transcript does not have.
            is_named = note.agent in (CLAUDE, CODEX) or _is_named(note, step)
            is_same_turn = limit is None or step.start < limit
            return (step if is_named and is_same_turn else None), False
    return None, False


def _is_named(note: SessionNote, step: Step) -> bool:
    """Return whether a step has a call with the words of a checkpoint."""
    words, its_words = {call.words for call in note.calls}, set(step.calls.values())
    if note.agent == COPILOT:  # its transcript has other names of tools than its events
        words, its_words = ({one.partition(" ")[2] for one in some} for some in (words, its_words))
    return not words.isdisjoint(its_words)


def _sources(lines: list[str], later: Iterable[Row]) -> Iterator[list[str]]:
    """Return the saved lines, then all later versions that extend them byte for byte."""
    yield lines
    for row in later:
        found = row.lines()
        if found is not None and len(found) > len(lines) and found[: len(lines)] == lines:
            yield found


def _said_until(note: SessionNote, lines: list[str], later: Iterable[Row]) -> list[str]:
    """Return the lines that were said at the moment of a checkpoint, if their times tell.

    An agent may be several steps behind with writing them.
    """
    found = lines
    for source in _sources(lines, later) if note.time is not None else ():
        late = (n for n in range(len(lines), len(source)) if _is_before(note, source, n))
        end = next(late, None)
        if end is not None:
            return source[:end]
        found = source
    return found


def _start_of_open_step(note: SessionNote, lines: list[str]) -> int:
    """Return the number of lines before the reply that makes a call, which is in no transcript."""
    said = read_conversation(note.agent, lines, note.cwd)
    if not said.steps or said.steps[-1].start < max((*said.prompts, *said.resets), default=-1):
        return len(lines)
    step = said.steps[-1]
    return len(lines) if step.calls and step.is_complete else step.start


def _check_not_inside(
    seq: int,
    note: SessionNote,
    place: _Place,
    later: Callable[[], Iterable[Row]],
    earlier: Callable[[], Iterable[Row]],
) -> None:
    """Raise InvalidInputError if other calls of the same reply were made on the other side."""
    first = last = seq
    for row in _same_turn(earlier()):
        if row.note is not None and place.holds(row.note, is_later=False):
            first = row.seq
    for row in _same_turn(later()):
        if row.note is not None and place.holds(row.note, is_later=True):
            last = row.seq
    if (last if moment_of(note.event) == AFTER else first) == seq:
        return
    calls = ", ".join(dict.fromkeys(place.step.calls.values()))
    raise InvalidInputError(
        f"@{seq} is between the parallel calls of one reply ({calls}), and no conversation can "
        f"continue there. Use @{first} (before) or @{last} (after), or `--only files`."
    )


def _same_turn(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        moment = TURN if row.note is None else moment_of(row.note.event)
        if moment == TURN:
            return
        if moment != BATCH:
            yield row


def _cut_at_end(note: SessionNote, lines: list[str], later: Iterable[Row]) -> Cut:
    """Return the conversation at the end of a turn, with the reply that was written late.

    At a compaction, which may be in the middle of a turn, only a step that was begun is completed.
    """
    has_reply, last = True, Step(-1, "")
    best = lines
    for source in _sources(lines, later):
        said = read_conversation(note.agent, source, note.cwd)
        if source is lines:
            last = said.steps[-1] if said.steps else last
            is_reply = last.start > max(said.prompts, default=-1) and not last.calls
            has_reply = is_reply or said.is_empty
            continue
        if any(step.start == last.start and step.calls for step in said.steps):
            has_reply = False  # only its text was written in time
        stops = (line for line in (*said.prompts, *said.resets) if line >= len(lines))
        limit = min(stops, default=len(source))
        late = [step for step in said.steps if len(lines) < step.end <= limit]
        is_reply_due = not has_reply and note.event in _ENDS
        replies = [step for step in late if not step.calls] if is_reply_due else []
        if replies:  # after the results that were written late
            return Cut(source[: replies[0].end])
        if late and late[0].start < len(lines):
            best = source[: late[0].end]
        if limit < len(source) or (late and not is_reply_due):
            break
    is_turn = note.event in ("Stop", "AfterAgent")
    return Cut(best, None if has_reply or not is_turn else _NO_REPLY)
