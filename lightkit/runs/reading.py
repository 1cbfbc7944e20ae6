"""What the folder of a run says: its configuration, its result, what it has logged, and what else was written down.

All readers of the files of a run are here: of such as are written whole, and of those that grow by lines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lightkit.common import run_files
from lightkit.common.errors import UserErrors
from lightkit.common.reading import (
    NAMED_TEXTS,
    NUMBER,
    OBJECT,
    OBJECTS,
    STATUS,
    TEXT,
    TEXTS,
    WHOLE,
    Shape,
    UnreadableError,
    fitting,
    opened,
    parse_json,
    parse_object,
    read_file,
    read_lines,
    read_row,
    read_text,
    refuse_blank,
)

if TYPE_CHECKING:
    from lightkit.config import Composed

# Everything of `lightkit.config` is imported inside the functions: it takes its time, and a list of runs needs none.

_T = TypeVar("_T")
TORN = "torn at its end"
"""What is wrong with a last line that a process was about to write as it was killed."""
_LONGEST_CONFIG = 1 << 20
"""Bytes of a configuration; the longest ones have some ten thousand."""
_VALUES: Shape = {"*": NUMBER}
_RESULT: Shape = {
    "status": STATUS,
    "reason": TEXT,
    "name": TEXT,
    "seconds": NUMBER,
    "system": {"bound": TEXT, "advice": TEXTS, "data_wait": NUMBER},
    "objective": {"name": TEXT, "mode": TEXT, "value": NUMBER, "step": WHOLE},
    "best": _VALUES,
    "test": _VALUES,
    "metrics": _VALUES,
    "epochs": WHOLE,
    "steps": WHOLE,
    "exit_status": WHOLE,
}
_FACTS: Shape = {
    "time": TEXT,
    "folder": TEXT,
    "data": TEXT,
    "packages": NAMED_TEXTS,
    "command": TEXTS,
    "total_steps": WHOLE,
    "git": OBJECT,
}
_LABELS: Shape = {"tags": TEXTS, "note": TEXT}
_ENSEMBLE: Shape = {"method": TEXT, "members": OBJECTS, "settings": OBJECT, "rows": _VALUES}
_ASIDE = (run_files.FOUND_RUNS, run_files.BIN, run_files.UNPACKED, run_files.CODE_STORE)
_HIDDEN = (".hydra", run_files.SWEEP_TOGETHER, *_ASIDE)
_OWN = (
    *_HIDDEN,
    run_files.CHECKPOINTS,
    run_files.FIGURES,
    run_files.PROFILE,
    run_files.MEMBERS,
    run_files.TOGETHER,
    run_files.CODE,
)
"""Folders in that of a run in which there are no others."""


def run_folders(folder: Path, marks: Sequence[str] = (run_files.CONFIG,)) -> dict[Path, set[str]]:
    """Find every folder below another that holds a run, in no order; see `lightkit.runs.catalog.runs_below`.

    Args:
        folder: Where to look.
        marks: Names of files each of which makes a folder that of a run.

    Returns:
        The folders, each with the names of what is in it.
    """
    found, waiting, hidden, own = dict[Path, set[str]](), [folder], {*_HIDDEN, *marks}, {*_OWN, *marks}
    while waiting:
        place = waiting.pop()
        try:
            with os.scandir(place) as entries:
                listed = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        except OSError:
            continue
        is_run = not listed.keys().isdisjoint(marks)
        if is_run:
            found[place] = {*listed}
        left_out = own if is_run else hidden
        waiting += [place / name for name, is_folder in listed.items() if is_folder and name not in left_out]
    return found


def read_run(folder: Path, overrides: Sequence[str] = (), **options: Any) -> Composed:
    """Read the configuration of a run, and say where to go when the modules of its own project are not at hand.

    They are not looked up there by themselves: that folder is named by a file that anybody may have written.

    Args:
        folder: Folder of the run.
        overrides: Values to change.
        **options: Others of `lightkit.config.load_run`.

    Raises:
        UserErrors: Everything that is wrong with the configuration.
    """
    from lightkit.config import load_run

    try:
        return load_run(folder, overrides, **options)
    except UserErrors as wrong:
        home = _other_project(folder)
        if home is None:
            raise
        for error in wrong.errors:
            if error.key is not None and error.key.endswith("_target_"):
                error.change_fix(f"the run is from another project; if you know it, run the command in {home}")
        raise UserErrors(wrong.errors) from wrong


def read_run_unchanged(folder: Path, overrides: Sequence[str]) -> Composed:
    """Read the configuration of a run as it was, without any of these overrides but those that let it be read.

    Raises:
        UserErrors: Everything that is wrong with the configuration.
    """
    from lightkit.config.origins import dotted
    from lightkit.config.policy import user_only_keys

    keys = {dotted(key) for key in user_only_keys()}
    return read_run(folder, [text for text in overrides if text.lstrip("+").partition("=")[0] in keys])


def read_config(folder: Path, damage: list[str] | None = None) -> str:
    """Return the text of a run's configuration; empty where it cannot be read.

    Args:
        folder: The run's folder.
        damage: Gets a line if it is damaged; of the other readers as well.
    """

    def read() -> str:
        text = read_text(folder / run_files.CONFIG, _LONGEST_CONFIG)
        refuse_blank(text)
        return text

    return _noting(run_files.CONFIG, damage, read, "")


def read_overrides(folder: Path, damage: list[str] | None = None) -> list[str]:
    """Return what was typed for a run so far; nothing where it cannot be read."""

    def read() -> list[str]:
        lines = read_text(folder / run_files.OVERRIDES).splitlines()
        return [str(parse_json(line.removeprefix("- "))) for line in lines if line.startswith("- ")]

    return _noting(run_files.OVERRIDES, damage, read, [])


def read_facts(folder: Path, damage: list[str] | None = None) -> dict[str, Any]:
    """Return what `environment.json` says of versions, device and data; empty where it cannot be read."""
    return read_json(folder / run_files.ENVIRONMENT, _FACTS, damage)


def read_result(folder: Path, damage: list[str] | None = None) -> dict[str, Any]:
    """Return the content of `result.json`; empty where it cannot be read, as before a run has ended."""
    return read_json(folder / run_files.RESULT, _RESULT, damage)


def read_labels(folder: Path, damage: list[str] | None = None) -> dict[str, Any]:
    """Read the tags and the note of a run; see `read_result`."""
    return read_json(folder / run_files.LABELS, _LABELS, damage)


def read_ensemble_plan(folder: Path, damage: list[str] | None = None) -> dict[str, Any]:
    """Return the content of `ensemble.json`; empty where it cannot be read, or the run is no ensemble."""
    return read_json(folder / run_files.ENSEMBLE, _ENSEMBLE, damage)


def read_metrics(folder: Path, name: str = "") -> list[dict[str, Any]]:
    """Return the rows of values that a run has logged; see `lightkit.loggers.JsonlLogger`.

    Args:
        folder: The run's.
        name: Only those are read that have a value of this name.
    """
    return read_jsonl(folder / run_files.METRICS, name)


def read_jsonl(path: Path, name: str = "") -> list[dict[str, Any]]:
    """Read the rows of a `metrics.jsonl`; one torn by a crash is left out, and so is what is no row.

    Args:
        path: The file; a missing one has no rows.
        name: As of `read_metrics`.
    """
    mark = json.dumps(name).encode() if name else b""
    return [row for row in read_lines(path, lambda line: read_row(line) if mark in line else {}) if row]


def row_of(line: bytes | str) -> dict[str, Any]:
    """Return a row of `metrics.jsonl`; empty for a line that is none, such as one that is being written."""
    try:
        return read_row(line)
    except UnreadableError:
        return {}


def checked_lines(path: Path, read: Callable[[bytes], object] = read_row) -> list[tuple[bytes, str]]:
    """Return the lines of a file, each with what is wrong with it; nothing is with an empty one.

    Args:
        path: The file; a missing one has no lines.
        read: Reads a line; `UnreadableError` of one that is none.

    Raises:
        UnreadableError: The file cannot be read.
    """

    def problem(line: bytes) -> str:
        if not line.strip():
            return ""
        if not line.endswith(b"\n"):
            return TORN
        try:
            read(line)
        except UnreadableError as error:
            return str(error)
        return ""

    with suppress(FileNotFoundError), opened(path) as file:
        return [(line, problem(line)) for line in file]
    return []


def read_json(path: Path, shape: Shape = {}, damage: list[str] | None = None) -> dict[str, Any]:  # noqa: B006
    """Return the content of a file of a run; what cannot be read is left out, and empty where that is all of it.

    Args:
        path: The file.
        shape: What kind of value stands where.
        damage: Gets a line for each thing that is wrong.
    """
    wrong = list[str]()
    nothing = dict[str, Any]()
    found = _noting(path.name, damage, lambda: fitting(parse_object(read_file(path)), shape, wrong), nothing)
    if damage is not None:
        damage += [f"{path.name}: {what}" for what in wrong]
    return found


def _noting(name: str, damage: list[str] | None, read: Callable[[], _T], otherwise: _T) -> _T:
    """Read a file, and note where it is damaged; one that is missing is not."""
    try:
        return read()
    except FileNotFoundError:
        return otherwise
    except UnreadableError as error:
        if damage is not None:
            damage.append(f"{name}: {error}")
        return otherwise


def _other_project(folder: Path) -> Path | None:
    """Find the project that a run was trained in, or whose outputs it lies in, where it is not the one we are in."""
    from lightkit.config.project import project_of, project_root

    noted = read_facts(folder).get("folder")
    places = [*([Path(noted)] if isinstance(noted, str) else []), folder.resolve()]
    homes = [project_of(place) for place in places if place.is_dir()]
    home = next((found for found in homes if found is not None), None)
    return None if home == project_root() else home
