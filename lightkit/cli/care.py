"""`lightkit runs tag`, `note`, `rm`, `du`, `archive` and `import`: what becomes of runs afterwards."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightkit.cli.arguments import Parser
from lightkit.cli.terminal import complain, report, say, table
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.text import counted, format_bytes
from lightkit.runs import care
from lightkit.runs.archive import archive, unpack
from lightkit.runs.catalog import find_run, path_from, places_of, project, runs_of
from lightkit.runs.filters import Condition, matching, read_statuses
from lightkit.runs.index import RunIndex, all_records
from lightkit.runs.reading import run_folders
from lightkit.sweep.plan import find_sweep


def tag_runs(args: list[str]) -> int:
    """Give runs a tag, or take it away."""
    options = Parser("runs tag", "tag", "runs*", status="").read(args)
    changed = care.tag(_chosen(options, project()), options.tag, remove=options.remove)
    say(f"{options.tag} {'taken from' if options.remove else 'given to'} {counted(changed, 'run')}")
    return 0


def note_runs(args: list[str]) -> int:
    """Write down something about a run."""
    options = Parser("runs note", "run", "text").read(args)
    care.note(find_run(options.run, project()), options.text)
    return 0


def rm_runs(args: list[str]) -> int:
    """Put runs into the bin of the project, or empty it."""
    options, root = Parser("runs rm", "runs*", status="").read(args), project()
    if options.empty_bin:
        say(f"{format_bytes(care.empty_bin(root))} are free again")
        return 0
    going = care.removable(_chosen(options, root), root, checkpoints=options.checkpoints)
    if not going:
        raise UserError("they have no checkpoints", key="lightkit runs rm", family="no-checkpoint")
    say(
        table(["size", "folder"], [(format_bytes(care.size_of(one)), path_from(root, one)) for one in going], right=[0])
    )
    if not options.yes and not _agreed(f"move {counted(len(going), 'folder')} to the bin? [y/N] "):
        return 1
    place = care.put_aside(going, root)
    say(f"moved to {path_from(root, place)}; `lightkit runs rm --empty-bin` deletes what is in the bin")
    return 0


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        fix = "--yes, if you know what goes"
        raise UserError("nobody can be asked here", key="lightkit runs rm", fix=fix, family="wrong-command")
    sys.stdout.write(question)
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def du_runs(args: list[str]) -> int:
    """Say what runs take on the disk."""
    options, root = Parser("runs du", "runs*", status="").read(args), project()
    seen, rows = set[tuple[int, int]](), list[dict[str, Any]]()
    for folder in _chosen(options, root, everything=True):
        ckpts, members = (care.size_of(folder / name, seen) for name in (run_files.CHECKPOINTS, run_files.MEMBERS))
        sizes = {"bytes": ckpts + members + care.size_of(folder, seen), "checkpoints": ckpts, "members": members}
        rows.append({**sizes, "folder": path_from(root, folder)})
    rows.sort(key=lambda row: -row["bytes"])
    aside, code = (
        care.size_of(root / run_files.OUTPUTS / name, seen) for name in (run_files.BIN, run_files.CODE_STORE)
    )

    def lines() -> Iterator[str]:
        cells = [[one if isinstance(one, str) else format_bytes(one) for one in row.values()] for row in rows]
        yield table(["size", "checkpoints", "members", "folder"], cells, right=[0, 1, 2], cut=[3])
        total = format_bytes(sum(row["bytes"] for row in rows))
        yield f"\n{total} in {counted(len(rows), 'run')}; the bin has {format_bytes(aside)}"

    return report(options, {"runs": rows, "bin": aside, "code": code}, lines)


def archive_runs(args: list[str]) -> int:
    """Write runs into one file."""
    options, root = Parser("runs archive", "file", "runs+", status="").read(args), project()
    path, expected = Path(options.file), "a name in .tar or .tar.gz"
    if not path.name.endswith((".tar", ".tar.gz")):
        raise UserError("no archive", key="lightkit runs archive", received=path.name, expected=expected)
    count = archive(care.whole_folders(_chosen(options, root)), path, root, overwrite=options.overwrite)
    say(f"{path} has {counted(count, 'file')}, {format_bytes(path.stat().st_size)}: `lightkit runs import {path.name}`")
    return 0


def import_runs(args: list[str]) -> int:
    """Unpack an archive of runs."""
    options, root = Parser("runs import", "file").read(args), project()
    if not Path(options.file).is_file():
        raise UserError("no such file", key="lightkit runs import", received=options.file, family="file")
    for folder in unpack(Path(options.file), root):
        say(path_from(root, folder))
    complain("a run from elsewhere builds what is yours, or what it names, only where you say so: trust=[PACKAGE]")
    return 0


def _chosen(options: Namespace, root: Path, *, everything: bool = False) -> list[Path]:
    """Return the runs that are named, and fulfil the conditions.

    Args:
        options: Names and conditions.
        root: The project.
        everything: Whether no name and no condition mean all runs.

    Raises:
        UserError: There are none, or nothing was said.
    """
    named, conditions = list(options.runs), [Condition.parse(text) for text in options.where]
    statuses = read_statuses(options.status or "")
    if not (named or conditions or statuses or everything):
        raise UserError("which runs?", key="lightkit runs", expected="names of runs, --where or --status")
    folders: Sequence[Path] = [one for text in named for one in _runs_of(text, root)]
    records = RunIndex(root).records(dict.fromkeys(folders)) if named else all_records(root)
    found = matching(records, statuses=statuses, conditions=conditions)
    if not found and not everything:
        raise UserError("no run is like that", key="lightkit runs", family="no-such-run")
    return [record.folder for record in found]


def _runs_of(text: str, root: Path) -> list[Path]:
    """Return the runs that a name means, of a sweep its jobs: all in a folder only where it is below `outputs/`."""
    home = (root / run_files.OUTPUTS).resolve()
    inside = [place for place in places_of(text, root) if home in (place.resolve(), *place.resolve().parents)]
    if found := runs_of(text, root) if any(place.is_dir() for place in inside) else []:
        return found
    try:
        return [find_run(text, root)]
    except UserError:
        with suppress(UserError):
            return [*run_folders(find_sweep(text, root))]
        raise
