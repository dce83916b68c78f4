"""An agent loop with Anthropic's client. Kill it at any point and start it again: it goes on.

    pip install anthropic
    ANTHROPIC_API_KEY=… python examples/anthropic_loop.py [DIRECTORY]

The model writes lines to files in `DIRECTORY/work`, and announces what it has done in
`DIRECTORY/outbox`, which stands for a service on the network. No line is written twice.
"""

import sys
from pathlib import Path

import anthropic

from agent_checkpoint import Session, tool

MODEL = "claude-sonnet-5"
TASK = "Write one line to each of three files, and announce each in a message of its own."


def schema(name, description, *fields):
    """Describe a tool to the model."""
    properties = {field: {"type": "string"} for field in fields}
    given = {"type": "object", "properties": properties, "required": list(fields)}
    return {"name": name, "description": description, "input_schema": given}


SCHEMAS = [
    schema("append_line", "Append a line to a file.", "file", "line"),
    schema("announce", "Announce a message to everybody. It cannot be taken back.", "text"),
]


def make_tools(directory):
    """Return the tools of the agent."""
    outbox = directory / "outbox"

    def append_line(file, line):
        with (directory / "work" / file).open("a") as lines:
            lines.write(f"{line}\n")
        return f"appended to {file}"

    def find_announcement(effect):
        found = outbox.read_text() if outbox.exists() else ""
        return "announced" if effect.key in found else None

    @tool(effect="irreversible", verify=find_announcement)
    def announce(text, *, effect):
        with outbox.open("a") as messages:
            messages.write(f"{effect.key} {text}\n")
        return "announced"

    return [append_line, announce]


def run(directory):
    """Run the agent until it is done, or go on where it was; return its last message."""
    work = directory / "work"
    work.mkdir(parents=True, exist_ok=True)
    client, tools = anthropic.Anthropic(), make_tools(directory)
    with Session(
        "lines",
        provider="anthropic",
        workspace=work,
        store=directory / "store",
        on_drift="restore",
    ) as session:
        if not session.messages:
            session.messages.append({"role": "user", "content": TASK})
        session.run_tools(session.messages, tools, parallel=True)
        while session.messages[-1]["role"] == "user":
            reply = session.model(
                client.messages.create,
                model=MODEL,
                max_tokens=1024,
                tools=SCHEMAS,
                messages=session.messages,
            )
            session.run_tools(reply, tools, parallel=True)
        return session.messages[-1]["content"][0]["text"]


if __name__ == "__main__":
    print(run(Path(sys.argv[1] if len(sys.argv) > 1 else "lines")))
