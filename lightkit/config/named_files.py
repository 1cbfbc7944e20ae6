"""Files and folders that a configuration names: whether they are there, and of tables their columns and cells.

Paths are looked at and tables are judged before anything else is imported.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from glob import has_magic
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lightkit.common import run_files
from lightkit.common.errors import Problems, UserError
from lightkit.config.judging import targets_in
from lightkit.config.origins import Key, dotted
from lightkit.config.project import located
from lightkit.config.schema.finetune import FinetuneConfig
from lightkit.config.tree import Report

Node = dict[str, Any]
TABLE_FILES = ("path", "val_path", "test_path")
"""Arguments of a table that name files."""
_LARGE = 64 * 2**20
"""Bytes of tables from which on they are judged when the run reads them: twice would take too long."""


_TABLES, _IMAGES = ("lightkit.data.csv_file.csv", "lightkit.data.table"), "lightkit.data.images.ImageFolder"
_DATA: dict[str, dict[str, str]] = {
    **{name: dict.fromkeys(TABLE_FILES, "a file, a folder or a pattern of files") for name in _TABLES},
    _IMAGES: dict.fromkeys(("root", "test_root"), "a folder with the images of each class in a folder of their own"),
    "lightkit.data.text.Text": {"path": "a text file, or a folder of text files"},
}
"""Arguments of data sets that name a file or folder, seen from the working directory."""
_WEIGHTS = {"path": "the folder of a run, or a file or folder of weights", "adapter": "an adapter file"}
_TEACHER = "the folder of the teacher's run"


def check_named_files(tree: Node, report: Report) -> None:
    """Report the data that a run which is about to start would not find."""
    for key, node in targets_in(tree):
        _check_data(node, key, report)


def check_finetune_files(node: FinetuneConfig, report: Report) -> None:
    """Report weights and a teacher that a run which is about to start would not find."""
    for name, kind in _WEIGHTS.items():
        _check_exists(getattr(node.weights, name, None), ("finetune", "weights", name), kind, report)
    teacher, key = node.distill.teacher, ("finetune", "distill", "teacher")
    found = _check_exists(teacher, key, _TEACHER, report)
    if teacher is not None and found and not (located(teacher) / run_files.CONFIG).is_file():
        what, facts = "not the folder of a run: it has no config.yaml", {"expected": _TEACHER, "received": teacher}
        report.add(key, what, **facts, family="no-such-run")


def _check_data(node: Node, key: Key, report: Report) -> None:
    """Check the files and folders of a data set, and the columns of a table."""
    wanted = _DATA.get(node["_target_"], {})
    there = [
        name
        for name, kind in wanted.items()
        if has_magic(str(node.get(name)))
        or _check_exists(node.get(name), (*key, name), kind, report, from_project=False)
    ]
    for name in there if node["_target_"] == _IMAGES else ():
        if not Path(node[name]).expanduser().is_dir():
            facts = {"expected": wanted[name], "received": node[name], "family": "data-not-found"}
            report.add((*key, name), "a file, not a folder", **facts)
    if node["_target_"] in _TABLES:
        for error in _judged(node, there)[0]:
            error.put_under(dotted(key))
            report.take(error)


def _check_exists(value: Any, key: Key, kind: str, report: Report, *, from_project: bool = True) -> bool:
    """Tell whether there is a file or folder of that name; if not, report it with what is beside it.

    Args:
        value: The name.
        key: Where it stands.
        kind: What it should be.
        report: Gets the problem.
        from_project: Whether it is looked for in the project and its `outputs/`, too.
    """
    if not isinstance(value, str):
        return False
    if not value.strip():
        expected = f"{kind}, or null" if from_project else kind
        report.add(key, "an empty path", expected=expected, received=value, family="missing-value")
        return False
    if Path(value).expanduser().exists() or (from_project and located(value).exists()):
        return True
    parent, elsewhere = str(Path(value).parent), located(value)
    folder = located(parent) if from_project else Path(parent).expanduser()
    beside = sorted(item.name for item in folder.iterdir()) if folder.is_dir() else []
    near = [str(Path(value).with_name(name)) for name in beside if not name.startswith(".")]
    what = "there is no such file or folder" + ("" if folder.is_dir() else f": there is no folder {folder}")
    fix = f"{dotted(key)}={elsewhere}" if elsewhere.exists() else None
    family = "data-not-found" if key[0] == "data" else "file"
    report.add(key, what, expected=kind, received=value, choices=near, fix=fix, family=family)
    return False


def kind_of_target(cfg: DictConfig) -> str | None:
    """Return what kind of target a table has, such as `regression`; None for other data, and where it cannot be read.

    Args:
        cfg: A composition, which need not be right.
    """
    with suppress(OmegaConfBaseException, TypeError, KeyError):
        node = OmegaConf.to_container(cfg.data.dataset, resolve=True, throw_on_missing=True)
        if node["_target_"] in _TABLES:  # type: ignore[index, call-overload]
            there = [name for name in TABLE_FILES if node.get(name)]  # type: ignore[union-attr]
            return _judged(node, there, whole=False)[1]
    return None


def _judged(node: Any, there: Sequence[str], *, whole: bool = True) -> tuple[tuple[UserError, ...], str | None]:
    """Return what is wrong in tables, where they are not large (else who reads them says it), and the kind of target.

    Args:
        node: The node of the data set.
        there: Arguments that name files which are there.
        whole: Whether to judge small tables only; otherwise of large ones the kind of target is found.
    """
    lost = {"_target_", *(name for name in TABLE_FILES if name not in there)}
    asked = {name: value for name, value in node.items() if name not in lost}
    try:
        typed = json.dumps(asked)
    except TypeError:
        return (), None  # a value that is wrong, or not known yet
    from lightkit.data.table_sources import table_files

    paths = [path for name in there for path in table_files(node[name])]
    is_pipe = not all(path.is_file() for path in paths)  # which gives what it has only once
    if "path" not in there or is_pipe:
        return (), node.get("task")
    about = tuple((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in paths)
    is_large = sum(size for *_, size in about) > _LARGE
    return ((), None) if is_large and whole else _table_problems(typed, about, is_large)


@cache
def _table_problems(
    asked: str, about: Sequence[tuple[str, int, int]], is_large: bool
) -> tuple[tuple[UserError, ...], str | None]:
    """Judge tables once, however many runs learn from them, and tell the kind of target.

    Args:
        asked: The arguments of the data set as JSON.
        about: Path, time and size of each file: others are judged anew.
        is_large: Whether only the targets are looked at.
    """
    from lightkit.data.csv_table import find_task, read_tables
    from lightkit.data.table_spec import TableSpec

    problems, task = Problems(), None
    with suppress(TypeError, ValueError, AttributeError), problems.noted():  # of values that are wrong by themselves
        spec = TableSpec(**json.loads(asked))
        task = find_task(spec) if is_large else read_tables(spec).task
    return (() if is_large else tuple(problems)), task
