"""`lightkit eval`, `predict` and `show`: what a finished run is worth, what it says, and pages of it for the eye."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from lightkit.cli.arguments import Parser, check_checkpoint, whole_number
from lightkit.cli.inspected import configuration
from lightkit.cli.terminal import complain, number, report, say, table, width
from lightkit.common import run_files
from lightkit.common.collecting import importing
from lightkit.common.csv_lines import CsvWriter
from lightkit.common.errors import UserError, keys_under, writing_to
from lightkit.common.names import SPLIT_NAMES
from lightkit.common.text import counted, json_text, slug
from lightkit.processes.files import replacing
from lightkit.runs.catalog import find_run, project, run_name
from lightkit.runs.reading import read_run, read_run_unchanged

if TYPE_CHECKING:
    from lightkit.gallery.samples import Page
    from lightkit.runner import Runner

_MOST_LEFT_OUT = 50
"""Rows left out that are named."""


def evaluate(args: list[str]) -> int:
    """Measure a run on one split or several."""
    options = _read("eval", args, tta="0")
    splits, found, files = tuple(dict.fromkeys(options.split.split(","))), list[dict[str, Any]](), list[Path]()
    runner, folder = trained_run(options)
    for split in splits:
        if split not in (known := (*SPLIT_NAMES, *(runner.cfg.data.get("more") or ()))):
            raise UserError("no such split", key="--split", received=split, choices=known)
    for split, values in runner.evaluate_splits(splits, options.checkpoint, members=options.members).items():
        facts = {"split": split, "checkpoint": options.checkpoint, "overrides": options.overrides}
        facts |= {"members": options.members} if options.members else {}
        how = {"members": options.members, "views": options.tta, "by": options.by}
        more = runner.measure(split, options.checkpoint, **how) if options.by or options.tta else {}
        found.append({**facts, "metrics": dict(values), **more})
        files.append(folder / run_files.EVALUATION.format(split=split))
        with _unfinished(files[-1]) as path:
            path.write_text(json_text(found[-1]) + "\n", encoding="utf-8")
    shown = [(one["metrics"], one.get("tta", {}).get("metrics", {})) for one in found]
    rows = [[name, number(value), number(own.get(name))] for plain, own in shown for name, value in plain.items()]
    heads = ["metric", "value", *([counted(options.tta, "view")] if options.tta else [])]
    groups = [text for one in found for column, own in one.get("by", {}).items() for text in _groups(column, own)]
    for path in [*files]:
        files += sorted((folder / run_files.FIGURES / path.stem).glob(f"*{run_files.METRIC_RESULT}"))
    limits = {split: runner.cfg.data.split.get(f"{split}_limit") for split in splits}
    lines = [f"{split}: {counted(n, 'row')} at most (data.split.{split}_limit)" for split, n in limits.items() if n]
    written = "\nwritten to " + ", ".join(map(str, files))
    text = [table(heads, [row[: len(heads)] for row in rows], right=[1, 2]), *groups, *lines, written]
    return report(options, found, lambda: text)


def _groups(column: str, groups: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a table of groups of rows, and what its intervals are."""
    cells = list[list[str]]()
    for group in groups:
        ends = {name: " [{:.3g}, {:.3g}]".format(*own) for name, own in group["intervals"].items()}
        named = {name: number(value) + ends.get(name, "") for name, value in group["metrics"].items()}
        cells.append([group["group"], str(group["n"]), *("undefined" if c == "nan" else c for c in named.values())])
    yield "\n" + table([column, "n", *groups[0]["metrics"]], cells, right=[1])
    yield "worst first; [95 % interval by samples of rows]; groups of few rows have none, and come last"


def predict(args: list[str]) -> int:
    """Write the predictions of a run on a split, or on new rows."""
    options = _read("predict", args, split="", tta="0")
    ending = Path(options.output or "").suffix
    if ending not in _WRITERS:
        what, choices = "predictions are not written in this form", [ending for ending in _WRITERS if ending]
        raise UserError(
            what, key="--output", received=options.output, choices=choices, fix="a name with such an ending"
        )
    if options.input is not None:
        return _predict_new(options)
    for name, given in (("--proba", options.proba), ("--skip-bad", options.skip_bad)):
        if given:
            raise UserError("this is for new rows", key=name, fix="--input FILE, or leave it out")
    options.split = options.split or "test"
    runner, folder = trained_run(options)
    rows = runner.predict(options.split, options.checkpoint, members=options.members, views=options.tta)
    return _write(options, rows, folder / run_files.PREDICTIONS.format(split=options.split), "in this split")


