"""Measured results of the experiments: run what is missing, hold the classics, write the tables.

    python -m experiments.report                     # write the tables from the results that are kept
    python -m experiments.report --measure wine      # run what is missing of a page, then keep and show its results
    python -m experiments.report --classics wine     # tune and measure its classics again
    python -m experiments.report --rounding wine     # how far its results would be off on other processors
    python -m experiments.report --gather wine       # keep the results of the finished runs, with new stamps
    python -m experiments.report --check             # whether the tables are those of the results, and the results
                                                     # those of the code as it is: the status is 1 where not

Without names all pages are meant. Runs are kept in outputs/measured/; one that is finished is not run again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from experiments.report import measure, results, rounding, stamp, tables
from experiments.report.rows import PAGES

ROOT = Path(__file__).resolve().parents[2]


def check(root: Path, names: Sequence[str]) -> Iterator[str]:
    """What is wrong with tables and results, a line each."""
    for file, wanted in tables.written(root, names).items():
        if file.read_text(encoding="utf-8") != wanted:
            yield f"{file.relative_to(root)}: the table is not that of the results: python -m experiments.report"
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        found = [(name, line) for name in names for line in results.problems(root / "experiments", name, Path(folder))]
    yield from (f"experiments/{name}/results.json: {line}" for name, line in found)


def keep(root: Path, name: str, outputs: Path) -> None:
    """Keep the results of the finished runs of a page."""
    old = results.read(root / "experiments", name)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        found = results.gather(outputs, name, Path(folder), old)
    sources = stamp.sources(root / "experiments", name)
    kept = {key: old[key] for key in ("classics", "rounding") if key in old}
    results.write(root / "experiments", name, {**found, **kept, "sources": sources})


def keep_classics(root: Path, name: str) -> None:
    """Tune and measure the classics of a page, and keep their results."""
    measured = {key: results.summary(entry) for key, entry in classics_of(name)}
    found = results.read(root / "experiments", name)
    found["classics"] |= measured
    results.write(root / "experiments", name, found)


def keep_rounding(root: Path, name: str, outputs: Path) -> None:
    """Run a page with other instructions of the processor, and keep how far its results are apart."""
    rounding.again(root, outputs, name)
    found = results.read(root / "experiments", name)
    found["rounding"] = rounding.spread(outputs, name, found)
    results.write(root / "experiments", name, found)


def classics_of(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The classics of a page by their key, measured."""
    from experiments.report import classics, texts

    if name in ("char_lm", "transfer_text"):
        yield from texts.of_python() if name == "char_lm" else texts.of_prose()
    for key, contest in classics.CONTESTS.get(name, dict)().items():
        yield key, {**classics.hold(name, contest), "column": PAGES[name].variants[contest.variant].column}


def make(root: Path, name: str, options: argparse.Namespace) -> None:
    """What the command line wants of a page."""
    outputs = root / "outputs" / "measured"
    for variant in PAGES[name].variants if options.measure else ():
        for line in measure.measure(outputs, name, variant):
            sys.stdout.write(f"{line}\n")
    if options.measure or options.gather:
        keep(root, name, outputs)
    if options.classics:
        keep_classics(root, name)
    if options.rounding:
        keep_rounding(root, name, outputs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; see the head of this file.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m experiments.report", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="PAGE", help="folders of experiments/")
    for name in ("measure", "gather", "classics", "rounding", "check"):
        parser.add_argument(f"--{name}", action="store_true", help="see above")
    parser.add_argument("--root", type=Path, default=ROOT, help="the project, by default that of this file")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in PAGES]
    if unknown:
        parser.error(f"no such page: {', '.join(unknown)}; there are {', '.join(PAGES)}")
    names = options.names or [*PAGES]
    if options.check:
        found = list(check(options.root, names))
        sys.stdout.write("".join(f"{line}\n" for line in found) or "every table is as measured\n")
        return 1 if found else 0
    for name in names:
        make(options.root, name, options)
    for file, text in tables.written(options.root, names).items():
        file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
