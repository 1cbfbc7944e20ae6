"""Packages that may be missing, and loading by those of Hugging Face: what went wrong, in words."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from lightkit.common.errors import UserError
from lightkit.common.failures import in_short, is_out_of_memory

KINDS = ("sequence_classification", "token_classification", "causal_lm", "masked_lm", "image_classification")
"""What a model is for, and with it the data."""
_NO = ("0", "", "NO", "OFF")
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
T = TypeVar("T")


def installed(
    module: str, fix: str, what: str = "", *, argument: str | None = "_target_", received: object = None
) -> Any:
    """Import a module of a package that lightkit can do without.

    Args:
        module: The module.
        fix: The command that installs its package.
        what: What is said where it is missing, with `{}` for the error; empty names the package.
        argument: The argument that asks for it.
        received: The value of that argument.

    Raises:
        UserError: It is not there.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        what, family = what.format(error) or f"{module.partition('.')[0]} is not installed", "package-missing"
        raise UserError(what, argument=argument, received=received, fix=fix, family=family) from error


def load_by(package: str, load: Callable[[Any], T], argument: str, received: object) -> T:
    """Load something with a package of Hugging Face.

    Args:
        package: The package.
        load: Loads it, given the package.
        argument: The argument that names it.
        received: Its value.

    Raises:
        UserError: The package is missing, or there is nothing of that name that can be loaded.
    """
    try:
        return load(installed(package, "pip install 'lightkit[hf]'"))
    except Exception as error:  # of whatever loads it
        if isinstance(error, UserError) or is_out_of_memory(error):
            raise
        offline = next((name for name in _OFFLINE if os.environ.get(name, "0").upper() not in _NO), None)
        fix = f"{offline} is set, so only folders and what is in the cache can be loaded" if offline else _FIX
        what = "cannot be loaded: " + ": ".join(map(in_short, filter(None, (error, error.__cause__))))
        raise UserError(what, argument=argument, received=received, fix=fix, family="data-not-found") from error


def commit_of(name: str, revision: str) -> str:
    """Return the commit that a branch or tag of a model on the Hub is now; a revision that is none as it is.

    Args:
        name: Name on the Hub, or a folder.
        revision: Commit, branch or tag.
    """
    with suppress(Exception):  # what is wrong is told where it is loaded
        package = installed("transformers", "")
        if not Path(local(name)).exists() and name not in package.CONFIG_MAPPING:
            return Path(package.utils.cached_file(name, "config.json", revision=revision)).parent.name
    return revision


_FIX = "a name on the Hub that can be reached, or is in the cache; or a folder"


def local(name: str) -> str:
    """Return the path of a folder or file that exists, and any other name as it is."""
    place = Path(name).expanduser()
    return str(place) if place.exists() else name
