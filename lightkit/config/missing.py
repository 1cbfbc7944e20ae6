"""Targets that are not there: what to do about a `_target_` that does not exist, and imports that would fail.

Modules are read as text. Of imports only what is certain is told: what a module imports after it has called something,
in `try` or in `if`, may well be there, as the path of imports is open to change.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import lightkit.config.modules as modules
from lightkit.common import run_files
from lightkit.common.suggest import nearest
from lightkit.config.judging import judge, paths_in
from lightkit.config.lookup import (
    BrokenError,
    Found,
    OpaqueSourceError,
    TargetError,
    find_known,
    relative,
    split,
    step,
)
from lightkit.config.modules import Module
from lightkit.config.origins import Key
from lightkit.config.policy import Trust
from lightkit.config.project import beside, project_root
from lightkit.config.tree import Report

EXTRAS = {
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "onnx",
    "peft": "peft",
    "schedulefree": "optim",
    "timm": "vision",
    "torchao": "optim",
    "torchvision": "vision",
}
"""Packages that lightkit can do without, with the extra that brings each."""
_ON_PYPI = """
Bio=biopython PIL=pillow bs4=beautifulsoup4 cv2=opencv-python efficientnet_pytorch=efficientnet-pytorch
faiss=faiss-cpu fitz=PyMuPDF git=GitPython ignite=pytorch-ignite imblearn=imbalanced-learn lion_pytorch=lion-pytorch
mamba_ssm=mamba-ssm pl_bolts=lightning-bolts pyro=pyro-ppl pytorch_lightning=pytorch-lightning
pytorch_metric_learning=pytorch-metric-learning pytorch_tabnet=pytorch-tabnet
rotary_embedding_torch=rotary-embedding-torch segmentation_models_pytorch=segmentation-models-pytorch
sentence_transformers=sentence-transformers skimage=scikit-image sklearn=scikit-learn torch_geometric=torch-geometric
torch_optimizer=torch-optimizer vit_pytorch=vit-pytorch x_transformers=x-transformers yaml=pyyaml accelerate
albumentations bitsandbytes botorch deepspeed diffusers einops escnn fastai flair gpytorch kornia lightning monai nltk
numpy optuna pandas scipy skorch spacy torchaudio torchmetrics torchtext transformers ultralytics xformers xgboost
"""
PACKAGES = {word.partition("=")[0]: word.rpartition("=")[2] for word in _ON_PYPI.split()}
"""Names on PyPI of packages that networks and transforms come from, by the name that Python imports."""
_HOMES = {
    "loss": ("torch.nn", "lightkit.losses"),
    "metrics": ("torchmetrics", "torchmetrics.classification"),
    "model": ("lightkit.models", "torch.nn", "torchvision.models"),
    "optim": ("torch.optim", "lightkit.optim"),
    "scheduler": ("lightkit.optim",),
    "ensemble": ("lightkit.ensemble.methods",),
}
"""Modules in which a class without its module may be, by the first part of the key."""
_LEFT_OUT = {run_files.OUTPUTS, "lightkit", "tests", "build", "dist", "node_modules", "site-packages", "__pycache__"}
_MOST_FILES = 500
_FULL_PATH = "write the full path: package.module.Name"
_STEERING = (b"sys.path", b"sys.modules", b"sys.meta_path", b"__path__", b"path_hooks")
"""What a source says that changes what can be imported."""
_MAKING = (b"globals()", b"locals()", b"vars()", b"exec(", b"sys.modules")
"""What a source says that may make names which do not stand in it."""
_HARMLESS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)


def report_missing(error: TargetError, target: str, place: Key, report: Report) -> None:
    """Note that a `_target_` does not exist, with what may be meant.

    Args:
        error: What was not found.
        target: The whole path.
        place: Key of the `_target_`.
        report: Gets the problem.
    """
    what, received, top = error.sentence(target), error.received, target.partition(".")[0]
    family, choices, fix = "target-not-found", list[str](), ""
    if isinstance(error, BrokenError):
        report.add(place, what, fix=f"mend {error.place}", family=family)
        return
    if received != top:
        close = nearest(received, error.choices)
        choices = close or error.choices[:20]
        fix = f"did you mean {target.replace(received, close[0], 1)}?" if close else _FULL_PATH
    elif package := package_of(top):
        what, received = f"{target} needs the package {top}, which is not installed", target
        family, fix = "package-missing", f"pip install {package}"
    elif hint := beside(top):
        fix = hint
    elif "." not in target:
        choices = _classes_named(target, place)
        fix = f"did you mean {choices[0]}?" if choices else _FULL_PATH
    else:
        choices = nearest(top, modules.top_level_names(), count=3)
        fix = f"did you mean {target.replace(top, choices[0], 1)}?" if choices else _not_found(top)
    report.add(place, what, received=received, choices=choices, fix=fix, family=family)


def package_of(module: str) -> str | None:
    """Return what `pip install` takes for a module that is not installed; None where it is not known."""
    return f"'lightkit[{EXTRAS[module]}]'" if module in EXTRAS else PACKAGES.get(module)


def _not_found(name: str) -> str:
    """Say where a module may come from of which nothing is known."""
    root = project_root()
    own = f"a module of your own is {root / name}.py" if root is not None else "a module of your own goes to a project"
    return f"{own}; a package is installed by its name on PyPI, which may be another one: pip install PACKAGE"


def _classes_named(name: str, place: Key) -> list[str]:
    """List the full paths of classes and functions of a name: those of the project, then those of usual packages."""
    homes = (f"{home}.{name}" for home in _HOMES.get(str(place[0]), ()))
    usual = [path for path in homes if name.isidentifier() and find_known(path) is not None]
    return [*_in_project(name), *usual]


def _in_project(name: str) -> list[str]:
    """List the modules of the project that define a name at their top, with the name behind each."""
    root = project_root() or Path()
    wanted = re.compile(rf"^(?:class|def) {re.escape(name)}\b", re.M)
    found = list[str]()
    for path in _sources(root) if project_root() is not None else ():
        with suppress(OSError, UnicodeDecodeError):
            if wanted.search(path.read_text(encoding="utf-8")):
                parts = path.relative_to(root).with_suffix("").parts
                found.append(".".join([*(part for part in parts if part != "__init__"), name]))
    return sorted(found, key=lambda one: (one.count("."), one))


def _sources(root: Path) -> Iterator[Path]:
    """Yield the Python files of a project, without those of runs, tests and packages."""
    folders, count = [root], 0
    while folders and count < _MOST_FILES:
        with suppress(OSError):
            for path in sorted(folders.pop(0).iterdir()):
                if path.is_symlink() or path.name.startswith(".") or path.name in _LEFT_OUT:
                    continue
                if path.is_dir() and path.name.isidentifier() and not (path / "pyvenv.cfg").exists():
                    folders.append(path)
                elif path.suffix == ".py" and path.stem.isidentifier():
                    count += 1
                    yield path


def check_imports(tree: dict[str, Any], report: Report) -> None:
    """Report the modules of the user's own that a run which is about to start could not import."""
    told = set[str]()
    for key, node in paths_in(tree):
        target = node["_target_"]
        failure = None if judge(target, report.trust) else failing_import(target, report.trust)
        if failure is not None and failure.place not in told:
            told.add(failure.place)
            what = f"{target} can't be imported: {failure.place}: {failure.what}"
            facts = {"received": failure.name, "choices": failure.choices, "fix": failure.fix}
            report.add(key, what, **facts, family="target-not-found")


