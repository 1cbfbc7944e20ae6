"""Completion in the shell: commands, runs, options, and Hydra's groups, options and keys."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Sequence

from lightkit.cli.arguments import COMMANDS, help_of, options_of
from lightkit.cli.terminal import say
from lightkit.common.doors import import_path
from lightkit.common.errors import FAMILIES, UserError
from lightkit.runs.catalog import all_runs, project, run_name

SHELLS = ("bash", "fish", "zsh")
ACTIONS = ("install", "uninstall", "query")
OF_RUNS = ("eval", "predict", "calibrate", "export", "params", "resume", "rerun", "why", "ckpt", "report")
WATCHED = ("attach", "logs", "stop", "wait")
"""Commands that take runs and sweeps, also such as have only begun."""
OVERRIDDEN = (
    "train", "find", "plan", "doctor", "summary", "graph", "params", "config", "verify-resume", "eval", "predict",
    "calibrate", "export", "resume", "report", "rerun",
)  # fmt: skip
VALUES = {
    "--split": ("val", "test", "train"),
    "--rows": ("val", "test", "train"),
    "--direction": ("TB", "LR"),
    "--status": "lightkit.runs.filters.STATUSES",
    "--query": "lightkit.monitor.gpus.FIELDS",
    "--explain": "lightkit.monitor.gpus.FIELDS",
}
"""Values of options whose help does not list them, or where they are; for `--from`, `--baseline` and `--after` they are
the runs."""


def completion(args: Sequence[str]) -> int:
    """Print the shell's script (`install=bash`), take it away again, or answer what it asks (`query=bash`).

    Raises:
        UserError: There is no such action or shell.
    """
    action, _, shell = args[0].partition("=") if args else ("", "", "")
    if action not in ACTIONS:
        key, expected = "--shell-completion", "install=SHELL or uninstall=SHELL"
        raise UserError("which action?", key=key, expected=expected, received=action or None, choices=ACTIONS[:2])
    if shell not in SHELLS:
        raise UserError("no completion for this shell", key=f"-sc {action}", received=shell, choices=SHELLS)
    if action == "query":
        found = answer(os.environ.get("COMP_LINE", ""))
        say(("\n" if shell == "fish" else " ").join(found))
    else:
        from lightkit.config import hydra_command

        hydra_command(["-sc", f"{action}={shell}"])
    return 0


def answer(line: str) -> list[str]:
    """List what the last word of a command line may become; nothing where that cannot be told.

    Args:
        line: All that was typed, the program's name included.
    """
    before = line.split()
    word = before.pop() if before and not line.endswith(" ") else ""
    # Whatever is wrong with the line so far is told when it is run: here it would end up in the middle of typing.
    with contextlib.suppress(Exception), contextlib.redirect_stderr(io.StringIO()):
        return sorted({text for text in _candidates(before[1:], word) if text.startswith(word)})
    return []


def _candidates(before: list[str], word: str) -> list[str]:
    command, rest = (before[0], before[1:]) if before else ("", [])
    if not command:
        return [*COMMANDS, "--help", "--version"]
    if command == "help":
        return list(COMMANDS)
    if command not in COMMANDS:
        return []
    options, last = options_of(command), rest[-1] if rest else ""
    if last in options and (words := options[last].words or VALUES.get(last)):
        return list(import_path(words) if isinstance(words, str) else words)
    if last in ("--from", "--baseline", "--after"):
        return _started(alive=True) if last == "--after" else _runs()
    if word.startswith("-") or command == "new":
        return [*options, "--help"]
    return _arguments(command, [text for text in rest if not text.startswith("-")], word)


def _arguments(command: str, given: list[str], word: str) -> list[str]:
    if command == "show" and given:  # what is shown goes on as the commands do that take the same
        command, given = "train" if given[0] == "data" else "eval", given[1:]
    found = _words(command, given)
    if found is not None:
        return found
    if command in ("ensemble", "compare") or (
        command in OF_RUNS and "=" not in word and len(given) == (command == "ckpt")
    ):
        return _runs()
    if command not in OVERRIDDEN:
        return []
    from lightkit.config import hydra_command

    # Of its plugins, the one for fish separates what it found by lines.
    os.environ["COMP_LINE"] = " ".join(["lightkit", *(text for text in given if "=" in text), word])
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        hydra_command(["-sc", "query=fish"])
    overrides = printed.getvalue().split("\n")
    groups = [text.rstrip("=/") for text in overrides if text.endswith(("=", "/")) and "." not in text]
    runs = _runs() if command == "doctor" and not given and "=" not in word else []
    return [*runs, *overrides, *(groups if command == "config" and not given else [])]


def _words(command: str, given: list[str]) -> list[str] | None:
    """List what a command of its own kind takes here; None where it takes runs or overrides."""
    if command == "explain":
        return [text for family in FAMILIES for text in (family.code, family.slug)]
    if command in WATCHED:
        return _started(alive=command != "logs")
    if command == "board":
        return [*_runs(), *_sweeps()]
    if command == "sweep" and given:
        return ["last", *_sweeps()]
    if given or command not in ("ckpt", "find", "show", "sweep"):
        return None
    usage = re.findall(rf"^(?:usage:| {{6}}) lightkit {command} ([a-z|]+) ", help_of(command), re.M)
    return [action for actions in usage for action in actions.split("|")]


def _sweeps() -> list[str]:
    from lightkit.sweep.plan import all_sweeps

    return [str(folder.relative_to(project())) for folder in all_sweeps(project(), everywhere=True)]


def _started(*, alive: bool) -> list[str]:
    """List runs and sweeps by name; those that are alive, where it makes sense with these and there are any."""
    from lightkit.detached.folders import all_folders, is_alive, names_of

    folders = all_folders(project())
    found = [folder for folder in folders if is_alive(folder)] if alive else []
    return ["last", *names_of(found or folders)] if folders else []


def _runs() -> list[str]:
    names = [run_name(folder) for folder in all_runs(project())]
    return ["last", *names] if names else []
