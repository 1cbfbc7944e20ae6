"""Which rows the weights that a run began with have learnt from."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from lightkit.assembly import build_engine, build_splits
from lightkit.assembly.origin import run_of
from lightkit.config.member_values import with_values
from lightkit.config.project import located
from lightkit.runs.reading import read_facts, read_run

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
