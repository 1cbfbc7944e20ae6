"""`lightkit new`: a project of one's own, with data, a model, an experiment, a test and a script that predicts."""

from __future__ import annotations

import importlib.util
import json
import keyword
import re
import sys
from pathlib import Path

from lightkit.cli.arguments import Parser
from lightkit.cli.terminal import complain, say
from lightkit.common.errors import UserError, writing_to
from lightkit.processes.children import run


class Template:
    """What a project begins with; a class of one's own names folders of its own."""

    layers: tuple[str | Path, ...] = ()
    """The folders that it is made of, later ones over earlier ones: below the templates of lightkit, or absolute."""
    example: tuple[str, ...] = ()
    """What its `predict.py` is tried with."""
    without: tuple[str, ...] = ()
    """Folders of the layers that are left out."""


class OwnProject(Template):
    """A data set and a model in Python."""

    layers, example = ("_mlp", "own"), ("0.3", "-0.5")


class CsvProject(Template):
    """A table."""

    layers, example = ("_mlp", "csv"), ("data/table.csv",)


class ImagesProject(Template):
    """A folder of pictures for each class."""

    layers, example = ("images",), ("data/images/circle/000.png",)


class TimmProject(Template):
    """The same pictures, and in the place of their network a model of timm."""

    layers, example, without = ("images", "timm"), ImagesProject.example, ("my_project",)


class TextProject(Template):
    """A text."""

    layers, example = ("text",), ("The ",)


DOOR = "new"
_COMMON = "_common"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_PLACEHOLDER, _TITLE, _EXAMPLE = "my_project", "my-project", '["my_example"]'
_TAKEN = ("conf", "data", "deploy", "experiments", "outputs", "predict", "tests")


def new(args: list[str]) -> int:
    """Make a project."""
    options = Parser("new", "name", unchecked=("--from",), source="own").read(args)
    from lightkit.config.doors import load, names

    if options.source not in (choices := names(DOOR)):
        raise UserError("no such kind of project", key="--from", received=options.source, choices=choices)
    kind, own = load(DOOR, options.source, Template)
    template = kind(**own)
    folder = Path(options.name).expanduser()
    package = _package(folder.name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        fix = "another name; nothing is written over"
        raise UserError("this is there already", key=str(folder), fix=fix, family="cannot-write")
    with writing_to(folder):
        _write(folder, template, package)
    whole = _make_data(folder)
    say(f"{options.source} project {folder.name} in {folder.resolve()}\n")
    words = (f'"{word}"' if " " in word else word for word in template.example)
    begin = [f"cd {options.name}", *([] if whole else ["python make_data.py"])]
    rows = [
        *((line, "") for line in begin),
        ("lightkit train experiment=baseline", "train"),
        ("lightkit board --detach", "watch the curves"),
        ("python deploy.py", "write the model as one file, model.pt2"),
        (f"python predict.py {' '.join(words)}", "use it, without lightkit"),
        ("python -m pytest", "test all of that"),
    ]
    width = max(len(line) for line, _ in rows)
    for line, what in rows:
        say(f"  {line:<{width}}  {what}".rstrip())
    say("\nREADME.md says what to put where.")
    return 0


def _package(name: str) -> str:
    """Return the name of the project's package: that of the folder, as Python spells it.

    Raises:
        UserError: It is none, or it is taken.
    """
    package = name.replace("-", "_").lower()
    if not _NAME.fullmatch(name) or keyword.iskeyword(package):
        expected = "letters, digits, - and _, a letter first: it names the folder and the package"
        raise UserError("not a name for a project", key="NAME", received=name, expected=expected)
    if package in _TAKEN or package in sys.stdlib_module_names or importlib.util.find_spec(package) is not None:
        what = "a package of this name is there already, and would be imported in the place of the project's"
        raise UserError(what, key="NAME", received=name, fix=f"{name}-project")
    return package


def _write(folder: Path, template: Template, package: str) -> None:
    """Write the files of a project, with its names in them."""
    from lightkit.config.project import shipped_templates

    words = {_EXAMPLE: json.dumps(template.example), _PLACEHOLDER: package, _TITLE: folder.name}
    for layer in (_COMMON, *template.layers):
        source = shipped_templates() / layer
        for file in sorted(source.rglob("*")):
            parts = file.relative_to(source).parts
            if not file.is_file() or {"__pycache__", *template.without} & {*parts}:
                continue
            place = file.relative_to(source).as_posix().replace(_PLACEHOLDER, package)
            target = folder / (".gitignore" if place == "gitignore" else place)
            text = file.read_text(encoding="utf-8")
            for word, own in words.items():
                text = text.replace(word, own)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")


def _make_data(folder: Path) -> bool:
    """Let the project make the data that it begins with; tell what is missing for it."""
    if not (folder / "make_data.py").is_file():
        return True
    done = run([sys.executable, "make_data.py"], cwd=folder)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["it failed"])[-1]
        complain(f"warning: make_data.py has not made the data: {reason}")
    return done.returncode == 0
