"""`completion`: shell completion scripts, generated from the parsers."""

from __future__ import annotations

from argparse import Action
from typing import NamedTuple

from agent_checkpoint.cli.args import NAME, Args, Parser, parser_of
from agent_checkpoint.cli.command_table import COMMANDS
from agent_checkpoint.cli.output import CommandResult
from agent_checkpoint.cli.store_location import StoreLocation

EXAMPLES = """
agent-checkpoint completion bash >> ~/.bashrc
agent-checkpoint completion zsh > ~/.zfunc/_agent-checkpoint
agent-checkpoint completion fish > ~/.config/fish/completions/agent-checkpoint.fish
"""
SHELLS = ("bash", "zsh", "fish")


class _Command(NamedTuple):
    name: str
    help: str
    options: list[Action]
    words: list[str]
    """Choices of positional arguments."""


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Generate the script."""
    script = {"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](_commands())
    return CommandResult({"shell": args.shell, "script": script}, lambda out: out.line(script))


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
        found.append(_Command(command.name, command.help, options, words))
    return found


def _names(command: _Command) -> str:
    names = [name for action in command.options for name in action.option_strings]
    return " ".join([*command.words, *names])


def _bash(commands: list[_Command]) -> str:
    cases = "\n".join(f'    {item.name}) words="{_names(item)}" ;;' for item in commands)
    return f"""\
_agent_checkpoint() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" word="" words="" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "${{COMP_WORDS[i]}}" in
    --store) ((i++)) ;;
    -*) ;;
    *) word="${{COMP_WORDS[i]}}"; break ;;
    esac
  done
  case "$word" in
    "") words="{" ".join(item.name for item in commands)} --store --version --help" ;;
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _agent_checkpoint {NAME}"""


def _zsh(commands: list[_Command]) -> str:
    rows = "\n".join(f"    '{item.name}:{_quiet(item.help)}'" for item in commands)
    cases = "\n".join(f"    {item.name}) compadd -- {_names(item)}; _files ;;" for item in commands)
    return f"""\
#compdef {NAME}
_agent_checkpoint() {{
  local -a commands
  commands=(
{rows}
  )
  local word="" i
  for ((i = 2; i < CURRENT; i++)); do
    case "$words[i]" in
    --store) ((i++)) ;;
    -*) ;;
    *) word="$words[i]"; break ;;
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
end"""
"""Tests whether the command line has the given command; without an argument, no command."""


def _quiet(text: str) -> str:
    return text.replace("'", "").replace(":", ",")
