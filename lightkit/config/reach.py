"""What the arguments of an allowed target reach: weights fetched from anywhere, files written anywhere.

The places of `lightkit.config.trust` hold no function that does harm by itself, but some do with the right argument.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lightkit.config.allow import judge, targets_in
from lightkit.config.lookup import defined_path
from lightkit.config.origins import Key
from lightkit.config.project import project_root
from lightkit.config.report import Report
from lightkit.config.signatures import read
from lightkit.config.tree import UNKNOWN
from lightkit.config.trust import Trust

FOLDER = "LIGHTKIT_DATASETS"
"""Environment variable that names a folder for data sets outside of the project."""
_FETCHING = {
    "peft": re.compile(r"tokenizer_|adapters$|cache_file$"),
    "timm.models": re.compile(r"pretrained_|checkpoint|weights|cache_dir$"),
    "torchmetrics": re.compile(r"feature_extractor_weights_path$|model_name_or_path$|baseline_url$"),
}
"""Arguments that name a file or an address to load, by the package whose functions take them. `pretrained` and
`weights=NAME` name what the package itself has published."""
_DATASETS, _OURS = "torchvision.datasets", "lightkit.data.torchvision_sets.torchvision_dataset"
_UNPACKING = ("Caltech101", "Caltech256", "Cityscapes", "INaturalist", "ImageNet")
"""Data sets that write into their folder without `download`."""

Overreach = tuple[Key, str, dict[str, Any]]
"""Place of an argument in its node, what is wrong with it, and what else the message says."""


def check_reach(tree: Any, report: Report) -> None:
    """Report the arguments with which a target of a configuration would reach too far."""
    for key, node in targets_in(tree):
        if judge(node["_target_"], report.trust) is None:
            for place, what, facts in overreaching(node, report.trust):
                report.add((*key, *place), what, **facts)


def overreaching(node: Mapping[str, Any], trust: Trust) -> Iterator[Overreach]:
    """Yield the arguments with which an allowed target would fetch from, or write to, a place nobody has agreed to.

    Args:
        node: A node with a `_target_`.
        trust: What may be built; an entry that covers the target covers all of its arguments.
    """
    target, home = node["_target_"], defined_path(node["_target_"])
    if trust.covers(target) or trust.covers(home):
        return
    given = _arguments_by_name(node)
    for names in (names for package, names in _FETCHING.items() if _within(home, package)):
        for name in filter(names.match, given):
            what = f"{target} would load what {name} names, from anywhere"
            fix = f"finetune.weights.path=FILE loads weights from a file; {_trusting(target, trust)}"
            yield (name,), what, {"received": None if given[name] is UNKNOWN else given[name], "fix": fix}
    if home == _OURS or _within(home, _DATASETS):
        yield from _writes(target, home, given, trust)


def _within(name: str, package: str) -> bool:
    return name.startswith(f"{package}.")


def _arguments_by_name(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a node by name, those given by position too."""
    positional = node.get("_args_") or ()
    signature = read(node["_target_"]) if positional else None
    names = signature.names() if signature is not None else []
    by_position = dict(zip(names, positional)) if isinstance(positional, list) else {}
    return by_position | {str(name): value for name, value in node.items() if name != "_target_"}


def _writes(target: str, home: str, given: Mapping[str, Any], trust: Trust) -> Iterator[Overreach]:
    """Refuse to fill a folder outside of those that belong to the user's work."""
    options = given.get("options")
    options = options if isinstance(options, dict) else {}
    name = str(given.get("name")) if home == _OURS else home.rpartition(".")[2]
    fetches = any(part.get("download") not in (None, False, UNKNOWN) for part in (given, options))
    root = given.get("root", "datasets" if home == _OURS else None)
    is_trusted = trust.covers(f"{_DATASETS}.{name}")
    if root in (None, UNKNOWN) or is_trusted or not (fetches or name in _UNPACKING) or _is_users_folder(root):
        return
    stated = os.environ.get(FOLDER)
    places = f"a folder in the project, or in that of the environment variable {FOLDER}"
    fix = f"{FOLDER}=FOLDER for all data sets; {_trusting(f'{_DATASETS}.{name}', trust)}"
    expected = f"{places} ({stated})" if stated else places
    yield ("root",), f"{name} would write outside of the project", {"expected": expected, "received": root, "fix": fix}


def _trusting(target: str, trust: Trust) -> str:
    return f"trust=[{', '.join([*trust.entries, target])}] if no harm can come of it"


def _is_users_folder(root: Any) -> bool:
    """Tell whether a folder, as written or as it is, is in the project, where the command runs, or the stated one."""
    if not isinstance(root, str):
        return False
    path, stated = Path(root).expanduser(), os.environ.get(FOLDER)
    # As written too: a link in the project to a folder elsewhere was put there by the user.
    places = [path.resolve(), *([] if ".." in path.parts else [path.absolute()])]
    folders = [folder for folder in (Path.cwd(), project_root(), Path(stated) if stated else None) if folder]
    return any(
        place.is_relative_to(base)
        for folder in folders
        for base in (folder.absolute(), folder.resolve())
        for place in places
    )
