"""`lightkit why` says why two runs differ; `lightkit rerun` repeats a run, and says whether it came out the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from lightkit.cli.arguments import Parser
from lightkit.cli.terminal import complain, number, report, table
from lightkit.common import run_files
from lightkit.common.errors import UserError, of_process
from lightkit.config.project import CODE
from lightkit.config.provenance import is_ours
from lightkit.processes.children import Child, lightkit_command, lightkit_path
from lightkit.runs import placement
from lightkit.runs.catalog import find_run, project, status
from lightkit.runs.reading import read_config, read_run

if TYPE_CHECKING:
    from lightkit.runner.causes import Cause, Verdict


def why(args: list[str]) -> int:
    """Say in what two runs differ, and where their curves part."""
    options, root = Parser("why", "first", "second").read(args), project()
    one, other = find_run(options.first, root), find_run(options.second, root)
    if one == other:
        raise UserError("a run does not differ from itself", key="lightkit why", received=options.second)
    from lightkit.runner.causes import causes, parting

    found, parts = causes(one, other, root), parting(one, other)
    facts = {"causes": [asdict(cause) for cause in found], "parting": parts and dict(zip(_PARTING, parts))}
    return report(options, facts, lambda: _lines(found, parts))


_PARTING = ("step", "name", "first", "second")


def _lines(found: list[Cause], parts: tuple[int, str, object, object] | None) -> Iterator[str]:
    if found:
        yield table(["differs", "first and second"], [(cause.kind, cause.what) for cause in found])
    for cause in found:
        if cause.detail:
            yield f"\n{cause.detail}"
    if parts is not None:
        step, name, before, now = parts
        yield f"\nthe curves part at step {step}: {name} is {number(before)} and {number(now)}"
        if not found:
            yield "nothing else is known to differ: device.deterministic=true may be missing, or a seed"
    else:
        yield "\nwhat both have logged is the same" if found else "the runs are the same in all that is known of them"


def rerun(args: list[str]) -> int:
    """Repeat a run in a new folder, and compare."""
    options, root = Parser("rerun", "run", "overrides*", tolerance=1e-4).read(args), project()
    folder = find_run(options.run, root)
    if status(folder) != "finished":
        what, fix = "only a run that has finished can be repeated", f"lightkit resume {folder}"
        raise UserError(what, key=str(folder), received=status(folder), fix=fix, family="no-such-run")
    if place := next((text for text in options.overrides if text.startswith("hydra.run.dir=")), None):
        raise UserError(
            "a repeated run gets a folder of its own", key="hydra.run.dir", received=place, fix="leave it out"
        )
    composed = read_run(folder, [text for text in options.overrides if not text.startswith("hydra.")], new=True)
    kept = folder / run_files.CODE
    is_kept = kept.is_dir() and not options.current_code and is_ours(folder.resolve(), read_config(folder))
    if kept.is_dir() and not options.current_code and not is_kept:
        complain("the run comes from elsewhere, so its code is not used: that of this project is")
    new = placement.new_run_folder(root, f"{composed.cfg.name}-again")
    command = lightkit_command("train", "--from", str(folder), *options.overrides, f"hydra.run.dir='{new}'")
    variables = {**os.environ, "PYTHONPATH": lightkit_path(), **({CODE: str(kept.resolve())} if is_kept else {})}
    code = Child(command, variables=variables, output=2 if options.json else None, own_session=False).wait()
    if code:
        placement.discard_if_empty(new, root)
        return of_process(code)
    from lightkit.runner.causes import causes, judge

    verdict, found = judge(folder, new, tolerance=options.tolerance), causes(folder, new, root)
    facts = {"folder": str(new), **asdict(verdict), "causes": [asdict(cause) for cause in found]}
    report(options, facts, lambda: _verdict(verdict, found, options.tolerance))
    return int(verdict.outcome == "neither")


_OUTCOMES = {
    "bits": "the same bits",
    "values": "the same values, but not the same bits",
    "neither": "NOT the same",
}


def _verdict(verdict: Verdict, found: list[Cause], tolerance: float) -> Iterator[str]:
    rows = [(part.name, str(part.size), "different" if part.different else "same") for part in verdict.compared]
    yield table(["compared", "values", ""], rows, right=[1])
    if found:
        yield "\n" + table(["differs", "before and now"], [(cause.kind, cause.what) for cause in found])
    size = (
        ""
        if verdict.largest is None
        else f": metrics differ by {verdict.largest:.2g} at most ({tolerance:g} counts as the same)"
    )
    yield f"\n{_OUTCOMES[verdict.outcome]}{'' if verdict.outcome == 'bits' else size}"
