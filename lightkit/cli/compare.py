"""`lightkit compare`: runs side by side, over their seeds and row by row; `lightkit report`: a page about them."""

from __future__ import annotations

import contextlib
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.cli.arguments import Parser, is_folder, names_and_overrides
from lightkit.cli.terminal import report, table
from lightkit.common import run_files
from lightkit.common.collecting import importing, uncollected
from lightkit.common.errors import UserError, writing_to
from lightkit.processes.files import write_whole
from lightkit.runs.catalog import dated, find_run, folds_of, is_fold, path_from, project, runs_of
from lightkit.runs.filters import Condition, matching, read_statuses
from lightkit.runs.index import RunIndex, newest_last, read_record
from lightkit.runs.reading import read_run, run_folders
from lightkit.runs.record import RunRecord, as_dict

if TYPE_CHECKING:
    from lightkit.compare.comparison import RunComparison

# What computes is imported inside the functions: numpy takes its time, and help needs none.

_SPLITS = ("val", "test", "train")


@uncollected()
def compare(args: list[str]) -> int:
    """Put runs side by side."""
    parser = Parser("compare", "runs*", dashed=("--sort", "--csv", "--markdown"), metric="", status="")
    options = parser.read(args)
    root = project()
    names, overrides = names_and_overrides(options.runs)
    if overrides and options.rows is None:
        raise UserError("overrides are for --rows", key="lightkit compare", received=overrides[0], fix="--rows test")
    records = _records(names, root, options.status, options.where, options.baseline)
    if options.rows is not None:
        own = (name for one in records for name in as_dict(as_dict(one.part("data")).get("more")))
        if options.rows not in (splits := [*_SPLITS, *own]):
            raise UserError("no such split", key="--rows", received=options.rows, choices=splits)
    metrics = [name for name in options.metric.split(",") if name]
    from lightkit.compare.comparison import build_comparison

    whole, damaged = ([one for one in records if (one.status == "damaged") is lost] for lost in (False, True))
    made = build_comparison(whole, metrics=metrics, sort=options.sort, baseline=options.baseline)
    left = [f"{path_from(root, record.folder)} ({record.damage[0]})" for record in damaged]
    made.notes += [f"left out, as they are damaged: {', '.join(left)}"] if left else []
    if options.rows is not None:
        _compare_rows(made, options.rows, overrides)
    return _report(made, options, _title(names, records, root))


def _records(
    names: Sequence[str], root: Path, status: str = "", where: Sequence[str] = (), baseline: str | None = None
) -> list[RunRecord]:
    """Read the runs that are meant and fulfil the conditions.

    Raises:
        UserError: There are none.
    """
    statuses, conditions = read_statuses(status), [Condition.parse(text) for text in where]
    index = RunIndex(root)
    folders = [folder for text in names for folder in _folders(text, index)] if names else _newest_sweep(index)
    if baseline is not None and is_folder(baseline):
        folders += _folders(baseline, index)
    own = [one for each in folders for one in (index.may_hold(each, run_files.MEMBERS) and folds_of(each)) or [each]]
    found = matching(index.records(dict.fromkeys(own)), statuses=statuses, conditions=conditions)
    if not found:
        received = " ".join([*(f"--status {status}" for _ in statuses[:1]), *where]) or None
        raise UserError("no runs to compare", key="lightkit compare", received=received, family="no-such-run")
    damaged = [record for record in found if record.status == "damaged"]
    if damaged and (len(damaged) == len(found) or any(_folders(text, index) == [damaged[0].folder] for text in names)):
        what = f"this run is damaged: {damaged[0].damage[0]}"
        fix = f"leave it out; `lightkit doctor {damaged[0].folder}` says what is left of it"
        raise UserError(what, key=str(damaged[0].folder), fix=fix, family="no-such-run")
    return found


def _folders(text: str, index: RunIndex) -> list[Path]:
    """Return the folders of the runs that a name or a path stands for.

    Raises:
        UserError: There is no such run or sweep.
    """
    if below := runs_of(text, index.root, index.below):
        return sorted(below, key=lambda one: one.parts)
    try:
        run = find_run(text, index.root)
        if text == "last" and (run.parent / run_files.SWEEP_JOURNAL).is_file():
            return sorted(run_folders(run.parent))
        return [run]
    except UserError:
        with contextlib.suppress(UserError):
            from lightkit.sweep.plan import find_sweep

            return sorted(run_folders(find_sweep(text, index.root)))
        named = {job: dated(job) for job in run_folders(index.root / run_files.OUTPUTS)}
        jobs = [job for job, found in named.items() if found and found.job and found.name == text]
        if not jobs:
            raise
        newest = max(job.parent for job in jobs)
        return sorted(job for job in jobs if job.parent == newest)


def _newest_sweep(index: RunIndex) -> list[Path]:
    """Return the jobs of the newest sweep.

    Raises:
        UserError: There is none.
    """
    sweeps = index.root / run_files.OUTPUTS / run_files.SWEEPS
    chosen = [journal.parent for journal in sweeps.parent.glob(f"*/{run_files.SWEEP_JOURNAL}")]
    folders = dict.fromkeys(folder for place in (sweeps, *chosen) for folder in index.below(place))
    jobs = newest_last(index.records(folders))
    if not jobs:
        fix = "lightkit compare RUN RUN; `lightkit runs` lists the runs"
        raise UserError(f"no sweep in {sweeps} yet", key="lightkit compare", fix=fix, family="no-such-run")
    return sorted(job.folder for job in jobs if job.folder.parent == jobs[-1].folder.parent)


