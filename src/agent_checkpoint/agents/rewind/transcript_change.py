"""The change of a transcript file at a rewind. Owns staging, describing and applying it."""

from __future__ import annotations

from agent_checkpoint.agents.transcript_file import (
    Replacement,
    Transcript,
    join_lines,
    replaceable_path,
    retire,
)
from agent_checkpoint.formatting import format_count


class TranscriptChange:
    """Gives a session another conversation: the file gets other lines, or is moved away."""

    def __init__(self, path: str, lines: list[str], *, is_ended: bool = True, live: str) -> None:
        """Prepare the change; nothing is read or written yet.

        Args:
            path: the transcript to write.
            lines: its lines; the session gets no transcript if there are none.
            is_ended: whether the last line ends with a newline.
            live: the transcript that the session has now, mostly the same file.
        """
        self.path = path
        self.lines = lines
        self.live = live
        self._text = join_lines(lines, is_ended=is_ended)
        self._staged: Replacement | None = None

    def stage(self) -> None:
        """Write the lines next to the transcript. Raises StorageError."""
        replaceable_path(self.live)
        if self.lines:
            self._staged = Replacement(self.path, self._text)

    def discard(self) -> None:
        """Remove what `stage` wrote, if it was not used. Idempotent."""
        if self._staged is not None:
            self._staged.discard()

    def put(self) -> str | None:
        """Change the transcript; return the path of the previous one. Raises StorageError."""
        if self._staged is None:
            self.stage()
        kept = None if self._staged is None else self._staged.put()
        # An agent that finds two transcripts of one session may resume either.
        return retire(self.live) if self.live != self.path or not self.lines else kept

    def is_done(self, before: list[str]) -> bool:
        """Return whether the transcript has its lines already, given those before the rewind."""
        present = Transcript(self.path)
        if self.live != self.path and Transcript(self.live).read(full=True):
            return False
        if not present.read(full=True):
            return not self.lines
        now, then = list(present.lines), self.lines
        if not then or (len(before) > len(then) and now[: len(before)] == before):
            return False
        return now[: len(then)] == then  # the agent may have appended lines

    def note(self) -> dict[str, object] | None:
        """Return the record of the new transcript; None if there is none."""
        return Transcript.from_text(self.path, self._text).note() if self.lines else None

    def describe(self) -> str | None:
        """Return a description of the change; None if there is nothing to change."""
        present = Transcript(self.path)
        path, then = replaceable_path(self.path), len(self.lines)
        is_there = present.read(full=True)
        if not self.lines:
            return f"move {replaceable_path(self.live)} away: nothing was said yet"
        if not is_there:
            return f"create {path}, which is missing: {format_count(then, 'line')}"
        now = list(present.lines)
        if now == self.lines:
            return None
        if now[:then] == self.lines:
            return f"truncate {path} from {format_count(len(now), 'line')} to {then:,}"
        if self.lines[: len(now)] == now:
            return f"append {format_count(then - len(now), 'line')} to {path}"
        was = format_count(then, "line")
        return f"replace {path}, which was rewritten since, with the saved version: {was}"
