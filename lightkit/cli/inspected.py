"""What commands that look at a run before it trains have in common: which configuration, and which model, is meant."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lightkit.cli.arguments import whole_number
from lightkit.cli.terminal import complain
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.runs.catalog import find_run, project

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from lightkit.assembly import Learner


def configuration(options: argparse.Namespace, *more: str) -> tuple[DictConfig, Path]:
    """Compose what is typed, or read the configuration of the run that `--from` names.

    Args:
        options: With `overrides`, `source`, `config_dir` and `config_name` as typed.
        *more: Further overrides, after those.

    Returns:
        The configuration, and the folder of that run; without one the folder of all runs.

    Raises:
        UserErrors: Everything that is wrong with it.
        UserError: There is no such run, or one is named in the place of an override.
    """
    overrides = [*options.overrides, *more]
    if options.source is not None:
        from lightkit.runs.reading import read_run

        folder = find_run(options.source, project())
        return read_run(folder, overrides, new=True).cfg, folder
    _refuse_run(options.overrides)
    from lightkit.config import compose

    composed = compose(overrides, config_dir=options.config_dir, config_name=options.config_name)
    return composed.cfg, project() / run_files.OUTPUTS


@contextmanager
def built_model(options: argparse.Namespace) -> Iterator[tuple[DictConfig, Learner]]:
    """Build the parts of the run that is meant, on the CPU; nothing is written.

    Raises:
        UserError: The configuration is wrong, or a part cannot be built.
    """
    cfg, folder = configuration(options, "device.name=cpu")
    # Here, not above: importing torch takes seconds, and a wrong configuration is told before.
    from lightkit.assembly import build

    parts = build(cfg, folder, report=complain)
    with closing(parts.data):
        yield cfg, parts


def _refuse_run(overrides: list[str]) -> None:
    """Refuse the name of a run among overrides: these commands take it by an option.

    Raises:
        UserError: One of them is no override, and there is such a run.
    """
    for word in overrides:
        if "=" not in word and not word.startswith(("~", "+")):
            with suppress(UserError):
                folder = find_run(word, project())
                break
    else:
        return
    raise UserError(f"this is a run ({folder}), not an override", received=word, fix=f"--from {word}")


def read_shape(text: str | None) -> tuple[int, ...] | None:
    """Read the option `--input`.

    Raises:
        UserError: It is no shape.
    """
    if text is None:
        return None
    parts = text.strip("()[] ").replace("x", ",").replace(" ", "").removesuffix(",").split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        expected = "whole numbers from 1, without that of the samples: 3,224,224"
        raise UserError("not a shape", key="--input", expected=expected, received=text)
    return tuple(map(int, parts))


def read_depth(text: str | None) -> int | None:
    """Read the option `--depth`.

    Raises:
        UserError: It is no number of levels.
    """
    return None if text is None else whole_number("--depth", text, what="not a number of levels")