def _title(names: Sequence[str], records: Sequence[RunRecord], root: Path) -> str:
    """Say what is compared: the sweep, or the names of the runs."""
    parents = {_whole(record).parts[:-1] for record in records}
    if len(names) < 2 and len(parents) == 1 and len(records) > 1:
        return path_from(root, Path(*parents.pop()))
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _compare_rows(made: RunComparison, split: str, overrides: Sequence[str]) -> None:
    """Add the tests by row, with predictions that are made now where they are missing.

    Raises:
        UserError: There is no baseline, or the rows cannot be compared.
    """
    from lightkit.compare.seeds import check_alike, compare_rows, is_current, pair_runs

    if made.baseline is None:
        labels = [row.label for row in made.rows]
        raise UserError("rows are compared with a baseline", key="--rows", fix="--baseline RUN", choices=labels)
    base = made.row(made.baseline).group
    both = {row.label: pair_runs(base, row.group) for row in made.rows if row.label != made.baseline}
    for each in both.values():
        for first, other in each:
            check_alike(first, other, split)
    runs = dict.fromkeys(run.folder for each in both.values() for pair in each for run in pair)
    missing = [folder for folder in runs if not is_current(folder, split)]
    if missing:
        from lightkit.cli.evaluate import predict

        with contextlib.redirect_stdout(sys.stderr):  # what it says is none of the tables
            for folder in missing:
                predict([str(folder), "--split", split, *overrides])
    made.split = split
    made.seed_tables, made.row_tests = compare_rows({label: each for label, each in both.items() if each}, split)
    if not runs:
        made.notes.append("no rows compared: no group has finished a seed that the baseline has finished")


def _report(made: RunComparison, options: Namespace, title: str) -> int:
    """Write the files that were asked for, and print the tables or what is asked for in their place."""
    from lightkit.compare.report import as_csv, draw_png, html_page, markdown

    makers: dict[str, Callable[[], str | bytes]] = {
        "csv": partial(as_csv, made),
        "markdown": partial(markdown, made),
        "html": partial(html_page, made, title),
        "png": partial(draw_png, made, title),
    }
    printed, written = list[str](), list[str]()
    for name, make in makers.items():
        path = getattr(options, name)
        if path == "-" and name in ("csv", "markdown"):
            printed.append(str(make()))
        elif path is not None:
            content = make()
            _write(Path(path), content.encode() if isinstance(content, str) else content)
            written.append(path)

    return report(options, made.plain() if options.json else None, lambda: _lines(made, printed, written))


def _lines(made: RunComparison, printed: Sequence[str], written: Sequence[str]) -> Iterator[str]:
    """Yield what was asked for in place of the tables, or these and the files that were written."""
    from lightkit.compare.report import tables

    if printed:
        yield "\n".join(printed).rstrip("\n")
        return
    for place, one in enumerate(tables(made)):
        if place:
            yield f"\n{one.title}:"
        first = [i for i in range(len(one.heads)) if i not in one.right]
        yield table(one.heads, one.rows, right=one.right, cut=first)
        yield from one.notes
    if written:
        yield "\nwritten to " + ", ".join(written)


def write_report(args: list[str]) -> int:
    """Write a page by which one knows whether to believe a result."""
    options, root = Parser("report", "runs*", seconds=60.0, output=Path).read(args), project()
    names, overrides = names_and_overrides(options.runs)
    records = [record for record in _records(names or ["last"], root) if record.status != "damaged"]
    folders, made, beside = [*dict.fromkeys(map(_whole, records))], None, dict[str, Any]()
    folder = folders[0]
    if len(folders) > 1:
        from lightkit.compare.comparison import build_comparison

        made = build_comparison(records, baseline=build_comparison(records).rows[0].label)
        folder = _whole(made.rows[0].group.runs[0])
    if overrides:
        read_run(folder, overrides)  # a mistake in them is told before torch is imported
    with importing():
        from lightkit.doctor.after_run import look_back
        from lightkit.gallery.report import beside_simple, report_page
    record = read_record(folder)
    if record.status == "finished" and options.seconds > 0:
        try:
            beside = beside_simple(folder, overrides, seconds=options.seconds)
        except ValueError as error:  # the data are gone, or are such that nothing simple learns from them
            beside = {"why": str(next(iter(getattr(error, "errors", [error])))).splitlines()[0]}
    title = record.name if made is None else _title(names, records, root)
    page = report_page(record, made, title=title, findings=[*look_back(folder)], beside=beside)
    target = options.output or (folder if made is None else folders[0].parent) / run_files.REPORT
    _write(target, page.encode())
    return report(options, {"file": str(target)}, lambda: f"written to {target}")


def _whole(record: RunRecord) -> Path:
    """Return the folder of a run, for a fold that of its cross-validation."""
    return record.folder.parents[1] if is_fold(record.folder) else record.folder


def _write(path: Path, content: bytes) -> None:
    with writing_to(path, "cannot write the file"):
        write_whole(path, content, forced=True)
