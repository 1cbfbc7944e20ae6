"""A trained ensemble, built from its file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from omegaconf import OmegaConf
from torch import nn

from lightkit.assembly.network import build_network
from lightkit.checkpoint.fitting import fit
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.config.saved import from_yaml
from lightkit.data import DataInfo
from lightkit.device import Engine
from lightkit.ensemble.file import StoredMember, read_ensemble
from lightkit.ensemble.module import Ensemble, Rule, members_only
from lightkit.ensemble.stacked import Inputs, Stacked


def is_ensemble(run: Path) -> bool:
    """Tell whether a folder holds the run of an ensemble that has been put together."""
    return (run / run_files.ENSEMBLE_WEIGHTS).is_file()


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
    known = [member.name for member in stored.members]
    for name in members:
        if name not in known:
            raise UserError("no such member", key="--members", received=name, choices=known, family="ensemble")
    inputs = {name: Inputs(**own) for name, own in (stored.more or {}).get("inputs", {}).items()}
    if inputs and members:
        what, fix = "the networks of a stack feed each other, and cannot be taken apart", "the whole stack"
        raise UserError(what, key="--members", received=", ".join(members), fix=fix, family="ensemble")
    sizes = {name: replace(info, input_shape=(len(own.shift),)) for name, own in inputs.items()}
    estimators = [_network(one, run, sizes.get(one.name, info), engine, trust) for one in stored.members]
    if inputs:
        weights = [member.weight for member in stored.members]
        return Stacked(estimators, task=stored.task, weights=weights, names=known, inputs=inputs)
    ensemble = Ensemble(
        estimators,
        task=stored.task,
        rule=cast("Rule", stored.rule),
        weights=[member.weight for member in stored.members],
        names=known,
    )
    return members_only(ensemble, set(members).__contains__) if members else ensemble


def _network(member: StoredMember, run: Path, info: DataInfo, engine: Engine, trust: Sequence[str]) -> nn.Module:
    cfg = OmegaConf.create({**from_yaml(member.config), "trust": list(trust)})
    own = run / run_files.MEMBERS / member.name
    beside = own if (own / run_files.CONFIG).is_file() else None
    model = build_network(cfg, info, engine, pretrained=False, run=beside).model
    fit(model, member.state, source=f"{run_files.ENSEMBLE_WEIGHTS}: {member.name}")
    return model
