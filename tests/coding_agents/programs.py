"""The published coding agents: installing them with npm, and running them, headless or not.

Each runs in a home of its own, against the scripted model. They are installed once into a cache
directory: $AGENT_CHECKPOINT_TEST_PROGRAMS, or ~/.cache/agent-checkpoint-tests.
"""

import fcntl
import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from functools import cache
from pathlib import Path
from typing import Any, Optional

import pytest

from tests.coding_agents.model_server import Ask, ModelServer, Said
from tests.coding_agents.terminal import Terminal

CACHE = Path(
    os.environ.get("AGENT_CHECKPOINT_TEST_PROGRAMS")
    or Path.home() / ".cache" / "agent-checkpoint-tests"
)
_ARCH = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
NODE = f"node-{sys.platform}-{_ARCH}@22.23.3"
_SECONDS = 600  # only against hangs
_CLOCK = re.compile(r"^<current_datetime>.*?</current_datetime>\s*")
ENDS = ("Stop", "AfterAgent", "SessionEnd")
"""Events at the end of a turn."""


def install(package: str) -> Path:
    """Install a package with npm, unless it is there; return its modules."""
    place = CACHE / package.replace("/", "+")
    problem = None if place.exists() else _install(package, place)
    if problem is not None:
        pytest.skip(problem)
    return place / "node_modules"


@cache  # without a network, npm takes a minute to say so
def _install(package: str, place: Path) -> Optional[str]:
    """Return why a package cannot be installed; None if it was."""
    npm = shutil.which("npm")
    if npm is None:
        return "needs npm, to install published coding agents"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # workers of one test run, and other test runs
        if place.exists():
            return None
        fresh = tempfile.mkdtemp(dir=CACHE)
        (Path(fresh) / "package.json").write_text("{}")
        # The install scripts only move programs that are there without them.
        command = [npm, "install", "--prefix", fresh, "--no-audit", "--no-fund"]
        command += ["--ignore-scripts", "--fetch-retries=1", package]
        done = subprocess.run(command, cwd=fresh, capture_output=True, text=True)
        if done.returncode:
            shutil.rmtree(fresh)
            return f"npm cannot install {package}: {done.stderr[-300:]}"
        os.rename(fresh, place)
    return None


def node() -> str:
    return str(install(NODE) / NODE.partition("@")[0] / "bin" / "node")