def _predict_new(options: Namespace) -> int:
    """Write what a run predicts of rows that are in none of its splits."""
    for name, given in (("--split", options.split), ("--tta", options.tta)):
        if given:
            what, fix = "new rows are in no split, and are never augmented", "leave it out, or --input"
            raise UserError(what, key=name, received=given, fix=fix, family="contradiction")
    check_checkpoint(options.checkpoint)
    folder, name = find_run(options.run, project()), options.input
    if options.output and name != "-" and Path(options.output).resolve() == Path(name).resolve():
        what, fix = "this is the file of the new rows, which would be lost", "another name"
        raise UserError(what, key="--output", received=options.output, fix=fix, family="contradiction")
    read_run(folder, options.overrides)  # before torch is imported, which takes seconds
    with importing():
        from lightkit.data.reader import Faults
        from lightkit.runner.predictor import load
    chosen = {name: getattr(options, name) for name in ("checkpoint", "members", "overrides")}
    model, faults = load(folder, device=None, **chosen), Faults(skip=options.skip_bad)
    options.output = options.output or ("-" if name == "-" else None)
    target = folder / run_files.PREDICTIONS.format(split=f"of-{slug(Path(name).stem)}")
    with keys_under("--input"):
        _write(options, model.rows(name, faults, proba=options.proba), target, f"in {name}")
    for note in faults.notes:
        complain(f"note: {note}")
    for line in faults.lines[:_MOST_LEFT_OUT]:
        complain(f"left out: {line}")
    if len(faults.lines) > _MOST_LEFT_OUT:
        complain(f"{len(faults.lines):,} rows are left out in all")
    return 0


def _write(options: Namespace, rows: Iterable[dict[str, Any]], usual: Path, where: str) -> int:
    """Write rows to where the user wants them, or the usual file."""
    rows = _with_pictures(_some(rows, where), usual.with_suffix(""))
    if options.output == "-":
        _write_rows(sys.stdout, rows)
        return 0
    target = Path(options.output) if options.output else usual
    with _unfinished(target) as path:
        count = _WRITERS[target.suffix](path, rows)
    say(f"{counted(count, 'row')} written to {target}")
    return 0


def _with_pictures(rows: Iterable[dict[str, Any]], folder: Path) -> Iterator[dict[str, Any]]:
    """Yield rows of plain values: a mask goes to a PNG file in a folder, and each box of a picture is a row."""
    from lightkit.common.drawing import COLOURS
    from lightkit.data.placed import SIDES

    for row in rows:
        found: Any = row.get("prediction")  # none where there are several heads
        known = {name: row[name] for name in row if name not in ("target", "prediction")}
        if isinstance(found, dict):
            boxes = zip(*found.values()) if found["boxes"] else [([None] * len(SIDES), None, None)]
            yield from (
                {**known, "class": label, "score": score, **dict(zip(SIDES, box))} for box, label, score in boxes
            )
        elif getattr(found, "ndim", 0) == 2:
            from PIL import Image

            folder.mkdir(parents=True, exist_ok=True)
            path, image = folder / f"{row['row']}.png", Image.fromarray(found)
            image.putpalette(bytes.fromhex("000000" + "".join(COLOURS).replace("#", "")))
            with _unfinished(path) as unfinished:
                image.save(unfinished, format="PNG")
            yield {**known, "prediction": str(path)}
        else:
            yield row


def _read(command: str, args: list[str], split: str = "test", **more: str) -> Namespace:
    options = Parser(command, "run", "overrides*", split=split, checkpoint="best", members="", **more).read(args)
    options.tta = whole_number("--tta", options.tta, most=_MOST)
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
    with importing():
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
def _unfinished(target: Path) -> Iterator[Path]:
    """Yield the path of a file that takes its final name when it is complete."""
    with writing_to(target, "cannot write the file"), replacing(target) as path:
        yield path


def _some(rows: Iterable[dict[str, Any]], where: str) -> Iterator[dict[str, Any]]:
    """Hand rows on, of which there is one at least."""
    source = iter(rows)
    first = next(source, None)
    if first is None:
        raise UserError(f"there is nothing to predict {where}", family="split")
    yield first
    yield from source