class Failure(NamedTuple):
    """An import that would fail."""

    place: str
    """File and line."""
    what: str
    """Why it fails."""
    name: str | None = None
    """What it asks for; None where the file is no valid Python."""
    choices: tuple[str, ...] = ()
    """What there is that is called much like it."""
    fix: str | None = None
    """What to do."""


class _CannotTellError(Exception):
    """From here on anything may be importable."""


def failing_import(target: str, trust: Trust) -> Failure | None:
    """Find the first import that fails when the module of a target is imported; None where none does for sure.

    Args:
        target: Dotted path of what is to be built; None is said of one that does not exist, or can't be read itself.
        trust: Tells which modules are the user's own: only these are looked into.
    """
    try:
        module, names = split(target)
        with suppress(OpaqueSourceError):
            step(Found(module), names[0], last=len(names) == 1)
        return _ImportWalk(trust).walk(module.name)
    except (TargetError, _CannotTellError, RecursionError):
        return None


class _ImportWalk:
    """Goes through modules in the order in which Python would."""

    def __init__(self, trust: Trust) -> None:
        self.trust, self.seen = trust, set[str]()

    def walk(self, name: str) -> Failure | None:
        """Find the first failure in a module and those around it; None also for what is not the user's."""
        if name.partition(".")[0] == "lightkit":
            return None  # its own modules are many, and can be imported
        return next(filter(None, map(self.look_into, _packages_around(name))), None)

    def look_into(self, name: str) -> Failure | None:
        """Find the first failure in a module itself, or in those that it imports."""
        module = modules.load(name)
        if module is None or name in self.seen or name in sys.modules or not self.trust.in_project(module):
            return None
        self.seen.add(name)
        if module.broken:
            error = BrokenError(module)
            return Failure(error.place, error.what.removeprefix(f"{error.place}: "), fix=f"mend {error.place}")
        if modules.says(module, *_STEERING):
            raise _CannotTellError
        harmless = list(takewhile(_is_harmless, module.body))
        failure = next(filter(None, (one for part in harmless for one in self.imported_by(part, module))), None)
        if failure is None and len(harmless) < len(module.body):
            raise _CannotTellError
        return failure

    def imported_by(self, statement: ast.stmt, module: Module) -> Iterator[Failure | None]:
        """Tell what comes of each name that a statement imports."""
        place = f"{relative(str(module.file))}:{statement.lineno}"
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                yield self.walk(alias.name) or self.missing_module(alias.name, place)
        elif isinstance(statement, ast.ImportFrom):
            if statement.level > module.name.count(".") + bool(module.folders):
                yield Failure(place, "the dots lead out of the package", fix="write the full path of the module")
                return
            source = modules.absolute_name(module, statement)
            yield self.walk(source) or self.missing_module(source, place)
            for alias in statement.names:
                yield self.walk(f"{source}.{alias.name}") or self.missing_name(source, alias.name, place)

    def missing_module(self, name: str, place: str) -> Failure | None:
        """Make the failure of a module that is not there."""
        around = [*_packages_around(name)]
        lost = next((one for one in around if modules.load(one) is None and one not in sys.modules), None)
        if lost == around[0]:
            package = package_of(lost)
            wanted = f"pip install {package}" if package else f"install what brings {lost}"
            return Failure(place, f"there is no module {lost}", lost, fix=f"{wanted}, or mend {place}")
        parent = modules.load(lost.rpartition(".")[0]) if lost is not None else None
        if lost is None or parent is None or not self.trust.in_project(parent):
            return None
        return _near(place, f"there is no module {lost}", lost, modules.submodules(parent))

    def missing_name(self, source: str, name: str, place: str) -> Failure | None:
        """Make the failure of a name that a module does not have."""
        module = modules.load(source)
        imported = vars(sys.modules[source]) if source in sys.modules else {}
        if name == "*" or module is None or name in imported or modules.says(module, *_MAKING):
            return None
        try:
            step(Found(module), name, last=True)
        except (BrokenError, OpaqueSourceError, RecursionError):
            pass  # a broken one is told where it is gone through
        except TargetError as error:
            return _near(place, f"the module {source} has no {name}", name, error.choices)
        return None


def _near(place: str, what: str, name: str, known: Iterable[str]) -> Failure:
    """Make the failure of something that there is under another name."""
    close = tuple(nearest(name.rpartition(".")[2], known))
    fix = f"did you mean {close[0]}? It is to be mended in {place}" if close else f"mend {place}"
    return Failure(place, what, name, close, fix)


def _packages_around(name: str) -> Iterator[str]:
    """List `a`, `a.b` and `a.b.c` for `a.b.c`."""
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _is_harmless(statement: ast.stmt) -> bool:
    """Tell whether a statement changes nothing of what can be imported after it: a docstring, a guarded import."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, (*_HARMLESS, ast.If, ast.Try))
