"""A trained ensemble, built from its file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import nn

from lightkit.assembly.network import build_network
from lightkit.assembly.origin import check_vocabulary
from lightkit.checkpoint.fitting import fit
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.config import load_run, to_plain
from lightkit.config.saved import from_yaml
from lightkit.data import Data, DataInfo
from lightkit.device import Engine
from lightkit.ensemble.file import StoredMember, assembled, grouped, read_ensemble
from lightkit.ensemble.module import Ensemble
from lightkit.ensemble.oof import MemberPredictions
from lightkit.ensemble.stacking import Inputs, StackedEnsemble
from lightkit.runs.reading import read_json

_LOG = logging.getLogger(__name__)


def is_ensemble(run: Path) -> bool:
    """Tell whether a folder holds the run of an ensemble that has been put together."""
    return (run / run_files.ENSEMBLE_WEIGHTS).is_file()


def is_of_finished_runs(run: Path) -> bool:
    """Tell whether a folder holds an ensemble that `lightkit ensemble` made, or makes, of finished runs.

    Where its record cannot be read at all, members that it has and did not train tell.
    """
    damage = list[str]()
    record = read_json(run / run_files.ENSEMBLE, damage=damage)
    if record or not damage:
        return "rows" in record
    trained = {path.parent for path in (run / run_files.MEMBERS).glob(f"*/{run_files.CONFIG}")}
    kept = {path.parent for path in (run / run_files.MEMBERS).glob(f"*/{run_files.PREDICTIONS_HELD_OUT}")}
    return bool(kept - trained) or (is_ensemble(run) and not trained)


def build_ensemble(
    run: Path, info: DataInfo, engine: Engine, *, trust: Sequence[str] = (), members: Sequence[str] = ()
) -> Ensemble:
    """Build an ensemble with its weights, on the CPU.

    Args:
        run: Folder of its run.
        info: Facts about the data.
        engine: Gives the building its random numbers.
        trust: What may be built for it beside the usual. What its file says of that counts for nothing.
        members: Names of the members to take; none takes all.

    Raises:
        UserError: Its file is missing or damaged, was trained for other outputs, or has no such member.
    """
    stored = read_ensemble(run / run_files.ENSEMBLE_WEIGHTS)
    inputs = {name: Inputs(**own) for name, own in (stored.more or {}).get("inputs", {}).items()}
    if inputs and members:
        what, fix = "the networks of a stack feed each other, and cannot be taken apart", "the whole stack"
        raise UserError(what, key="--members", received=", ".join(members), fix=fix, family="ensemble")
    sizes = {name: replace(info, input_shape=(len(own.shift),)) for name, own in inputs.items()}
    networks = {one.name: _network(one, run, sizes.get(one.name, info), engine, trust) for one in stored.members}
    if inputs:
        found, weights = grouped(stored, networks)
        names = sorted(found, key=inputs.__contains__)  # each behind those whose predictions it takes
        chosen: dict[str, Any] = {"weights": [weights[name] for name in names], "names": names, "inputs": inputs}
        return StackedEnsemble([found[name] for name in names], task=stored.task, **chosen)
    ensemble = assembled(stored, networks)
    for name in members:
        if name not in ensemble.names:
            raise UserError("no such member", key="--members", received=name, choices=ensemble.names, family="ensemble")
    return members_only(ensemble, set(members).__contains__) if members else ensemble


def own_splits(data: Data, run: Path) -> Data:
    """Return the data of an ensemble of finished runs with the rows that none of them trained on; others as they are.

    Args:
        data: The data of the run, in the splits of its configuration.
        run: Its folder.

    Raises:
        UserError: Its predictions are missing or damaged, which tell the rows.
    """
    if not is_ensemble(run) or not is_of_finished_runs(run):
        return data
    known = MemberPredictions.read(run / run_files.PREDICTIONS_HELD_OUT)
    if known.data != data.info.fingerprint:
        return data
    rows, loaders = dict(data.rows), dict[str, Any]()
    for split in ("val", "test"):
        own, loader = known.of_split(split).rows, data.loaders().get(split)
        own = own if data.kept is None else own[~torch.isin(own, data.kept.gone)]
        before = rows.pop(split, None)
        if len(own):
            rows[split] = own
            loaders[split] = (loader or data.evaluation("train")).with_rows(own)  # type: ignore[union-attr]
        if before is not None and not torch.equal(own, before):
            _LOG.warning("%s has %d of %d rows: no member trained on them", split, len(own), len(before))
    return replace(data, rows=rows, val=loaders.get("val"), test=loaders.get("test"))


def trained_ensemble(run: Path, info: DataInfo, engine: Engine, *, trust: Sequence[str] = (), key: str) -> Ensemble:
    """Build the ensemble of a run for inputs like these; see `lightkit.assembly.network.trained_network`.

    Args:
        run: Folder of the run.
        info: Facts about the data.
        engine: Gives the building its random numbers.
        trust: What may be built for it beside the usual, where this project did not write it.
        key: The key that names it, for the messages.

    Raises:
        UserError: Its file is damaged, or it is for other targets.
    """
    cfg = load_run(run, trust=trust).cfg
    check_vocabulary(run, info, key=key)
    stored = read_ensemble(run / run_files.ENSEMBLE_WEIGHTS)
    if stored.task != info.task:
        what = "the ensemble has learnt another kind of target"
        raise UserError(what, key=key, expected=info.task, received=stored.task, family="ensemble")
    if len(stored.classes) != len(info.class_names):
        what, count = "the ensemble has learnt other classes", len(info.class_names)
        raise UserError(what, key=key, expected=f"{count}", received=", ".join(stored.classes), family="ensemble")
    return build_ensemble(run, info, engine, trust=to_plain(cfg.trust))


def _network(member: StoredMember, run: Path, info: DataInfo, engine: Engine, trust: Sequence[str]) -> nn.Module:
    cfg = OmegaConf.create({**from_yaml(member.config), "trust": list(trust)})
    own = run / run_files.MEMBERS / member.name
    beside = own if (own / run_files.CONFIG).is_file() else None
    model = build_network(cfg, info, engine, pretrained=False, run=beside).model
    fit(model, member.state, source=f"{run_files.ENSEMBLE_WEIGHTS}: {member.name}")
    return model


def members_only(ensemble: Ensemble, keep: Callable[[str], bool]) -> Ensemble:
    """Return an ensemble of some members, with the same weights relative to each other."""
    chosen = [i for i, name in enumerate(ensemble.names) if keep(name)]
    weights = ensemble.weights[chosen]
    if ensemble.rule != "sum":
        weights = weights / weights.sum() if weights.sum() > 0 else torch.full_like(weights, 1 / len(chosen))
    return Ensemble(
        [ensemble[i] for i in chosen],
        task=ensemble.task,
        rule=ensemble.rule,
        weights=weights.tolist(),
        names=[ensemble.names[i] for i in chosen],
    )
