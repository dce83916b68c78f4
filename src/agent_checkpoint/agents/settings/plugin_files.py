"""The plug-in files of agents that have no hook settings: opencode and Cline. Owns their text."""

from __future__ import annotations

import json
import shlex

from agent_checkpoint.agents.agent_events import CLINE, OPENCODE
from agent_checkpoint.agents.settings.hook_command import store_in

_BEFORE = "// Written by `agent-checkpoint hook install {0}`; `hook uninstall {0}` removes it.\n"
_IMPORT = """\
import { spawn, spawnSync } from "node:child_process"

const COMMAND = """
_SEND = """
const send = (event) =>
  new Promise((resolve) => {
    const child = spawn("/bin/sh", ["-c", COMMAND], { stdio: ["pipe", "ignore", "ignore"] })
    child.on("error", resolve).on("close", resolve)
    child.stdin.on("error", () => {})
    child.stdin.end(JSON.stringify(event))
  })
// The agent may exit at the end of a turn, without waiting for a child process.
const sendNow = (event, timeout) =>
  spawnSync("/bin/sh", ["-c", COMMAND], {
    input: JSON.stringify(event),
    stdio: ["pipe", "ignore", "ignore"],
    timeout,
  })
const OURS = """
_OPENCODE = """
const shown = (words, then) =>
  `!\\`${OURS} rewind ${words}\\`\\n\\n` +
  `Show the text above to the user as it is. ${then}Do nothing else.`
const COMMANDS = {
  checkpoints: {
    description: "List the checkpoints of the last session in this directory",
    template: shown("", ""),
  },
  rewind: {
    description: "Show what a rewind of the files to a checkpoint would change: /rewind @N",
    template: shown(
      "$ARGUMENTS --dry-run",
      "Then say: to rewind, exit opencode and run `agent-checkpoint rewind $ARGUMENTS`. ",
    ),
  },
}

export const AgentCheckpoint = async ({ directory }) => {
  const told = (name, sessionID, more) => ({
    hook_event_name: name,
    session_id: sessionID,
    cwd: directory,
    ...more,
  })
  const call = ({ tool, sessionID, callID }, name, args) =>
    send(told(name, sessionID, { tool_name: tool, tool_use_id: callID, tool_input: args }))
  return {
    config: async (config) => {
      config.command = { ...COMMANDS, ...config.command }
    },
    "chat.message": ({ sessionID }, { parts }) => {
      const prompt = parts.map((part) => part.text ?? "").join("")
      return send(told("UserPromptSubmit", sessionID, { prompt }))
    },
    "tool.execute.before": (input, { args }) => call(input, "PreToolUse", args),
    "tool.execute.after": (input) => call(input, "PostToolUse", input.args),
    event: async ({ event }) => {
      if (event.type === "session.idle") sendNow(told("Stop", event.properties.sessionID))
    },
  }
}
"""
_CLINE = """
// Cline fails a run if a hook takes 3 seconds. A slower save goes on in its own process.
const LIMIT_MS = 2000
const sendSoon = (event) =>
  Promise.race([send(event), new Promise((resolve) => setTimeout(resolve, LIMIT_MS))])
const session = {}
const told = (name, more) => ({ hook_event_name: name, ...session, ...more })
const call = async ({ toolCall, input }, name) => {
  const { toolName, toolCallId } = toolCall
  await sendSoon(told(name, { tool_name: toolName, tool_use_id: toolCallId, tool_input: input }))
}
const textOf = ({ content }) =>
  typeof content === "string" ? content : content.map((part) => part.text ?? "").join("")

export default {
  name: "agent-checkpoint",
  manifest: { capabilities: ["hooks"] },
  setup(api, context) {
    session.session_id = context.session.sessionId
    session.cwd = context.workspaceInfo.rootPath
  },
  hooks: {
    async beforeRun({ snapshot }) {
      const last = snapshot.messages.at(-1)
      const said = last ? textOf(last).replace(/^<user_input[^>]*>|<\\/user_input>$/g, "") : ""
      await sendSoon(told("UserPromptSubmit", { prompt: said }))
    },
    beforeTool: (context) => call(context, "PreToolUse"),
    afterTool: (context) => call(context, "PostToolUse"),
    afterRun() {
      sendNow(told("Stop"), LIMIT_MS)
    },
  },
}
"""
_BODIES = {OPENCODE: _OPENCODE, CLINE: _CLINE}
PLUGIN_AGENTS = tuple(_BODIES)
"""The agents that have a plug-in file."""


def plugin_text(agent: str, command: str) -> str:
    """Return the plug-in of an agent that runs a command at every event."""
    store = store_in(command)
    # Isolated: a module of the project must not be imported instead of ours.
    ours = [*shlex.split(command)[:1], "-I", "-m", "agent_checkpoint"]
    ours += ["--store", store] if store else []
    before = f"{_BEFORE.format(agent)}{_IMPORT}{json.dumps(command)}"
    return f"{before}{_SEND}{json.dumps(shlex.join(ours))}{_BODIES[agent]}"


def command_in(agent: str, text: str) -> str | None:
    """Return the command of our plug-in, also of another version; None if it is not ours."""
    if not text.startswith(_BEFORE.format(agent)):
        return None
    line = next((line for line in text.splitlines() if line.startswith("const COMMAND = ")), "")
    try:
        return str(json.loads(line.partition(" = ")[2]))
    except ValueError:
        return ""
