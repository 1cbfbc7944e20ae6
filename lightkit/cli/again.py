"""`lightkit why` says why two runs differ; `lightkit rerun` repeats a run, and says whether it came out the same."""

from __future__ import annotations

import os
import shutil
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from lightkit.cli.arguments import Parser
from lightkit.cli.detach import quoted
from lightkit.cli.terminal import complain, number, report, table
from lightkit.common import run_files
from lightkit.common.collecting import importing
from lightkit.common.errors import UserError, of_process
from lightkit.config import public, save, with_values
from lightkit.config.member_values import difference
from lightkit.config.project import CODE
from lightkit.config.provenance import is_ours
from lightkit.processes.children import NOTHING, Child, lightkit_command, lightkit_path
from lightkit.runs import placement
from lightkit.runs.catalog import find_run, project, status
from lightkit.runs.code import code_diff, kept_code
from lightkit.runs.reading import read_config, read_run

if TYPE_CHECKING:
    from lightkit.runner.causes import Cause, Verdict


_TOLERANCE = 1e-4


def why(args: list[str]) -> int:
    """Say in what two runs differ, and where their curves part."""
    options, root = Parser("why", "first", "second").read(args), project()
    one, other = find_run(options.first, root), find_run(options.second, root)
    if one == other:
        raise UserError("a run does not differ from itself", key="lightkit why", received=options.second)
    if options.bisect:
        return _bisect(options, one, other, root)
    with importing():
        from lightkit.runner.causes import causes, parting
        from lightkit.runner.traces import first_difference

    found, parts, first = causes(one, other, root), parting(one, other), first_difference(one, other, complain)
    facts: dict[str, object] = {"causes": [asdict(cause) for cause in found], "first": first and asdict(first)}
    facts["parting"] = parts and dict(zip(_PARTING, parts))
    return report(options, facts, lambda: [*_lines(found, parts), *([f"\n{first}"] if first else [])])


_PARTING = ("step", "name", "first", "second")


def _lines(found: list[Cause], parts: tuple[int, str, object, object] | None) -> Iterator[str]:
    if found:
        yield table(["differs", "first and second"], [(cause.kind, cause.what) for cause in found])
    for cause in found:
        if cause.detail:
            yield f"\n{cause.detail}"
    if parts is not None:
        step, name, before, now = parts
        shown = str if number(before) == number(now) else number  # all digits where four decimals are the same
        yield f"\nthe curves part at step {step}: {name} is {shown(before)} and {shown(now)}"
        if not found:
            yield "nothing else is known to differ: device.deterministic=true may be missing, or a seed"
    else:
        yield "\nwhat both have logged is the same" if found else "the runs are the same in all that is known of them"


def rerun(args: list[str]) -> int:
    """Repeat a run in a new folder, and compare."""
    options, root = Parser("rerun", "run", "overrides*", tolerance=_TOLERANCE).read(args), project()
    folder = find_run(options.run, root)
    _check_finished(folder)
    if place := next((text for text in options.overrides if text.startswith("hydra.run.dir=")), None):
        what = "a repeated run gets a folder of its own"
        raise UserError(what, key="hydra.run.dir", received=place, fix="leave it out")
    composed = read_run(folder, [text for text in options.overrides if not text.startswith("hydra.")], new=True)
    variables = {} if options.current_code else kept_variables(folder)
    is_named = any(text.startswith("name=") for text in options.overrides)
    new = placement.new_run_folder(root, composed.cfg.name if is_named else f"{composed.cfg.name}-again")
    code = _train(folder, new, variables, *options.overrides, output=2 if options.json else None).wait()
    if code:
        placement.discard_if_empty(new, root)
        return of_process(code)
    from lightkit.runner.causes import causes, judge

    verdict, found = judge(folder, new, tolerance=options.tolerance), causes(folder, new, root)
    facts = {"folder": str(new), **asdict(verdict), "causes": [asdict(cause) for cause in found]}
    report(options, facts, lambda: _verdict(verdict, found, options.tolerance))
    return int(verdict.outcome == "neither")


def kept_variables(folder: Path) -> dict[str, str]:
    """Return the variable of the environment with which a run has the code that another one has kept.

    Args:
        folder: That of the other run; one from elsewhere gives no code, which is said.
    """
    home = folder.parent.parent if folder.parent.name == run_files.MEMBERS else folder  # which keeps it for all
    kept = home / run_files.CODE
    is_used = kept.is_dir() and is_ours(home.resolve(), read_config(home))
    if kept.is_dir() and not is_used:
        complain("the run comes from elsewhere, so its code is not used: that of this project is")
    return {CODE: str(kept.resolve())} if is_used else {}


