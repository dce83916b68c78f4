"""A store in which every text is an injection attempt."""

import os
from contextlib import suppress
from pathlib import Path

from agent_checkpoint import CheckpointManager, Log, Session, Suspended, Workspace, tool
from agent_checkpoint.records import Draft

SCRIPT = "<script>window.owned=1;document.title='owned'</script>"
IMAGE = '"><img src=x onerror="window.owned=1">'
SVG = "'/><svg onload=window.owned=1>"
END = "</title></textarea></pre></template><script>window.owned=1</script>"
TEMPLATE = "{{ 48271 * 69621 }}{% raw %}${owned}"
LINK = "javascript:window.owned=1"
BIDI = "\u202egnp.exe\x1b[31m\x00"
ALL = (SCRIPT, IMAGE, SVG, END, TEMPLATE, LINK, BIDI)
NAMES = (b"<img src=x onerror=window.owned=1>.html", b"\xff\xfe.txt", b"a'\"b.js", b"{{x}}")
KEY = f"key {SCRIPT}{IMAGE}"
SESSION = f"session {SVG}{END}"


class Odd:
    """An agent whose fields have odd names."""

    def __init__(self) -> None:
        self.fields = {text: [text, {text: text}] for text in ALL}

    def state_dict(self) -> dict:
        return dict(self.fields)

    def load_state_dict(self, state: dict) -> None:
        self.fields = dict(state)


@tool(effect="irreversible", key=lambda title, **_: title)
def shout(title: str, body: dict) -> str:
    return SCRIPT


@tool(effect="irreversible", key=lambda title, **_: title)
def vanish(title: str) -> str:
    raise TimeoutError(SCRIPT)


def make_hostile(store: Path, files: Path) -> None:
    """Fill a store."""
    files.mkdir()
    for name in (
        b"<img src=x onerror=window.owned=1>.html",
        b"\xff\xfe.txt",
        b"a'\"b.js",
        b"{{x}}",
    ):
        Path(os.fsdecode(os.path.join(os.fsencode(files), name))).write_bytes(END.encode())
    (files / "page.html").write_text(f"<html>{SCRIPT}</html>")
    (files / "pic.svg").write_text(f'<svg xmlns="http://www.w3.org/2000/svg">{SCRIPT}</svg>')
    os.symlink(LINK, files / "link")
    with CheckpointManager(backend="sqlite", path=store, durability="fast") as manager:
        messages: Log = Log()
        for text in ALL:
            messages.append({"role": text, "content": text})
            messages.append({"role": "assistant", "content": [{"type": "text", "text": text}]})
            messages.append({"role": "user", "content": [{"type": "tool_use", "name": text}]})
            messages.append(text)
        workspace = Workspace(files, manager.store, watch=False)
        parts = {"agent": Odd(), IMAGE: Odd(), "messages": messages, "workspace": workspace}
        for text in ALL:
            manager.save(KEY, parts, label=text, tags=[text, "plain"], metrics={text: 1.0})
        (files / "page.html").write_text(f"<html>{IMAGE}</html>")
        manager.save(KEY, {**parts, "agent": _Changed()}, label=SCRIPT)
        manager.fork(KEY, f"{KEY}{SVG}")
        head = manager.store.head(KEY)
        assert head is not None
        manager.store.write(Draft(KEY, head.parts, kind=SCRIPT[:40], label=END, source=head))
        manager.store.write(
            Draft(KEY, head.parts, kind="rollback", source=head), parents=(IMAGE, head.id)
        )
        _session(manager)


class _Changed(Odd):
    def state_dict(self) -> dict:
        return {f"{text}!": text for text in ALL}


def _session(manager: CheckpointManager) -> None:
    @tool(effect="irreversible", key=lambda title, **_: title, approve=True)
    def ask(title: str, body: dict) -> str:
        return title

    with suppress(Suspended), Session(SESSION, store=manager) as session:
        for task in session.tasks([SCRIPT, IMAGE]):
            with task:
                task.note = SVG
                task.result = {END: END}
                shout(f"{task.id} {SCRIPT}", body={SCRIPT: IMAGE})
        with suppress(TimeoutError):
            vanish(SCRIPT)
        ask(SCRIPT + END, body={IMAGE: [SVG, END]})
