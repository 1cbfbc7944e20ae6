"""`lightkit ensemble`: one model of runs that have finished."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightkit.cli.arguments import Parser, names_and_overrides, whole_number
from lightkit.cli.terminal import complain, number, report, table
from lightkit.common.collecting import importing
from lightkit.common.errors import Problems, UserError, UserErrors
from lightkit.common.text import counted
from lightkit.runs.catalog import find_run, project, run_name, runs_of, status
from lightkit.runs.placement import discard_if_empty, new_run_folder
from lightkit.runs.reading import read_ensemble_plan, read_run

WEIGHTS = ("uniform", "validation", "greedy")
_OF_STACKS = re.compile(r"[+~]*ensemble\.(meta|passthrough|holdout)([.=]|$)")
_ALLOWED = re.compile(
    r"[+~]*(device|logger|metrics|trust)([.=]|$)|[+~]*data\.(eval_batch_size|num_workers|pin_memory)="
)


def ensemble(args: list[str]) -> int:
    """Combine finished runs."""
    options = Parser("ensemble", "runs+", method="voting", vote="soft").read(args)
    root = project()
    names, overrides = names_and_overrides(options.runs)
    own = [text for text in overrides if options.method == "stacking" and _OF_STACKS.match(text)]
    shared = [text for text in overrides if text not in own]
    for text in shared:
        if not _ALLOWED.match(text):
            fix = "this only of device, metrics, logger and the loading of data"
            raise UserError("a finished run stays as it is", key=text.partition("=")[0], received=text, fix=fix)
    folders = _folders(names, root)
    node, weights = _method(options, folders)
    composed = [read_run(folder, shared) for folder in folders]
    if options.method == "stacking":
        node = _stacking(options, folders, [*shared, *own])
    # Here, not above: importing torch takes seconds, and a wrong configuration is told before.
    with importing():
        from lightkit.runner.ensemble.finished import FinishedRun
        from lightkit.runner.run import combine_runs

    names = [f"{i:02}-{run_name(folder).replace('/', '-')}" for i, folder in enumerate(folders)]
    runs = [FinishedRun(name, folder, made.cfg) for name, folder, made in zip(names, folders, composed)]
    name = options.name or options.method
    target = new_run_folder(root, name)
    try:
        result = combine_runs(runs, target, method=node, name=name, weights=weights, overrides=overrides)
    finally:
        discard_if_empty(target, root)
    members = read_ensemble_plan(target)["members"]
    rows = [[row["name"], number(row["weight"]), row["folder"]] for row in members]
    return report(options, result, lambda: "\n" + table(["member", "weight", "folder"], rows, right=[1]))


def _folders(texts: Sequence[str], root: Path) -> list[Path]:
    """Return the folders of all runs that are meant, each once.

    Raises:
        UserError: There is no such run, or fewer than two.
    """
    found, errors = list[Path](), Problems()
    for text in texts:
        with errors.noted():
            below = runs_of(text, root)
            runs = [run for run in below if status(run) == "finished"] if below else [find_run(text, root)]
            if (left := len(below) - len(runs)) > 0:
                complain(f"note: {left} of the {counted(len(below), 'run')} in {text} have not finished")
            found += runs
    if errors:
        raise UserErrors(errors)
    folders = [*dict.fromkeys(found)]
    if len(folders) < 2:
        what, received = "an ensemble needs two runs that have finished", ", ".join(map(str, folders)) or None
        raise UserError(what, key="lightkit ensemble", received=received, family="ensemble")
    return folders


def _method(options: Namespace, folders: Sequence[Path]) -> tuple[dict[str, Any], list[float] | None]:
    """Return the method as a node of the configuration, and the weights where the user gave numbers.

    Raises:
        UserError: An option does not go with the method, or is out of its range.
    """
    from lightkit.config.schema.learning import MemberConfig

    base: dict[str, Any] = {"size": len(folders), "members": [], "member": asdict(MemberConfig())}
    for given, names in (("weights", ["voting"]), ("rounds", ["greedy", "stacking"]), ("meta", ["stacking"])):
        if getattr(options, given) is not None and options.method not in names:
            what = f"this is of --method {' and '.join(names)}"
            raise UserError(what, key=f"--{given}", received=getattr(options, given))
    what, expected = "not a number of rounds", "1 or more"
    rounds = whole_number("--rounds", options.rounds or "25", least=1, what=what, expected=expected)
    if options.method == "greedy":
        return {"_target_": "lightkit.ensemble.methods.Greedy", "rounds": rounds, **base}, None
    how = options.weights or "uniform"
    numbers = None if how in WEIGHTS else _numbers(how, len(folders))
    chosen = how if numbers is None else "uniform"
    return {"_target_": "lightkit.ensemble.methods.Voting", "vote": options.vote, "weights": chosen, **base}, numbers


def _stacking(options: Namespace, folders: Sequence[Path], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a stack as a node of the configuration; its meta-model differs by it from the first of the runs.

    Raises:
        UserErrors: Everything that is wrong with the meta-model.
    """
    from lightkit.config import to_plain

    own = [f"ensemble.size={len(folders)}", f"ensemble.rounds={options.rounds or 25}", f"ensemble.holdout={1 / 3}"]
    own += ["ensemble.refit=false", *([f"ensemble.meta.model={options.meta}"] if options.meta else [])]
    composed = read_run(folders[0], ["ensemble=stacking", *own, *overrides], new=True)
    node: dict[str, Any] = to_plain(composed.cfg.ensemble)
    return node


def _numbers(text: str, count: int) -> list[float]:
    """Read the weights of the runs.

    Raises:
        UserError: They are not numbers from 0 on, one for each run.
    """
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if len(found) == count and all(0 <= weight < float("inf") for weight in found) and sum(found) > 0:
        return found
    expected = f"{count} numbers from 0 on, one for each run, and one of them above 0"
    raise UserError("no weights", key="--weights", received=text, expected=expected, choices=WEIGHTS)