class Program:
    """One agent in a home of its own, with our hook, in one project."""

    agent = ""
    package = ""
    dialect = ""
    shell = ""
    """The name of its tool for shell commands."""

    filler: "Optional[Said]" = None
    """What the agent adds by itself to a conversation that ends with a message of the user."""

    doubles_results = False
    """Whether the agent itself tells the model each result twice after any resume."""

    rewinds_conversation = True
    """Whether the conversation is rewound, not only the files."""

    resumes = True
    """Whether it resumes a session headless, with a prompt."""

    on_terminal = False
    """Whether it runs on a terminal, not headless."""

    def __init__(self, place: Path, model: ModelServer) -> None:
        self.model = model
        self.home = place / "home"
        self.project = place / "project"
        for path in (self.home, self.project):
            path.mkdir(parents=True)
        self.session = str(uuid.uuid4())
        self.environment = {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "AGENT_CHECKPOINT_HOME": str(place / "checkpoints"),
            "AGENT_CHECKPOINT_HOOK_SECONDS": "60",
            "LANG": "C.UTF-8",
        }
        self.set_up()

    def set_up(self) -> None:
        """Install the agent, and write its settings."""
        raise NotImplementedError

    def start(self, prompt: str) -> "list[str]":
        """Return the command that starts a session."""
        raise NotImplementedError

    def resume(self, prompt: str) -> "list[str]":
        """Return the command that resumes the session."""
        raise NotImplementedError

    def begin_anew(self, prompt: str) -> "list[str]":
        """Return the command that starts a session after a rewind to the first prompt."""
        return self.start(prompt)

    def said(self, heard: "list[Said]") -> "list[Said]":
        """Return a conversation without what the agent adds by itself."""
        found: list[Said] = []
        for item in heard:
            is_again = self.doubles_results and item[0] == "result" and item in found
            if item != self.filler and not is_again:
                found.append(item)
        return found

    def ask(self, command: str) -> Ask:
        """Return the tool call of the model that runs a shell command."""
        return Ask(self.shell, {"command": command, "description": "a test"})

    def run(self, command: "list[str]", cwd: Optional[Path] = None) -> str:
        done = subprocess.run(
            command,
            cwd=cwd or self.project,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        statuses = (0, 1) if command[3:5] == ["hook", "status"] else (0,)  # 1: not reviewed yet
        assert done.returncode in statuses, (command, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def turn(self, command: "list[str]", requests: int, *, is_whole: bool = True) -> None:
        """Let the agent take a turn.

        Args:
            command: the command.
            requests: how many requests the model has heard then.
            is_whole: wait for the checkpoint at the end, too, before a terminal is closed.
        """
        if not self.on_terminal:
            self.run(command)
            return
        self.accept_terms()
        terminal = Terminal(command, self.project, self.environment)
        try:
            terminal.wait_for(lambda: len(self.model.heard) >= requests)
            if is_whole:
                terminal.wait_for(lambda: self.rows()[-1]["event"] in ENDS)
                terminal.wait_for(self.has_written)
        finally:
            terminal.close()

    def accept_terms(self) -> None:
        """Answer in advance what it asks on a terminal at the first start."""

    def has_written(self) -> bool:
        """Return whether the agent has written all that it loses if it is closed now."""
        return True

    def rows(self) -> "list[dict[str, Any]]":
        """Return the checkpoints of the session, oldest first."""
        listed = self.command("rewind", "-N", "100")
        return list(reversed(listed["checkpoints"]))

    def command(self, *words: str, cwd: Optional[Path] = None) -> Any:
        """Run our command; return its JSON."""
        ours = [sys.executable, "-m", "agent_checkpoint", *words, "--json"]
        return json.loads(self.run(ours, cwd))

    def files(self) -> "list[str]":
        return sorted(path.name for path in self.project.iterdir())

    def close(self) -> None:
        self.run([sys.executable, "-m", "agent_checkpoint", "hook", "stop"])


class ClaudeCode(Program):
    agent = "claude-code"
    package = "@anthropic-ai/claude-code@2.1.325"
    dialect = "anthropic"
    shell = "Bash"
    filler = ("model", "No response requested.")

    def set_up(self) -> None:
        modules = install(self.package) / "@anthropic-ai"
        (found,) = modules.glob("claude-code-*/claude")
        programs = self.home / "programs"
        programs.mkdir()
        (programs / "claude").symlink_to(found)
        self.environment.update(
            PATH=f"{programs}:{self.environment['PATH']}",
            ANTHROPIC_BASE_URL=self.model.url,
            ANTHROPIC_API_KEY="x",
            IS_SANDBOX="1",  # for root
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
            DISABLE_AUTOUPDATER="1",
        )

    def accept_terms(self) -> None:
        answers = {
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "bypassPermissionsModeAccepted": True,
            "customApiKeyResponses": {"approved": ["x"], "rejected": []},
            "projects": {str(self.project): {"hasTrustDialogAccepted": True}},
        }
        (self.home / ".claude.json").write_text(json.dumps(answers))

    def _command(self, *words: str) -> "list[str]":
        options = ["--dangerously-skip-permissions", "--model", "claude-sonnet-4-5"]
        return ["claude", *([] if self.on_terminal else ["-p"]), *options, *words]

    def start(self, prompt: str) -> "list[str]":
        return self._command("--session-id", self.session, prompt)

    def resume(self, prompt: str) -> "list[str]":
        return self._command("--resume", self.session, prompt)


class Codex(Program):
    agent = "codex"
    package = "@openai/codex@0.166.0"
    dialect = "openai"
    shell = "exec_command"
    trust = ("--dangerously-bypass-hook-trust",)

    def set_up(self) -> None:
        (self.program,) = install(self.package).glob("@openai/codex-*/vendor/*/bin/codex")
        self.environment["SCRIPTED_KEY"] = "x"
        self.settings = self.home / ".codex" / "config.toml"
        self.settings.parent.mkdir()
        self.settings.write_text(
            f"""\
model = "gpt-5.1"
model_provider = "scripted"

[model_providers.scripted]
name = "scripted"
base_url = "{self.model.url}/v1"
wire_api = "responses"
env_key = "SCRIPTED_KEY"
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false
"""
        )

    def accept_terms(self) -> None:
        usual = self.settings.read_text()
        if "[projects." not in usual:
            trusted = f'[projects."{self.project}"]\ntrust_level = "trusted"\n'
            self.settings.write_text(f"{usual}\n{trusted}")

    def _command(self, *words: str) -> "list[str]":
        program, bypass = str(self.program), "--dangerously-bypass-approvals-and-sandbox"
        if self.on_terminal:
            return [program, *words, bypass, *self.trust]
        return [program, "exec", *words, "--skip-git-repo-check", bypass, *self.trust, "--json"]

    def start(self, prompt: str) -> "list[str]":
        return [*self._command(), prompt]

    def resume(self, prompt: str) -> "list[str]":
        return [*self._command("resume"), self.session, prompt]

    def turn(self, command: "list[str]", requests: int, *, is_whole: bool = True) -> None:
        super().turn(command, requests, is_whole=is_whole)
        if self.on_terminal:
            self.session = self.command("rewind")["key"].partition("/")[2]

    def run(self, command: "list[str]", cwd: Optional[Path] = None) -> str:
        printed = super().run(command, cwd)
        if command[1:2] == ["exec"] and "resume" not in command:
            started = (json.loads(line) for line in printed.splitlines() if "thread_id" in line)
            self.session = next(started)["thread_id"]
        return printed

    def ask(self, command: str) -> Ask:
        return Ask(self.shell, {"cmd": command})


class GeminiCli(Program):
    agent = "gemini"
    package = "@google/gemini-cli@0.61.0"
    dialect = "google"
    shell = "run_shell_command"
    filler = ("model", "[The previous response was interrupted before it completed.]")
    doubles_results = True

    def set_up(self) -> None:
        script = install(self.package) / "@google" / "gemini-cli" / "bundle" / "gemini.js"
        self.program = [node(), str(script)]
        self.environment.update(GEMINI_API_KEY="x", GOOGLE_GEMINI_BASE_URL=self.model.url)
        settings = self.home / ".gemini" / "settings.json"
        settings.parent.mkdir()
        chosen = {
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "general": {"enableAutoUpdate": False},
            "privacy": {"usageStatisticsEnabled": False},
        }
        settings.write_text(json.dumps(chosen, indent=2))

    def _command(self, prompt: str, *words: str) -> "list[str]":
        options = ["-y", "--skip-trust", "-m", "gemini-2.5-flash"]
        return [*self.program, *options, *words, "-i" if self.on_terminal else "-p", prompt]

    def start(self, prompt: str) -> "list[str]":
        return self._command(prompt, "--session-id", self.session)

    def resume(self, prompt: str) -> "list[str]":
        return self._command(prompt, "--resume", self.session)

    def begin_anew(self, prompt: str) -> "list[str]":
        return self._command(prompt)


class QwenCode(Program):
    agent = "qwen"
    package = "@qwen-code/qwen-code@0.24.4"
    dialect = "anthropic"
    shell = "run_shell_command"

    def set_up(self) -> None:
        self.program = [node(), str(install(self.package) / ".bin" / "qwen")]
        self.environment.update(
            ANTHROPIC_API_KEY="x",
            ANTHROPIC_BASE_URL=self.model.url,
            ANTHROPIC_MODEL="claude-sonnet-4-5",
        )

    def _command(self, prompt: str, *words: str) -> "list[str]":
        how = "-i" if self.on_terminal else "-p"
        return [*self.program, "--auth-type", "anthropic", "-y", *words, how, prompt]

    def start(self, prompt: str) -> "list[str]":
        return self._command(prompt, "--session-id", self.session)

    def resume(self, prompt: str) -> "list[str]":
        return self._command(prompt, "--resume", self.session)

    def begin_anew(self, prompt: str) -> "list[str]":
        return self._command(prompt)

    def has_written(self) -> bool:
        """Return whether the last reply is in the transcript, which may be steps behind."""
        (path,) = self.home.glob(f".qwen/projects/*/chats/{self.session}.jsonl")
        said = [json.loads(line) for line in path.read_text().splitlines()]
        last = [line for line in said if line["type"] in ("user", "assistant", "tool_result")][-1]
        return last["type"] == "assistant" and "functionCall" not in json.dumps(last["message"])

    def ask(self, command: str) -> Ask:
        given = {"command": command, "description": "a test", "is_background": False}
        return Ask(self.shell, given)


class CopilotCli(Program):
    agent = "copilot"
    package = "@github/copilot@1.0.102"
    dialect = "anthropic"
    shell = "bash"

    def set_up(self) -> None:
        modules = install(self.package) / "@github"
        (self.program,) = modules.glob("copilot-linux-*/copilot")
        self.environment.update(
            COPILOT_OFFLINE="true",
            COPILOT_PROVIDER_BASE_URL=self.model.url,
            COPILOT_PROVIDER_TYPE="anthropic",
            COPILOT_PROVIDER_API_KEY="x",
            COPILOT_MODEL="claude-sonnet-4.5",
            COPILOT_AUTO_UPDATE="false",
            COPILOT_ALLOW_ALL="true",
            XDG_CACHE_HOME=str(CACHE / "cache"),  # it unpacks itself there, which takes seconds
        )

    def _command(self, prompt: str, *words: str) -> "list[str]":
        return [str(self.program), *words, "-i" if self.on_terminal else "-p", prompt]

    def start(self, prompt: str) -> "list[str]":
        return self._command(prompt, "--session-id", self.session)

    def resume(self, prompt: str) -> "list[str]":
        return self._command(prompt, "--resume", self.session)

    def said(self, heard: "list[Said]") -> "list[Said]":
        """Return a conversation without the time that it adds to each prompt."""
        return [(*item[:-1], _CLOCK.sub("", item[-1])) for item in super().said(heard)]


class OpenCode(Program):
    agent = "opencode"
    package = "opencode-ai@1.18.33"
    dialect = "anthropic"
    shell = "bash"
    rewinds_conversation = False

    def set_up(self) -> None:
        modules = install(self.package)
        self.program = modules / f"opencode-{sys.platform}-{_ARCH}" / "bin" / "opencode"
        for name in ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS"):
            self.environment[f"OPENCODE_DISABLE_{name}"] = "1"
        settings = self.home / ".config" / "opencode" / "opencode.json"
        settings.parent.mkdir(parents=True)
        model = "anthropic/claude-sonnet-4-5"
        options = {"apiKey": "x", "baseURL": f"{self.model.url}/v1"}
        chosen = {
            "autoupdate": False,
            "share": "disabled",
            "model": model,
            "small_model": model,
            "provider": {"anthropic": {"options": options}},
            "permission": {"*": "allow"},
        }
        settings.write_text(json.dumps(chosen))

    def start(self, prompt: str) -> "list[str]":
        return [str(self.program), "run", *prompt.split()]  # it quotes a prompt in one word

    def resume(self, prompt: str) -> "list[str]":
        return [str(self.program), "run", "-s", self.session, *prompt.split()]

    def turn(self, command: "list[str]", requests: int, *, is_whole: bool = True) -> None:
        super().turn(command, requests, is_whole=is_whole)
        self.session = self.command("rewind")["key"].partition("/")[2]


class Cline(Program):
    agent = "cline"
    package = "cline@3.0.65"
    dialect = "anthropic"
    shell = "run_commands"
    rewinds_conversation = False
    resumes = False

    def set_up(self) -> None:
        modules = install(self.package) / "@cline"
        self.program = modules / f"cli-{sys.platform}-{_ARCH}" / "bin" / "cline"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.environment["CLINE_HUB_PORT"] = str(free.getsockname()[1])
        # A plug-in that loads more slowly is left out.
        self.environment["CLINE_PLUGIN_IMPORT_TIMEOUT_MS"] = "120000"
        chosen = {
            "provider": "anthropic",
            "apiKey": "x",
            "model": "claude-sonnet-4-5",
            "baseUrl": f"{self.model.url}/v1",
        }
        settings = self.home / ".cline" / "data" / "settings" / "providers.json"
        settings.parent.mkdir(parents=True)
        found = {"settings": chosen, "updatedAt": "2026-11-18T00:00:00Z", "tokenSource": "manual"}
        about = {"version": 1, "lastUsedProvider": "anthropic", "modes": {}}
        settings.write_text(json.dumps({**about, "providers": {"anthropic": found}}))

    def _command(self, *words: str) -> "list[str]":
        return [str(self.program), "--json", "-P", "anthropic", *words]

    def start(self, prompt: str) -> "list[str]":
        return self._command(prompt)

    def resume(self, prompt: str) -> "list[str]":
        return self._command("--id", self.session, prompt)

    def turn(self, command: "list[str]", requests: int, *, is_whole: bool = True) -> None:
        super().turn(command, requests, is_whole=is_whole)
        self.session = self.command("rewind")["key"].partition("/")[2]

    def ask(self, command: str) -> Ask:
        return Ask(self.shell, {"commands": [command]})

    def close(self) -> None:
        """Stop the process in the background, too, which outlives a session."""
        super().close()
        for path in Path("/proc").glob("[0-9]*"):
            try:
                is_hub = b"--cline-hub-daemon" in (path / "cmdline").read_bytes()
                home = f"HOME={self.home}".encode() in (path / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if is_hub and home:
                os.kill(int(path.name), signal.SIGKILL)


class Goose(Program):
    agent = "goose"
    package = f"@aaif/goose-binary-{sys.platform}-{_ARCH}@1.52.0"
    dialect = "anthropic"
    shell = "shell"
    rewinds_conversation = False

    def set_up(self) -> None:
        name = self.package.rpartition("@")[0]
        self.program = install(self.package) / name / "bin" / "goose"
        self.environment.update(
            GOOSE_PROVIDER="anthropic",
            GOOSE_MODEL="claude-sonnet-4-5",
            GOOSE_MODE="auto",
            GOOSE_DISABLE_KEYRING="1",
            GOOSE_TELEMETRY_ENABLED="false",
            ANTHROPIC_HOST=self.model.url,
            ANTHROPIC_API_KEY="x",
        )

    def start(self, prompt: str) -> "list[str]":
        return [str(self.program), "run", "-t", prompt]

    def resume(self, prompt: str) -> "list[str]":
        return [str(self.program), "run", "--resume", "--session-id", self.session, "-t", prompt]

    def turn(self, command: "list[str]", requests: int, *, is_whole: bool = True) -> None:
        super().turn(command, requests, is_whole=is_whole)
        self.session = self.command("rewind")["key"].partition("/")[2]


PROGRAMS: "dict[str, type[Program]]" = {
    program.agent: program
    for program in (ClaudeCode, Codex, GeminiCli, QwenCode, CopilotCli, OpenCode, Cline, Goose)
}
