"""Configurations as YAML: `lightkit config`, and what `train` prints in place of training (`--cfg`, `--info`)."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightkit.cli.terminal import say
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.text import slug
from lightkit.runs.catalog import project
from lightkit.runs.placement import hydra_folder

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from lightkit.config import Composed


def as_yaml(cfg: DictConfig, *, resolve: bool, package: str | None) -> str:
    """Write the configuration, or what is below one key of it, as YAML.

    Raises:
        UserError: There is no such key.
    """
    from omegaconf import OmegaConf

    node: Any = cfg
    if package and package != "_global_":
        node = OmegaConf.select(node, package)
        if node is None:
            raise UserError(
                "no such key", key="--package", received=package, choices=map(str, cfg), family="unknown-key"
            )
    if not OmegaConf.is_config(node):
        return str(node)
    return OmegaConf.to_yaml(node, resolve=resolve).rstrip()


def print_run(composed: Composed, options: argparse.Namespace) -> int:
    """Print the configuration of a run, Hydra's or both.

    Hydra's has the folders that we use where its own are left as they come. It is never resolved: much of it is only
    known while a run of Hydra's goes on.
    """
    if options.cfg == "job":
        say(as_yaml(composed.cfg, resolve=options.resolve, package=options.package))
        return 0
    if composed.hydra_cfg is None:
        raise UserError("the configuration of a run has no part for Hydra", key="--cfg", fix="--cfg job")
    from omegaconf import OmegaConf

    from lightkit.config.loader import hydra_node

    own: Any = OmegaConf.create(OmegaConf.to_container(hydra_node(composed.hydra_cfg)))
    for kind, below in (("run", run_files.RUNS), ("sweep", run_files.SWEEPS)):
        if hydra_folder(composed, kind) is None:
            base = project() / run_files.OUTPUTS / below
            own.hydra[kind].dir = f"{base}/${{now:%Y-%m-%d}}/${{now:%H-%M-%S}}-{slug(str(composed.cfg.name))}"
    job: Any = {} if options.cfg == "hydra" else OmegaConf.to_container(composed.cfg, resolve=options.resolve)
    say(as_yaml(OmegaConf.create({**job, **own}), resolve=False, package=options.package))
    return 0


def print_hydra(args: list[str]) -> int:
    """Print one of Hydra's own views of the composition."""
    from lightkit.config import hydra_command

    root = logging.getLogger()
    before = root.handlers[:], root.level
    # It prints by way of the logging module, which complains about every line that `| head` does not read.
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            hydra_command(args)
        finally:
            root.handlers[:], root.level = before
    say(printed.getvalue().rstrip("\n"))
    return 0


def print_jobs(jobs: Sequence[Composed], options: argparse.Namespace) -> int:
    """Print the configuration of every job of a sweep."""
    if options.cfg != "job":
        raise UserError("only the jobs of a sweep can be printed", key="--cfg", received=options.cfg, fix="--cfg job")
    for position, job in enumerate(jobs):
        said = " ".join(job.overrides) or "without overrides"
        say(("---\n" if position else "") + f"# job {position + 1} of {len(jobs)}: {said}")
        say(as_yaml(job.cfg, resolve=options.resolve, package=options.package))
    return 0