def _train(source: Path, new: Path, variables: Mapping[str, str], *overrides: str, output: int | None) -> Child:
    command = lightkit_command("train", "--from", str(source), *overrides, f"hydra.run.dir={quoted(new)}")
    own = {**os.environ, "PYTHONPATH": lightkit_path(), **variables}
    return Child(command, variables=own, output=output, own_session=False)


def _check_finished(folder: Path) -> None:
    if status(folder) != "finished":
        what, fix = "only a run that has finished can be repeated", f"lightkit resume {folder}"
        raise UserError(what, key=str(folder), received=status(folder), fix=fix, family="no-such-run")


def _bisect(options: Namespace, one: Path, other: Path, root: Path) -> int:
    """Repeat the first run with parts of what differs, until what makes the result of the second is found."""
    from lightkit.runner.causes import PLACES, judge, smallest

    for folder in (one, other):
        _check_finished(folder)
        if not is_ours(folder.resolve(), read_config(folder)):
            what = "only runs that this project wrote are repeated in parts"
            raise UserError(what, key=str(folder), family="run-from-elsewhere")
    cfg, kept = read_run(one).cfg, [kept_variables(folder) for folder in (one, other)]
    changes = difference(public(cfg), public(read_run(other).cfg))
    items = [key for key in dict.fromkeys(key.lstrip("~") for key in changes) if key not in PLACES]
    items += [run_files.CODE] if code_diff(kept_code(one), kept_code(other)) else []
    apart, most = judge(one, other, tolerance=_TOLERANCE).outcome, max(2, 2 * len(items))
    home = root / run_files.OUTPUTS / run_files.FOUND / run_files.FOUND_RUNS / f"why-{os.getpid()}"
    reruns = list[Child]()

    def gives(run: Path, chosen: Sequence[str]) -> bool:
        place = home / str(len(reruns))
        place.mkdir(parents=True)
        values = {key: value for key, value in changes.items() if key.lstrip("~") in chosen}
        save(with_values(cfg, {**values, "on_end": []}), place)
        reruns.append(_train(place, place / "run", kept[run_files.CODE in chosen], output=NOTHING))
        fails = reruns[-1].wait()
        outcome = "neither" if fails else judge(run, place / "run", tolerance=_TOLERANCE).outcome
        is_same = outcome == "bits" or outcome == "values" != apart  # where these are apart by that, only bits tell
        came = "fails" if fails else f"{'as' if is_same else 'not as'} the {'first' if run == one else 'second'} run"
        complain(f"rerun {len(reruns)} of {most} at most, with {', '.join(chosen) or 'nothing changed'}: {came}")
        return is_same

    complain(f"what differs is {', '.join(items) or 'no key'}: this takes {most} reruns at most")
    checks = (
        (lambda: apart != "bits", "both runs have the same bits"),
        (lambda: gives(one, []), "the first run does not repeat itself, so reruns tell nothing"),
        (
            lambda: gives(other, items),
            "keys and code do not make the result of the second: something else does, maybe a draw without a seed",
        ),
    )
    try:
        reason = next((text for holds, text in checks if not holds()), "")
        cause = [] if reason else smallest(items, lambda chosen: gives(other, chosen))
    finally:
        for child in reruns:
            child.end()
        shutil.rmtree(home, ignore_errors=True)
    report(options, {"cause": cause, "reason": reason}, lambda: reason or f"the cause: {' and '.join(cause)}")
    return int(not cause)


_OUTCOMES = {"bits": "the same bits", "values": "the same values, but not the same bits", "neither": "NOT the same"}


def _verdict(verdict: Verdict, found: list[Cause], tolerance: float) -> Iterator[str]:
    rows = [
        (part.name, str(part.size), "different" if part.different else "same" if part.size else "not in both runs")
        for part in verdict.compared
    ]
    yield table(["compared", "values", ""], rows, right=[1])
    if found:
        yield "\n" + table(["differs", "before and now"], [(cause.kind, cause.what) for cause in found])
    size = f": metrics differ by {verdict.largest or 0:.2g} at most ({tolerance:g} counts as the same)"
    is_known = verdict.outcome != "bits" and verdict.largest is not None
    yield f"\n{_OUTCOMES[verdict.outcome]}{size if is_known else ''}"
