"""The names of what stands in the folder of a run: each is written once, and here it is looked for elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import lightkit
from lightkit.common import run_files

PACKAGE = Path(lightkit.__file__).parent
NAMES = {name: value for name, value in vars(run_files).items() if name.isupper() and isinstance(value, str)}


def spelled_out(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Strings in code that are one of the names; a plain word counts where a path is made from it."""
    paths = [node for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)]
    in_path = {id(node.right) for node in paths}
    in_conf = {id(node.right) for node in paths if ast.unparse(node.left).endswith("'conf'")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in NAMES.values() and id(node) not in in_conf:
            name = str(node.value)
            if "." in name or id(node) in in_path:
                yield node.lineno, name


def test_no_other_module_spells_a_name_out() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line} {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != Path(run_files.__file__)
        if any(
            f'"{name}"' in (text := path.read_text(encoding="utf-8")) for name in NAMES.values()
        )  # parsing takes long
        for line, name in spelled_out(ast.parse(text))
    ]
    assert found == [], "use lightkit.common.run_files"


def test_names_differ() -> None:
    assert len({*NAMES.values()}) == len(NAMES)


def test_each_name_is_given_once() -> None:
    tree = ast.parse(Path(run_files.__file__).read_text(encoding="utf-8"))
    names = [target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]  # type: ignore[attr-defined]
    assert len(names) == len(set(names))