def _write_rows(file: TextIO, rows: Iterable[dict[str, Any]]) -> int:
    """Write rows as CSV under the names of the first, and return how many there are."""
    writer, count = CsvWriter(file), 0
    for count, row in enumerate(rows, 1):
        if count == 1:
            writer.row(row)
        writer.row(row.values())
    return count


def _write_csv(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    with path.open("x", newline="", encoding="utf-8") as file:
        return _write_rows(file, rows)


def _write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write a line of JSON for each row."""
    with path.open("x", encoding="utf-8") as file:
        return sum(file.write(json_text(row, one_line=True) + "\n") > 0 for row in rows)


def _write_parquet(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    from lightkit.data.table_sources import write_parquet

    return write_parquet(path, rows)


_WRITERS = {".csv": _write_csv, ".parquet": _write_parquet, ".jsonl": _write_lines, "": _write_csv}
"""What writes predictions, by the ending of the file."""


KINDS = ("data", "results", "worst", "importance", "attributions")
_MOST = 1000


def show(args: list[str]) -> int:
    """Write a page and a picture, and print what is on them."""
    options = Parser("show", "what", "overrides*", count="32", epoch="0", checkpoint="best", output=Path).read(args)
    if options.what not in KINDS:
        raise UserError("nothing to show", key="lightkit show", received=options.what, choices=KINDS)
    options.count = whole_number("--count", options.count, least=1, most=_MOST)
    options.epoch = whole_number("--epoch", options.epoch)
    options.repeats = options.repeats and whole_number("--repeats", options.repeats, least=1, most=_MOST)
    page, folder = _data(options) if options.what == "data" else _trained(options)
    files = page.write(options.output or folder, f"{options.what}-{options.split}")
    content = {"title": page.title, "files": files, "samples": [s.plain() for s in page.samples], "table": page.table}
    printed = [_table(page.table)] if page.table else []
    written = "\nwritten to " + "\n           ".join(map(str, files))
    return report(options, content, lambda: [f"{page.title}: {page.subtitle}", *printed, written])


def _data(options: Namespace) -> tuple[Page, Path]:
    """Make the page of a data set."""
    options.split = options.split or "train"
    if options.checkpoint != "best":
        raise UserError("data have no checkpoint", key="--checkpoint", received=options.checkpoint, fix="leave it out")
    cfg, folder = configuration(options, "device.name=cpu")
    # Here, not above: importing torch takes seconds, and a wrong configuration is told before.
    with importing():
        from lightkit.assembly import build_shared
        from lightkit.gallery.show import data_page
    with closing(build_shared(cfg, folder, trains=False).data) as data:
        page = data_page(data, str(cfg.name), split=options.split, count=options.count, epoch=options.epoch)
    return page, project() / run_files.OUTPUTS / run_files.SHOW / slug(str(cfg.name))


def _trained(options: Namespace) -> tuple[Page, Path]:
    """Make a page of what a run's model says."""
    for name, value, usual in (("--from", options.source, None), ("--epoch", options.epoch, 0)):
        if value != usual:
            raise UserError("only `lightkit show data` takes it", key=name, received=value, fix="leave it out")
    if not options.overrides:
        key, fix = f"lightkit show {options.what}", "`last` is the newest"
        raise UserError("RUN is missing", key=key, expected=f"{key} RUN", fix=fix)
    options.split = options.split or "test"
    options.run, *options.overrides = options.overrides
    runner, folder = trained_run(options)
    with importing():
        from lightkit.gallery import show as pages
    make = getattr(pages, f"{options.what}_page")
    given = {**vars(options), "goal": (runner.cfg.metrics.monitor, runner.cfg.metrics.mode)}
    given = {name: given[name] for name in signature(make).parameters if given.get(name) is not None}
    for name in ("method", "repeats"):
        if (value := getattr(options, name)) is not None and name not in given:
            raise UserError("this page does not take it", key=f"--{name}", received=value, fix="leave it out")
    with runner.trained(options.checkpoint) as learner:
        page = make(learner, run_name(folder), **given)
    return page, folder / run_files.SHOW


def _table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return lines of a page as a table, without columns that are empty."""
    titles = [name for name in lines[0] if any(line[name] not in (None, "") for line in lines)]
    right = [at for at, name in enumerate(titles) if isinstance(lines[0][name], int | float)]
    rows, cut = [[number(line[name]) for name in titles] for line in lines], {*range(len(titles))} - {*right}
    return table(titles, rows, right=right, cut=[*cut], columns=width() or 160)
