"""`lightkit eval` and `lightkit predict`: what a finished run is worth, and what it says."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from lightkit.cli.arguments import Parser, check_checkpoint
from lightkit.cli.terminal import complain, json_text, number, report, say, table
from lightkit.common import run_files
from lightkit.common.csv_lines import CsvWriter
from lightkit.common.errors import UserError
from lightkit.common.signals import held
from lightkit.common.text import counted
from lightkit.processes.files import replacing
from lightkit.runs.catalog import find_run, project
from lightkit.runs.reading import read_run, read_run_unchanged

if TYPE_CHECKING:
    from lightkit.runner import Runner

SPLITS = ("train", "val", "test")


def evaluate(args: list[str]) -> int:
    """Measure a run on one split or several."""
    options = _read("eval", args)
    splits, found = tuple(dict.fromkeys(options.split.split(","))), list[dict[str, Any]]()
    for split in splits:
        if split not in SPLITS:
            raise UserError("no such split", key="--split", received=split, choices=SPLITS)
    runner, folder = trained_run(options)
    for split, values in runner.evaluate_splits(splits, options.checkpoint, members=options.members).items():
        facts = {"split": split, "checkpoint": options.checkpoint, "overrides": options.overrides}
        facts |= {"members": options.members} if options.members else {}
        found.append({**facts, "metrics": dict(values)})
        with _opened(folder / run_files.EVALUATION.format(split=split)) as file:
            file.write(json_text(found[-1]) + "\n")
    rows = [(name, number(value)) for measured in found for name, value in measured["metrics"].items()]
    files = [folder / run_files.EVALUATION.format(split=split) for split in splits]
    for path in [*files]:
        files += sorted((folder / run_files.FIGURES / path.stem).glob(f"*{run_files.METRIC_RESULT}"))
    written = "\nwritten to " + ", ".join(map(str, files))
    return report(options, found, lambda: [table(["metric", "value"], rows, right=[1]), written])


def predict(args: list[str]) -> int:
    """Write the predictions of a run on a split."""
    options = _read("predict", args)
    runner, folder = trained_run(options)
    rows = runner.predict(options.split, options.checkpoint, members=options.members)
    if options.output == "-":
        _write_rows(sys.stdout, rows)
        return 0
    target = Path(options.output) if options.output else folder / run_files.PREDICTIONS.format(split=options.split)
    with _opened(target) as file:
        count = _write_rows(file, rows)
    say(f"{counted(count, 'row')} written to {target}")
    return 0


def _read(command: str, args: list[str]) -> Namespace:
    options = Parser(command, "run", "overrides*", split="test", checkpoint="best", members="").read(args)
    options.members = [name for name in options.members.split(",") if name]
    return options


def trained_run(options: Any) -> tuple[Runner, Path]:
    """Return the run that is meant, ready to be measured, and its folder.

    Args:
        options: With `run`, `overrides` and `checkpoint` as typed.
    """
    check_checkpoint(options.checkpoint)
    folder = find_run(options.run, project())
    composed = read_run(folder, options.overrides)
    if options.overrides:
        _warn_of_other_data(composed.cfg.data, read_run_unchanged(folder, options.overrides).cfg.data, options)
    # Here, not above: importing torch takes seconds, and a wrong configuration is told before.
    with held():
        from lightkit.runner import Runner

    return Runner(composed.cfg, folder, overrides=options.overrides), folder


def _warn_of_other_data(data: Any, before: Any, options: Any) -> None:
    """Say what overrides make of the splits of a run.

    Raises:
        UserError: Other test data make the training split anew, so the split to measure may hold what was learnt from.
    """
    split = getattr(options, "split", "test")
    for key in ("test_root", "test_path"):
        if split != "test" and data.dataset.get(key) != before.dataset.get(key):
            what = f"with other test data the rest is split anew, so {split} is not that of the run"
            fix = f"--split test, or leave data.dataset.{key} out"
            raise UserError(what, key="--split", received=split, fix=fix, family="wrong-value")
    if data.split != before.split:
        complain("warning: data.split is not that of the run: what it has learnt from may be among these samples")
    for name in ("root", "path"):
        if data.dataset.get(name) != before.dataset.get(name) and data.dataset.get(f"test_{name}") is None:
            fix = f"; data.dataset.test_{name}={data.dataset.get(name)} takes all of them"
            what = f"data.dataset.{name} is not that of the run: other data are split, as for a training"
            complain(f"warning: {what}{fix if f'test_{name}' in data.dataset else ''}")


@contextmanager
def _opened(target: Path) -> Iterator[TextIO]:
    """Open a text file that takes its final name when it is complete."""
    with replacing(target) as unfinished:
        try:
            file = unfinished.open("x", newline="", encoding="utf-8")
        except OSError as error:
            what = f"cannot write the file: {error.strerror}"
            raise UserError(what, key=str(target), family="cannot-write") from error
        with file:
            yield file


def _write_rows(file: TextIO, rows: Iterable[Mapping[str, object]]) -> int:
    """Write rows as CSV under the names of the first, and return how many there are."""
    source = iter(rows)
    first = next(source, None)
    if first is None:
        raise UserError("there is nothing to predict in this split", family="split")
    writer, count = CsvWriter(file), 0
    writer.row(first)
    for row in chain([first], source):
        writer.row(row[name] for name in first)
        count += 1
    return count
