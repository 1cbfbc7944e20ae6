"""What speaks against the values of an ensemble: contradicting losses, and rows its first weights have learnt from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from lightkit.assembly import build_engine, build_splits
from lightkit.assembly.origin import run_of
from lightkit.config.member_values import with_values
from lightkit.config.project import located
from lightkit.ensemble.oof import MemberPredictions
from lightkit.ensemble.stacking import row_losses, standard_error
from lightkit.runs.reading import read_facts, read_run

_ERRORS = 4.0
"""Standard errors from which a difference is no chance."""
_TIMES = 1.5
"""How many times a loss has to be another one to be spoken of."""
_LEAST = 10
"""Rows of a split below which it says nothing."""
_MEANT = {
    "oof": "training rows left out (oof)",
    "holdout": "rows held out (holdout)",
    "val": "validation rows",
    "test": "test rows",
}


def contradictions(
    views: Sequence[Sequence[Mapping[str, MemberPredictions]]], groups: Tensor | None = None
) -> list[dict[str, Any]]:
    """Compare the losses of the same models on rows of several kinds that none of them learnt from.

    Args:
        views: Of each view the models, and what each predicts by the name of the rows (`oof`, `val`, …). The loss of a
            row is the mean over the models of a view.
        groups: The group of each row of the data set; losses of a group go up and down together.

    Returns:
        For the first view with a difference beyond noise the lowest and the highest loss, and how many standard errors
        they are apart; nothing where there is none.
    """
    for models in views:
        names = dict.fromkeys(name for own in models for name in own)
        known = {name: _losses([own[name] for own in models if name in own], groups) for name in names}
        told = {name: facts for name, facts in known.items() if facts is not None}
        if len(told) < 2:
            continue
        low, high = (choose(told, key=lambda name: told[name][0]) for choose in (min, max))
        (least, error, few), (most, other, many) = told[low], told[high]
        apart = (most - least) / max(math.hypot(error, other), 1e-12)
        if apart > _ERRORS and most > _TIMES * least:
            ends = {low: (least, few), high: (most, many)}
            facts = [{"on": name, "loss": loss, "rows": rows} for name, (loss, rows) in ends.items()]
            return [{"low": facts[0], "high": facts[1], "standard_errors": apart}]
    return []


def _losses(models: Sequence[MemberPredictions], groups: Tensor | None) -> tuple[float, float, int] | None:
    """Return mean loss, its standard error and the number of rows; None of too few rows."""
    rows, losses = list[Tensor](), list[Tensor]()
    for own in models:
        there = own.take(own.predicted)
        rows.append(there.rows)
        losses.append(row_losses(there.predictions, there.targets, there.task).double())
    known, place = torch.cat(rows).unique(return_inverse=True)
    if len(known) < _LEAST:
        return None
    sums = torch.zeros(len(known), dtype=torch.float64).index_add_(0, place, torch.cat(losses))
    mean = sums / place.bincount(minlength=len(known))
    error = standard_error(mean, None if groups is None else groups[known])
    return (float(mean.mean()), error, len(known)) if math.isfinite(error) else None


def lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say which losses contradict each other, and what that usually comes from."""
    said = []
    for one in found:
        low, high = one["low"], one["high"]
        digits = next((n for n in range(3, 7) if round(low["loss"], n)), 6)
        said += [
            f"warning     losses contradict each other: {low['loss']:.{digits}f} on {_MEANT[low['on']]}, "
            f"{high['loss']:.{digits}f} on {_MEANT[high['on']]}, {one['standard_errors']:.0f} standard errors apart",
            f"            values on {_MEANT[low['on']]} may be too good: rows like them (near copies, one person, one "
            "moment) may have been learnt from; name what such rows share by data.split.groups",
        ]
    return said


_BEGINNINGS = ("finetune.weights.path", "finetune.weights.adapter", "resume.file")
"""Keys that name the weights that a run begins with."""


class Seen(NamedTuple):
    """What is known of the rows that weights have learnt from."""

    rows: Tensor
    """Those of the same data, int64."""
    unknown: tuple[str, ...]
    """Files of weights of which nobody knows what they have learnt from."""


def rows_of_base(cfg: DictConfig, fingerprint: str) -> Seen:
    """Return which rows of some data the runs learnt from whose weights a run began with.

    Args:
        cfg: The configuration of the run.
        fingerprint: That of the data.
    """
    rows, unknown = [torch.zeros(0, dtype=torch.int64)], list[str]()
    for path in filter(None, (OmegaConf.select(cfg, key) for key in _BEGINNINGS)):
        base = run_of(located(path))
        if base is None:
            unknown.append(str(path))
        elif read_facts(base).get("data") == fingerprint:
            own = read_run(base).cfg
            before = rows_of_base(own, fingerprint)
            rows += [trained_rows(own, base), before.rows]
            unknown += before.unknown
    return Seen(torch.cat(rows).unique(), tuple(dict.fromkeys(unknown)))


def trained_rows(cfg: DictConfig, folder: Path) -> Tensor:
    """Return the training rows of a run; of a member of an ensemble those of all members."""
    data = build_splits(cfg, build_engine(with_values(cfg, {"device.parallel": "none"})), folder)
    data.close()
    return data.rows["train"]


def seen_line(name: str, count: int, of: int) -> str:
    """Say that the weights a member began with have learnt from rows that count as unseen."""
    return (
        f"seen before   {name} began with weights that have learnt from {count} of the {of} rows that count as unseen: "
        "values on these are better than on new rows"
    )


def unknown_line(names: str, files: tuple[str, ...]) -> str:
    """Say of whose weights nobody knows which rows they have seen."""
    return (
        f"unknown rows  {names} began with the weights of {', '.join(files)}: which rows these have learnt from is not "
        "known, so rows that count as unseen may be among them"
    )
