"""`completion`: shell completion scripts, generated from the parsers; the names of a store.

The scripts call `completion names` for keys, checkpoints, requests and effects. A store may hold
any text, so only names without characters that are special in a shell are completed.
"""

from __future__ import annotations

import re
from argparse import Action
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from agent_checkpoint.cli.args import NAME, Args, Parser, parser_of
from agent_checkpoint.cli.command_table import COMMANDS
from agent_checkpoint.cli.effect_output import all_ledgers
from agent_checkpoint.cli.output import CommandResult
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.store.ledger.ledger_status import UNDOING, UNKNOWN

if TYPE_CHECKING:
    from agent_checkpoint.manager.manager import CheckpointManager

EXAMPLES = """
agent-checkpoint completion bash >> ~/.bashrc
agent-checkpoint completion zsh > ~/.zfunc/_agent-checkpoint
agent-checkpoint completion fish > ~/.config/fish/completions/agent-checkpoint.fish
"""
SHELLS = ("bash", "zsh", "fish")
_NAMES = "names"
_PLAIN = re.compile(r"[\w./:@%+=,][\w./:@%+=,~-]*", re.ASCII)
_MOST = 50
"""Checkpoints of a key that are completed, newest first."""
_TAKES_NAMES = {"KEY", "ID", "A", "B", "KEY|ID"}
"""Names of arguments that are keys or checkpoints."""


class _Command(NamedTuple):
    name: str
    help: str
    options: list[Action]
    words: list[str]
    """Choices of positional arguments."""
    has_names: bool
    """Whether an argument is a key or a checkpoint."""


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "shell",
        choices=(*SHELLS, _NAMES),
        help="the shell; names: print the keys and checkpoints that start with PREFIX",
    )
    parser.add("--after", "WORDS", "names: the command and its verb, such as 'effects resolve'")
    parser.add_argument("prefix", nargs="?", default="", metavar="PREFIX", help="names: the prefix")


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Generate the script, or list names."""
    if args.shell == _NAMES:
        found: list[str] = []
        with suppress(CheckpointError, OSError), location.manager() as manager:
            ids = _find_ids(manager, args.after or "")
            names = ids if ids is not None else _find_names(manager, location, args.prefix)
            found.extend(
                name
                for name in dict.fromkeys(names)
                if name.startswith(args.prefix) and _PLAIN.fullmatch(name)
            )
        return CommandResult({"names": found}, lambda out: out.line("\n".join(found)))
    script = {"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](_commands())
    return CommandResult({"shell": args.shell, "script": script}, lambda out: out.line(script))


def _find_ids(manager: CheckpointManager, after: str) -> list[str] | None:
    """Return the requests or effects that a verb takes; None if it takes neither.

    Raises:
        CheckpointError: the store cannot be read.
    """
    command, _, verb = after.partition(" ")
    ledgers = all_ledgers(manager.store)
    if (command, verb) == ("effects", "resolve"):
        effects = [effect for ledger in ledgers for effect in ledger.all_effects()]
        return [effect.id for effect in effects if effect.status in (UNKNOWN, UNDOING)]
    if command == "approvals" and verb in ("approve", "deny", "edit", "revoke"):
        requests = [item for ledger in ledgers for item in ledger.state.requests.values()]
        is_revoke = verb == "revoke"
        return [item.id for item in requests if (item.is_answered if is_revoke else item.is_open)]
    return None


def _find_names(manager: CheckpointManager, location: StoreLocation, prefix: str) -> Iterator[str]:
    """Iterate over the keys and checkpoints that start with a prefix. Raises CheckpointError."""
    keys = manager.list_keys()
    names = [key for key in keys if key.startswith(prefix)]
    owner, at, _ = prefix.rpartition("@")
    if at and (owner in keys or not owner):
        key = owner or location.key(manager, None)
        entries = islice(manager.store.entries(key), _MOST)
        names += [f"{owner}@{entry.seq}" for entry in entries]
    for key in keys:
        if prefix.startswith(f"{key}_"):
            names += [row["id"] for row in manager.history(key, _MOST)]
    yield from names


def _commands() -> list[_Command]:
    found = []
    for command in COMMANDS:
        actions = parser_of(command.name)._actions
        options = [action for action in actions if action.option_strings]
        words = [
            str(word)
            for action in actions
            if not action.option_strings
            for word in action.choices or ()
        ]
        if command.name == "effects":
            words.append("resolve")
        has_names = command.takes_store and any(  # the keys of `copy` are those of its SOURCE
            action.metavar in _TAKES_NAMES for action in actions if action.metavar is not None
        )
        found.append(_Command(command.name, command.help, options, words, has_names))
    return found


def _names(command: _Command) -> str:
    return " ".join(name for action in command.options for name in action.option_strings)


def _bash(commands: list[_Command]) -> str:
    cases = "\n".join(
        f'    {item.name}) words="{_names(item)}" verbs="{" ".join(item.words)}" ;;'
        for item in commands
    )
    with_names = "|".join(item.name for item in commands if item.has_names)
    return f"""\
