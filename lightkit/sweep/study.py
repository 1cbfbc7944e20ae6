"""A sweep whose jobs Optuna chooses: what its journal keeps of it, and the search that follows from that."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.config import Composed, to_yaml
from lightkit.config.compose import compose_with, make_loader
from lightkit.config.hydra_values import job_environment
from lightkit.config.instantiate import instantiate
from lightkit.sweep.folders import check_folder
from lightkit.sweep.job import Job
from lightkit.sweep.journal import Record
from lightkit.sweep.plan import is_of_sweep
from lightkit.sweep.search import JobSearch
from lightkit.sweep.space import Space, read_space
from lightkit.sweep.study_settings import KEY, read_settings

if TYPE_CHECKING:
    from lightkit.sweep.suggesting import OptunaSearch, Suggest


def describe_study(
    composed: Composed, overrides: Sequence[str], *, config_dir: str | None, config_name: str
) -> dict[str, Any]:
    """Return what has to be known to go on with a study, and check it.

    Args:
        composed: One of the jobs that could be.
        overrides: As typed.
        config_dir: One more folder of options.
        config_name: File to start from.

    Raises:
        UserError: A setting of the sweeper that cannot be.
    """
    assert composed.hydra_cfg is not None
    cfg = composed.cfg
    node: Any = OmegaConf.to_container(composed.hydra_cfg.hydra.sweeper)
    facts = {"monitor": cfg.metrics.monitor, "mode": cfg.metrics.mode, "seed": cfg.seed, "name": str(cfg.name)}
    study = {
        "sweeper": node,
        "facts": facts,
        "overrides": [text for text in overrides if not is_of_sweep(text) and not text.startswith("hydra/")],
        "config_dir": config_dir,
        "config_name": config_name,
        "environment": job_environment(composed.hydra_cfg),
    }
    settings, space = read_settings(node, **facts), _space(study)
    if not space.varied and not node.get("custom_search_space"):
        what, fix = (
            "there is nothing to choose: all trials would be the same",
            "'optim.lr=tag(log,interval(1e-4,1e-1))'",
        )
        raise UserError(what, key="hydra/sweeper", received="optuna, without a key that varies", fix=fix)
    from lightkit.sweep.samplers import check_settings

    check_settings(space, settings)
    return study


def build_study(study: Mapping[str, Any], record: Record) -> OptunaSearch:
    """Build the search of a study, which goes on with what it has.

    Args:
        study: As `describe_study` returned it.
        record: What the journal of the sweep says.

    Raises:
        UserError: A sampler, pruner, space or storage that cannot be.
    """
    node = study["sweeper"]
    settings = read_settings(node, **study["facts"])
    from lightkit.sweep.suggesting import OptunaSearch

    loader = make_loader(study["overrides"], config_dir=study["config_dir"])
    space = _space(study)

    variables = study.get("environment") or {}

    def make_job(name: str, overrides: Sequence[str]) -> Job:
        folder = record.place(name)
        check_folder(folder)
        composed = compose_with(loader, overrides, config_name=study["config_name"])
        return Job(name, folder, tuple(overrides), to_yaml(composed.cfg), variables)

    suggest: Suggest | None = None
    if node.get("custom_search_space"):
        base = compose_with(loader, space.fixed, config_name=study["config_name"])
        suggest = _suggesting(node["custom_search_space"], base)
    return OptunaSearch(space, make_job, record.folder, settings, suggest=suggest, known=record.jobs)


def show_study(search: JobSearch, folder: Path) -> Iterator[str]:
    """Draw the pictures of a study, and yield lines about its best trials.

    Args:
        search: What `build_study` returned.
        folder: Folder of the sweep.
    """
    from lightkit.sweep.study_plots import write_plots
    from lightkit.sweep.suggesting import OptunaSearch

    assert isinstance(search, OptunaSearch)
    names = search.objectives
    for trial in search.best():
        values = ", ".join(f"{name} {value:.5g}" for name, value in zip(names, trial.values or ()))
        yield f"best: {trial.user_attrs.get('job', trial.number)}  {values}"
    if write_plots(search.study, folder / run_files.SWEEP_PICTURES, names):
        yield f"pictures of the study are in {folder / run_files.SWEEP_PICTURES}"


def _space(study: Mapping[str, Any]) -> Space:
    """Return what varies in a study: what was typed, over what stands in `hydra.sweeper.params`."""
    loader = make_loader(study["overrides"], config_dir=study["config_dir"])
    typed = [loader.parse(text) for text in study["overrides"]]
    keys = {override.get_key_element() for override in typed}
    given = ((key, value) for key, value in (study["sweeper"].get("params") or {}).items() if key not in keys)
    return read_space([*(loader.parse(f"{key}={value}") for key, value in given), *typed])


def _suggesting(path: str, base: Composed) -> Suggest:
    """Return the user's function that suggests values; it may take the configuration before the trial.

    Raises:
        UserError: There is no such function, or it may not be called.
    """
    key = f"{KEY}.custom_search_space"
    node = OmegaConf.create({"node": {"_target_": path, "_partial_": True}, "trust": list(base.cfg.trust)}).node
    function = instantiate(node, key=key)
    found: Any = getattr(function, "func", function)
    takes_both = len(inspect.signature(found).parameters) > 1
    return partial(found, base.cfg) if takes_both else found
