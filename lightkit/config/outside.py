"""What a configuration names outside of itself: files and folders, columns of tables, modules of the user's.

Paths are looked at, of a table the first line is read, and modules are read as text: nothing of all that is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightkit.common import run_files
from lightkit.common.csv_lines import CsvFile, open_csv
from lightkit.common.errors import UserError, keys_under
from lightkit.config.allow import judge, targets_in
from lightkit.config.imports import failing_import
from lightkit.config.origins import Key, dotted
from lightkit.config.project import located
from lightkit.config.report import Report
from lightkit.config.schema import Config

Node = dict[str, Any]
_CSV, _IMAGES = "lightkit.data.csv_file.csv", "lightkit.data.images.ImageFolder"
_DATA: dict[str, dict[str, str]] = {
    _CSV: dict.fromkeys(("path", "val_path", "test_path"), "a CSV file"),
    _IMAGES: {"root": "a folder with the images of each class in a folder of their own"},
    "lightkit.data.text.Text": {"path": "a text file, or a folder of text files"},
}
"""Arguments of data sets that name a file or folder, seen from the working directory."""
_TEXT = {"delimiter": ",", "encoding": "utf-8"}
"""How the text of a table is read, where nothing else is said."""
_NAMING = ("target", "features", "categorical", "split_column")
"""Arguments of a table that name columns."""
_WEIGHTS = {"path": "the folder of a run, or a file or folder of weights", "adapter": "an adapter file"}
_TEACHER = "the folder of the teacher's run"


def check_outside(tree: Node, report: Report) -> None:
    """Report the data and the imports that a run which is about to start would not find.

    One that was trained needs less of it: not its base, and its data only to go on.
    """
    told = set[str]()
    for key, node in targets_in(tree):
        _check_data(node, key, report)
        found = None if judge(node["_target_"], report.trust) else failing_import(node["_target_"], report.trust)
        if found is not None and found.place not in told:
            told.add(found.place)
            what = f"{node['_target_']} can't be imported: {found.place}: {found.what}"
            report.add((*key, "_target_"), what, received=found.name, choices=found.choices, fix=found.fix)


def check_finetune_files(cfg: Config, report: Report) -> None:
    """Report weights and a teacher that a run which is about to start would not find."""
    for name, kind in _WEIGHTS.items():
        _check_exists(getattr(cfg.finetune.weights, name, None), ("finetune", "weights", name), kind, report)
    teacher, key = cfg.finetune.distill.teacher, ("finetune", "distill", "teacher")
    found = _check_exists(teacher, key, _TEACHER, report)
    if teacher is not None and found and not (located(teacher) / run_files.CONFIG).is_file():
        report.add(key, "not the folder of a run: it has no config.yaml", expected=_TEACHER, received=teacher)


def _check_data(node: Node, key: Key, report: Report) -> None:
    """Check the files and folders of a data set, and the columns of a table."""
    wanted = _DATA.get(node["_target_"], {})
    there = [
        name
        for name, kind in wanted.items()
        if _check_exists(node.get(name), (*key, name), kind, report, from_project=False)
    ]
    if node["_target_"] == _IMAGES and there and not Path(node["root"]).expanduser().is_dir():
        report.add((*key, "root"), "a file, not a folder", expected=wanted["root"], received=node["root"])
    if node["_target_"] == _CSV:
        _check_columns(node, there, key, report)


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
        report.add(key, "an empty path", expected=f"{kind}, or null" if from_project else kind, received=value)
        return False
    path, elsewhere = Path(value).expanduser(), located(value)
    if path.exists() or (from_project and elsewhere.exists()):
        return True
    parent = str(Path(value).parent)
    folder = located(parent) if from_project else Path(parent).expanduser()
    beside = sorted(item.name for item in folder.iterdir()) if folder.is_dir() else []
    near = [str(Path(value).with_name(name)) for name in beside if not name.startswith(".")]
    what = "there is no such file or folder" + ("" if folder.is_dir() else f": there is no folder {folder}")
    fix = f"{dotted(key)}={elsewhere}" if elsewhere.exists() else None
    report.add(key, what, expected=kind, received=value, choices=near, fix=fix)
    return False


def _check_columns(node: Node, files: Sequence[str], key: Key, report: Report) -> None:
    """Report names of columns that are not in the first lines of tables.

    Args:
        node: The node of the data set.
        files: Arguments that name files which are there.
        key: Where the node stands.
        report: Gets the problems.
    """
    asked = {part: _names(node.get(part)) for part in _NAMING}
    known: Sequence[str] = [name for names in asked.values() for name in names]
    for name in files:
        file = _open_table(node, name, key, report)
        if file is None:
            continue
        # What the first file lacks is told of it alone; of the others it is they that are wrong.
        wanted = asked if name == "path" else {name: [*dict.fromkeys(known)]}
        for part, names in wanted.items():
            for error in file.unknown(names, argument=part):
                error.put_under(dotted(key))
                report.take(error)
        known = [item for item in known if name != "path" or item in file.names]


def _open_table(node: Node, name: str, key: Key, report: Report) -> CsvFile | None:
    """Open a table and read the names of its columns; None where they cannot be read, which is reported."""
    file, options = Path(node[name]).expanduser(), {part: node.get(part, usual) for part, usual in _TEXT.items()}
    is_pipe = not file.is_file() and not file.is_dir()  # which gives what it has only once
    if is_pipe or not all(isinstance(value, str) for value in options.values()):
        return None
    try:
        with keys_under(dotted(key)):
            return open_csv(file, argument=name, **options)
    except UserError as error:
        report.take(error)
        return None


def _names(value: Any) -> list[str]:
    listed = value if isinstance(value, list) else [value]
    return [item for item in listed if isinstance(item, str)]
