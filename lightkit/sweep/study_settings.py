"""What `hydra/sweeper=optuna` can be told, checked before anything starts and without Optuna."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightkit.common.errors import UserError

KEY = "hydra.sweeper"
"""Where the settings stand in the configuration."""
SAMPLERS = {
    "tpe": "TPESampler",
    "random": "RandomSampler",
    "grid": "GridSampler",
    "bruteforce": "BruteForceSampler",
    "cmaes": "CmaEsSampler",
    "gp": "GPSampler",
    "qmc": "QMCSampler",
    "nsgaii": "NSGAIISampler",
    "nsgaiii": "NSGAIIISampler",
}
"""Names of samplers and their classes in `optuna.samplers`."""
PRUNERS = {
    "none": "NopPruner",
    "median": "MedianPruner",
    "percentile": "PercentilePruner",
    "halving": "SuccessiveHalvingPruner",
    "hyperband": "HyperbandPruner",
    "threshold": "ThresholdPruner",
    "patient": "PatientPruner",
    "wilcoxon": "WilcoxonPruner",
}
"""Names of pruners and their classes in `optuna.pruners`."""
_DIRECTIONS = {"min": "minimize", "max": "maximize", "minimize": "minimize", "maximize": "maximize"}


@dataclass(frozen=True)
class StudySettings:
    """What `hydra/sweeper=optuna` can be told.

    Attributes:
        n_trials: Trials of the study, those of other machines and failed ones included.
        objectives: Values to optimize, by name; empty for the best value of `metrics.monitor`.
        directions: `minimize` or `maximize` for each objective.
        sampler: A name of `SAMPLERS`.
        sampler_options: Arguments of its class.
        pruner: A name of `PRUNERS`.
        pruner_options: Arguments of its class.
        seed: Seed of the study; each trial is seeded by a hash of it and the trial's number.
        storage: File of the study; None for one in the folder of the sweep.
        study_name: Name of the study in the file.
    """

    n_trials: int
    directions: tuple[str, ...]
    objectives: tuple[str, ...] = ()
    sampler: str = "tpe"
    sampler_options: Mapping[str, Any] = field(default_factory=dict)
    pruner: str = "none"
    pruner_options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    storage: Path | None = None
    study_name: str = "lightkit"


def read_settings(node: Mapping[str, Any], *, monitor: str, mode: str, seed: int, name: str) -> StudySettings:
    """Read and check the settings of a study.

    Args:
        node: Those of `hydra.sweeper`, as plain values.
        monitor: Metric that is optimized where no other is named.
        mode: `min` or `max`, its better direction.
        seed: Of the sampler, where none is given.
        name: Of the study, where none is given.

    Raises:
        UserError: A value that cannot be, or Optuna is not installed.
    """
    if find_spec("optuna") is None:
        fix = "pip install 'lightkit[sweep]'"
        raise UserError("this sweeper needs the package optuna", key="hydra/sweeper", received="optuna", fix=fix)
    trials = node.get("n_trials")
    if not isinstance(trials, int) or isinstance(trials, bool) or trials < 1:
        raise UserError("not a number of trials", key=f"{KEY}.n_trials", expected="at least 1", received=trials)
    objectives = _texts(node.get("objectives"), "objectives") or (monitor,)
    directions = _directions(node.get("direction"), objectives, monitor=monitor, mode=mode)
    for kind, names in (("sampler", SAMPLERS), ("pruner", PRUNERS)):
        if node.get(kind) not in names:
            raise UserError(f"no such {kind}", key=f"{KEY}.{kind}", received=node.get(kind), choices=sorted(names))
    if len(objectives) > 1 and node["pruner"] != "none":
        what, fix = "several objectives cannot be pruned", f"{KEY}.pruner=none, or a single objective"
        raise UserError(what, key=f"{KEY}.pruner", received=node["pruner"], fix=fix)
    chosen = node.get("seed")
    if chosen is not None and (not isinstance(chosen, int) or isinstance(chosen, bool) or chosen < 0):
        raise UserError("not a seed", key=f"{KEY}.seed", expected="a whole number from 0 up", received=chosen)
    storage = node.get("storage")
    if storage is not None and "://" in str(storage):
        what = "a study is kept in Optuna's journal, which is a file"
        fix = "a path on a disk that all machines see, such as outputs/study.journal"
        raise UserError(what, key=f"{KEY}.storage", received=storage, fix=fix)
    return StudySettings(
        n_trials=trials,
        directions=directions,
        objectives=objectives,
        sampler=node["sampler"],
        sampler_options=dict(node.get("sampler_options") or {}),
        pruner=node["pruner"],
        pruner_options=dict(node.get("pruner_options") or {}),
        seed=seed if chosen is None else chosen,
        storage=Path(storage) if storage is not None else None,
        study_name=str(node.get("study_name") or name),
    )


def _directions(given: Any, objectives: Sequence[str], *, monitor: str, mode: str) -> tuple[str, ...]:
    """Return the direction of each objective; that of the monitored metric follows from the metric."""
    texts = _texts(given, "direction")
    if not texts and objectives == (monitor,):
        return (_DIRECTIONS[mode],)
    if len(texts) != len(objectives) or not set(texts) <= set(_DIRECTIONS):
        raise UserError(
            "each objective needs a direction",
            key=f"{KEY}.direction",
            expected=f"{len(objectives)} of minimize or maximize, for {', '.join(objectives)}",
            received=given,
            fix=f"{KEY}.direction=[{','.join(['maximize'] * len(objectives))}]",
        )
    return tuple(_DIRECTIONS[text] for text in texts)


def _texts(value: Any, name: str) -> tuple[str, ...]:
    """Return a text, or a list of texts, as a tuple."""
    found = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise UserError("neither a name nor a list of names", key=f"{KEY}.{name}", received=value)
    return tuple(found)
