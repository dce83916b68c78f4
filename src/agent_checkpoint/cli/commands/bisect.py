"""`bisect`: finds the step of a trajectory after which a test fails."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.output import CommandResult, Output, masked, one_line
from agent_checkpoint.cli.step_output import show_diff, show_step
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.formatting import format_count
from agent_checkpoint.trajectory.bisection import Bisection, bisect
from agent_checkpoint.trajectory.probes import BAD, GOOD, Probe

EXAMPLES = """
agent-checkpoint bisect -- make test                   the session of the current directory
agent-checkpoint bisect fix-bug-42 --good @3 --bad @40 -- pytest -q tests/test_app.py
agent-checkpoint bisect --setup 'pip install -q -e .' -- pytest -q
agent-checkpoint bisect --jobs 4 --repeat 3 -- ./check.sh   notice a flaky test
"""
ISOLATION = (
    "Only files are isolated, with HOME and TMPDIR: the tests share the network and all other "
    "files."
)
_STYLES = {GOOD: "green", BAD: "red"}


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.usage = "agent-checkpoint bisect [KEY] [OPTIONS] -- COMMAND …"
    parser.takes_command = True
    parser.optional("key", "KEY", "the session or key (default: that of the current directory)")
    parser.add("--good", "ID", "a checkpoint at which the test passes (default: the first)")
    parser.add("--bad", "ID", "a checkpoint at which the test fails (default: the last)")
    parser.add("--jobs", "N", "number of tests at once (default: 1)", type=int, default=1)
    parser.add(
        "--repeat",
        "N",
        "run the test N times on each checkpoint, to notice a flaky test (default: 1)",
        type=int,
        default=1,
    )
    parser.add("--setup", "COMMAND", "a shell command to run first; if it fails, skip the test")
    parser.add("--timeout", "SECONDS", "end the search if a test takes longer", type=float)
    parser.no_mask()
    parser.json()


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Run the search; show each probe as it ends, then the step."""
    if not args.argv:
        raise InvalidInputError(
            "No test given. Usage: agent-checkpoint bisect [KEY] -- COMMAND. Exit status 0 means "
            "good, 125 skip, any other up to 124 bad."
        )
    if args.jobs < 1:
        raise InvalidInputError("--jobs must be at least 1.")

    def tell(probe: Probe) -> None:
        if not args.json:
            runs = f", {' '.join(probe.runs)}" if probe.is_flaky else ""
            words = f"  {probe.at:>6}  {probe.verdict}  ({probe.seconds:.1f} s{runs})"
            args.out.line(words, style=_STYLES.get(probe.verdict, "yellow"))
            args.out.flush()

    with location.manager() as manager:
        key = location.key(manager, args.key)
        if not args.json:
            args.out.line(ISOLATION, style="dim")
        with ThreadPoolExecutor(args.jobs) as executor:
            found = bisect(
                key,
                args.argv,
                store=manager,
                good=args.good,
                bad=args.bad,
                repeats=args.repeat,
                executor=executor if args.jobs > 1 else None,
                jobs=args.jobs,
                setup=args.setup,
                timeout=args.timeout,
                on_probe=tell,
            )
    data, text = masked(args, _data(key, found)), masked(args, str(found.diff))
    if found.not_recorded is not None:
        data["not_recorded"] = found.not_recorded
    return CommandResult(data, lambda out: _show(out, data, text))


def _data(key: str, found: Bisection) -> dict[str, Any]:
    return {
        "key": key,
        "first_bad": found.first_bad,
        "last_good": found.last_good,
        "candidates": found.candidates,
        "certain": found.is_certain,
        "certainty": found.certainty,
        "step": None if found.step is None else found.step.to_dict(),
        "diff": found.diff.to_dict(),
        "tested": [
            {**asdict(probe), "at": probe.at, "flaky": probe.is_flaky} for probe in found.tested
        ],
        "non_monotonic": found.non_monotonic,
        "isolation": ISOLATION,
    }


def _show(out: Output, found: dict[str, Any], diff: str) -> None:
    out.line()
    key = one_line(found["key"])
    if found["step"] is not None:
        out.line(f"First bad step: {found['step']['at']} of {key}", style="bold")
        show_step(out, found["step"])
    else:
        out.line(f"The first bad step of {key} is one of these:", style="bold")
        for name in found["candidates"]:
            out.line(f"  {one_line(name)}")
    out.line()
    show_diff(out, diff)
    if not diff:
        out.line("No file changed: the test depends on something else.")
    out.line()
    tests = format_count(len(found["tested"]), "checkpoint")
    style = "" if found["certain"] else "yellow"
    out.line(f"{found['certainty']} Tested {tests}.", style=style)
    if "not_recorded" in found:
        out.line(f"Not recorded for the web UI: {one_line(found['not_recorded'], 300)}")