_agent_checkpoint() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" word words="" verbs="" name typed i
  local line="${{COMP_LINE:0:COMP_POINT}}"
  local -a typed_words=() after=() store=()
  # Bash splits words also at : = and @, so that the line is read instead. A backslash quotes.
  read -a typed_words <<< "$line"
  [[ "$line" == *[[:blank:]] ]] && typed_words+=("")
  for ((i = 1; i < ${{#typed_words[@]}} - 1; i++)); do
    case "${{typed_words[i]}}" in
    --store) ((i++)); store=(--store "${{typed_words[i]/#\\~/$HOME}}") ;;
    --store=*) store=("${{typed_words[i]}}") ;;
    -*) ;;
    *) after+=("${{typed_words[i]}}") ;;
    esac
  done
  word="${{after[0]}}" typed="${{typed_words[${{#typed_words[@]}} - 1]}}"
  # The path of a store: the default completion, of files.
  [[ "$typed" == --store=* || "$i" -ge ${{#typed_words[@]}} ]] && COMPREPLY=() && return
  case "$word" in
    "") words="{" ".join(item.name for item in commands)} --store --version --help" ;;
{cases}
  esac
  [[ ${{#after[@]}} -gt 1 ]] || words="$verbs $words"
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
  case "$word" in
  {with_names})
    # A name is completed as a whole, and what is typed is cut off.
    [[ "$typed" == *"$cur" ]] || typed="$cur"
    [[ "$typed" == -* ]] && return
    while IFS= read -r name; do
      [[ -n "$name" ]] && COMPREPLY+=("${{name#"${{typed%"$cur"}}"}}")
    done < <({NAME} "${{store[@]}}" completion --after "${{after[*]:0:2}}" \\
      {_NAMES} -- "$typed" 2>/dev/null) ;;
  esac
}}
complete -o default -F _agent_checkpoint {NAME}"""


def _zsh(commands: list[_Command]) -> str:
    rows = "\n".join(f"    '{item.name}:{_quiet(item.help)}'" for item in commands)
    cases = "\n".join(
        f"    {item.name}) {'_agent_checkpoint_names; ' if item.has_names else ''}"
        f"compadd -- {' '.join(item.words)} {_names(item)}; _files ;;"
        for item in commands
    )
    return f"""\
#compdef {NAME}
_agent_checkpoint_names() {{
  local found="$({NAME} $store completion --after "$word $verb" {_NAMES} -- "$PREFIX" 2>/dev/null)"
  compadd -- ${{(f)found}}
}}
_agent_checkpoint() {{
  local -a store
  local -a commands
  commands=(
{rows}
  )
  local word="" verb="" i
  for ((i = 2; i < CURRENT; i++)); do
    case "$words[i]" in
    --store) ((i++)); store=(--store "${{(Q)words[i]}}") ;;
    --store=*) store=("${{(Q)words[i]}}") ;;
    -*) ;;
    *) [[ -n "$word" ]] && verb="${{verb:-$words[i]}}"; word="${{word:-$words[i]}}" ;;
    esac
  done
  case "$word" in
    "") _describe command commands; compadd -- --store --version --help ;;
{cases}
    *) _files ;;
  esac
}}
if [[ "$funcstack[1]" = "_agent-checkpoint" ]]; then
  _agent_checkpoint "$@"
else
  compdef _agent_checkpoint {NAME}
fi"""


def _fish(commands: list[_Command]) -> str:
    begin = f"complete -c {NAME} -n __agent_checkpoint_is"
    lines = [
        _FISH_WORD,
        f"{begin} -l store -r -d 'the store'",
        f"{begin} -l version -d 'show the version'",
        f"{begin} -s h -l help -d 'show this help'",
    ]
    lines += [f"{begin} -f -a {item.name} -d '{_quiet(item.help)}'" for item in commands]
    for item in commands:
        begin = f"complete -c {NAME} -n '__agent_checkpoint_is {item.name}'"
        lines += [f"{begin} -a {word}" for word in item.words]
        if item.has_names:
            lines.append(f"{begin} -a '(__agent_checkpoint_names)'")
        for action in item.options:
            names = "".join(
                f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}"
                for name in action.option_strings
            )
            value = " -r" if action.nargs != 0 else ""
            lines.append(f"{begin}{names}{value} -d '{_quiet(action.help or '')}'")
    return "\n".join(lines)


_FISH_WORD = """\
function __agent_checkpoint_is
  set -l found
  set -l is_value no
  for word in (commandline -opc)[2..-1]
    if test $is_value = yes
      set is_value no
    else if test "$word" = --store
      set is_value yes
    else if not string match -q -- '-*' "$word"
      set found "$word"
      break
    end
  end
  test "$found" = "$argv[1]"
end
function __agent_checkpoint_names
  set -l store
  set -l words (commandline -opc)
  set -l after
  set -l is_value no
  for word in $words[2..-1]
    if test $is_value = yes
      set is_value no
      set store --store $word
    else if test "$word" = --store
      set is_value yes
    else if string match -q -- '--store=*' "$word"
      set store "$word"
    else if not string match -q -- '-*' "$word"
      set -a after "$word"
    end
  end
  type -q agent-checkpoint; or return
  agent-checkpoint $store completion --after "$after[1..2]" names -- (commandline -ct) 2>/dev/null
end"""
"""Whether the command line has the given command, or without an argument no command; the names."""


def _quiet(text: str) -> str:
    return text.replace("'", "").replace(":", ",")
