"""The plug-in file of opencode, which has no hook settings. Owns its text."""

from __future__ import annotations

import json

_BEFORE = """\
// Written by `agent-checkpoint hook install opencode`; `hook uninstall opencode` removes it.
import { spawn, spawnSync } from "node:child_process"

const COMMAND = """
_AFTER = """

export const AgentCheckpoint = async ({ directory }) => {
  const told = (name, sessionID, more) =>
    JSON.stringify({ hook_event_name: name, session_id: sessionID, cwd: directory, ...more })
  const send = (event) =>
    new Promise((resolve) => {
      const child = spawn("/bin/sh", ["-c", COMMAND], { stdio: ["pipe", "ignore", "ignore"] })
      child.on("error", resolve).on("close", resolve)
      child.stdin.on("error", () => {})
      child.stdin.end(event)
    })
  const call = ({ tool, sessionID, callID }, name, args) =>
    send(told(name, sessionID, { tool_name: tool, tool_use_id: callID, tool_input: args }))
  return {
    "chat.message": ({ sessionID }, { parts }) => {
      const prompt = parts.map((part) => part.text ?? "").join("")
      return send(told("UserPromptSubmit", sessionID, { prompt }))
    },
    "tool.execute.before": (input, { args }) => call(input, "PreToolUse", args),
    "tool.execute.after": (input) => call(input, "PostToolUse", input.args),
    event: async ({ event }) => {
      if (event.type !== "session.idle") return
      // opencode may exit now, without waiting for a child process.
      const input = told("Stop", event.properties.sessionID)
      spawnSync("/bin/sh", ["-c", COMMAND], { input, stdio: ["pipe", "ignore", "ignore"] })
    },
  }
}
"""


def plugin_text(command: str) -> str:
    """Return the plug-in that runs a command at every event."""
    return f"{_BEFORE}{json.dumps(command)}{_AFTER}"


def command_in(text: str) -> str | None:
    """Return the command of our plug-in, also of another version; None if it is not ours."""
    if not text.startswith(_BEFORE.partition("\n")[0]):
        return None
    line = next((line for line in text.splitlines() if line.startswith("const COMMAND = ")), "")
    try:
        return str(json.loads(line.partition(" = ")[2]))
    except ValueError:
        return ""
