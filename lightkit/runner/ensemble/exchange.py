"""Ensembles of runs as files of torchensemble, and the other way."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lightkit.assembly import build_engine, build_splits
from lightkit.assembly.ensemble import build_ensemble, is_ensemble
from lightkit.assembly.network import build_model
from lightkit.assembly.origin import facts_of
from lightkit.checkpoint.fitting import fit
from lightkit.checkpoint.formats import open_file
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.config import to_plain, to_yaml, with_values
from lightkit.data import Data, DataInfo
from lightkit.ensemble.bridge.containers import read_file, rule_of, to_torchensemble, write_file
from lightkit.ensemble.file import StoredEnsemble, StoredMember, write_ensemble
from lightkit.loggers.files import write_json
from lightkit.runs.folder import RunFolder
from lightkit.runs.reading import read_json


def export_torchensemble(run: Path, cfg: DictConfig, folder: Path) -> tuple[Path, str]:
    """Write the ensemble of a run for torchensemble.

    Args:
        run: The folder of the run.
        cfg: Its configuration.
        folder: Where to.

    Returns:
        The file, and the lines of Python that load it.

    Raises:
        UserError: It is no ensemble, or torchensemble has no such ensemble.
    """
    if not is_ensemble(run):
        fix = "a run with `ensemble=...`, or one that `lightkit ensemble` wrote"
        raise UserError("this run is no ensemble", key=str(run), fix=fix, family="ensemble")
    engine = build_engine(cfg)
    data = build_splits(cfg, engine, run)
    data.close()
    ensemble = build_ensemble(run, data.info, engine, trust=to_plain(cfg.trust))
    method = read_json(run / run_files.ENSEMBLE).get("method", "Voting")
    container = to_torchensemble(ensemble, method=method, outputs=data.info.num_classes)
    return write_file(container, folder), _call(container, cfg, data.info, folder)


def _call(container: Any, cfg: DictConfig, info: DataInfo, folder: Path) -> str:
    """Return the lines that load a file of torchensemble."""
    kind, network = type(container).__name__, container.base_estimator_
    taken = inspect.signature(network).parameters
    known = {name: value for name, value in info.sizes().items() if name in taken}
    arguments = {**known, **{name: value for name, value in to_plain(cfg.model).items() if name in taken}}
    more = "".join(
        f", {name}={getattr(container, name)!r}"
        for name in ("shrinkage_rate", "voting_strategy")
        if name in inspect.signature(type(container)).parameters and getattr(container, name) not in (1.0, "soft")
    )
    return "\n".join(
        (
            f"from {network.__module__} import {network.__name__}",
            f"from torchensemble import {kind}",
            "from torchensemble.utils import io",
            "",
            f"arguments = {arguments!r}",
            f"more = {{'n_estimators': {len(container)}, 'cuda': False}}",
            f"model = {kind}(estimator={network.__name__}, estimator_args=arguments{more}, **more)",
            f"io.load(model, {str(folder)!r})",
        )
    )


def import_torchensemble(file: Path, like: Path, cfg: DictConfig, folder: Path, *, trust: bool = False) -> None:
    """Write the ensemble in a file of torchensemble as a run, which can be measured and predicts.

    Args:
        file: The file.
        like: Folder of a run with such a network, whose data and scaling are taken.
        cfg: The configuration of that run.
        folder: Folder of the new run.
        trust: Open a file with Python objects, which runs the code in it.

    Raises:
        UserError: The file cannot be read, or its networks are not those of the run.
    """
    found = read_file(file, open_file(file, trust=trust))
    engine = build_engine(cfg)
    data = build_splits(cfg, engine, like)
    data.close()
    if data.info.task != found.task:
        what = "the ensemble has learnt another kind of target"
        raise UserError(what, key="--like", expected=found.task, received=data.info.task, family="ensemble")
    model = build_model(cfg, data.info, engine)
    for number, state in enumerate(found.states):
        fit(model, state, source=f"{file.name}: network {number}")
    vote, shrinkage = cfg.ensemble.get("vote", "soft"), cfg.ensemble.get("shrinkage", 1.0)
    rule, weight = rule_of(found.kind, vote=vote, size=len(found.states))
    weight *= shrinkage if found.kind.endswith("GradientBoosting") else 1.0
    names = [f"{number:02}" for number in range(len(found.states))]
    own = with_values(cfg, {"ensemble": {"_target_": "lightkit.ensemble.methods.NoEnsemble"}})
    members = [StoredMember(name, to_yaml(own), weight, state) for name, state in zip(names, found.states)]
    stored = StoredEnsemble(members, rule, data.info.task, tuple(data.info.class_names))
    _write_run(folder, own, data, stored, source=file)


def _write_run(folder: Path, cfg: DictConfig, data: Data, stored: StoredEnsemble, *, source: Path) -> None:
    place = RunFolder(folder)
    with place.begun(fresh=True):
        place.record(cfg, (), data=data.info.fingerprint, source=str(source), **facts_of(data))
        write_ensemble(folder / run_files.ENSEMBLE_WEIGHTS, stored)
        rows = [
            {"name": one.name, "status": "finished", "depends_on": [], "weight": one.weight} for one in stored.members
        ]
        write_json(folder / run_files.ENSEMBLE, {"method": "Voting", "settings": {}, "members": rows})
        place.write_result(
            {
                "status": "finished",
                "reason": None,
                "name": cfg.name,
                "objective": None,
                "best": {},
                "test": {},
                "metrics": {},
            }
        )
