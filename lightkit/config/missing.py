"""Targets that are not there: what to do about a `_target_` that does not exist, and imports that fail."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import lightkit.config.modules as modules
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.failures import user_frame
from lightkit.common.suggest import nearest
from lightkit.config.lookup import BrokenError, TargetError, find_known
from lightkit.config.origins import Key
from lightkit.config.project import beside, project_root
from lightkit.config.tree import Report

EXTRAS = {"peft": "peft", "timm": "vision", "torchvision": "vision"}
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


def failed_import(error: ImportError, target: str, key: str) -> UserError:
    """Make the error for a target whose module cannot be imported, as something that it imports is not there.

    Args:
        error: What Python says.
        target: The whole path.
        key: Where it stands.
    """
    place, name = user_frame(error), error.name or ""
    what, ways = str(error).partition(" (")[0], list[str]()
    if isinstance(error, ModuleNotFoundError):
        what, top = f"there is no module {name}", name.partition(".")[0]
        package = package_of(top)
        ways.append(f"pip install {package}" if package else f"install what brings {top}")
    if place is not None:
        what, ways = f"{place}: {what}", [*ways, f"mend {place}"]
    what, fix = f"{target} can't be imported: {what}", ", or ".join(ways) or None
    return UserError(what, key=key, received=name, fix=fix, family="target-not-found")
