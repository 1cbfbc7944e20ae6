"""The configuration of an earlier run, read where it may not belong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.common.errors import UserError, UserErrors
from lightkit.runs.catalog import ENVIRONMENT_FILE

if TYPE_CHECKING:
    from lightkit.config import Composed


def read_run(folder: Path, overrides: Sequence[str] = (), **options: Any) -> Composed:
    """`load_run`, which says where to go when the modules of the run's own project are not at hand.

    They are not looked up there by themselves: that folder is named by a file that anybody may have written.

    Args:
        folder: Folder of the run.
        overrides: Values to change.
        **options: Others of `load_run`.

    Raises:
        UserErrors: Everything that is wrong with the configuration.
    """
    from lightkit.config import load_run

    try:
        return load_run(folder, overrides, **options)
    except UserErrors as found:
        home = _home(folder)
        if home is None:
            raise
        raise UserErrors([_pointing(error, home) for error in found.errors]) from found


def unchanged(folder: Path, overrides: Sequence[str]) -> Composed:
    """The configuration of a run as it was, without any of these overrides but those that let it be read.

    Raises:
        UserErrors: Everything that is wrong with the configuration.
    """
    from lightkit.config.grants import granting_keys
    from lightkit.config.origins import dotted

    keys = {dotted(key) for key in granting_keys()}
    return read_run(folder, [text for text in overrides if text.lstrip("+").partition("=")[0] in keys])


def _home(folder: Path) -> Path | None:
    """The project that a run was trained in, or whose outputs it lies in, where that is not the one we are in."""
    from lightkit.config.project import project_of, project_root

    try:
        trained_in = json.loads((folder / ENVIRONMENT_FILE).read_text(encoding="utf-8"))["folder"]
        places = [Path(trained_in), folder.resolve()]
    except (OSError, ValueError, KeyError, TypeError):
        places = [folder.resolve()]
    homes = [project_of(place) for place in places if place.is_dir()]
    home = next((found for found in homes if found is not None), None)
    return None if home == project_root() else home


def _pointing(error: UserError, home: Path) -> UserError:
    if error.key is None or not error.key.endswith("_target_"):
        return error
    return UserError(
        error.what,
        key=error.key,
        expected=error.expected,
        received=error.received,
        choices=error.choices,
        fix=f"the run is from another project; if you know it, run the command in {home}",
        origin=error.origin,
        exit_code=error.exit_code,
    )
