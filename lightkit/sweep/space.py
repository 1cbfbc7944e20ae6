"""The values that a sampler may choose for each key, from what was typed in Hydra's sweep grammar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.common.errors import UserError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

_TAGS = {"log", "int", "float"}
"""What a tag may say of an interval or a range; others are the user's own, and mean nothing here."""


@dataclass(frozen=True)
class Space:
    """What varies in a sweep and what does not.

    Attributes:
        fixed: Overrides of every job.
        varied: By key, with the `+` it was typed with, what its value is drawn from.
    """

    fixed: tuple[str, ...]
    varied: Mapping[str, BaseDistribution]

    @property
    def grid(self) -> dict[str, list[Any]] | None:
        """Return all values of each key; None where a key has more than can be listed."""
        found = {key: _values(distribution) for key, distribution in self.varied.items()}
        return {key: values for key, values in found.items() if values is not None} if all(found.values()) else None


def read_space(overrides: Sequence[Override]) -> Space:
    """Tell fixed from varied overrides, and read the latter as Hydra's sweepers do.

    `choice(a,b)` and `a,b` are one of these; `interval(0,1)` is any number between; `range(1,9,2)` is 1, 3, 5 or 7, as
    in Python. `tag(log, interval(1e-5,1))` is even on a logarithmic scale, `int(interval(1,64))` a whole number.

    Args:
        overrides: As Hydra has parsed them.

    Raises:
        UserError: A range without values, or one that cannot be on a logarithmic scale.
    """
    fixed = [str(override.input_line) for override in overrides if not override.is_sweep_override()]
    swept = (override for override in overrides if override.is_sweep_override())
    return Space(tuple(fixed), {str(override.get_key_element()): _distribution(override) for override in swept})


def draw(trial: Trial, key: str, distribution: BaseDistribution) -> None:
    """Let a trial draw the value of a key."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(distribution, CategoricalDistribution):
        trial.suggest_categorical(key, distribution.choices)
    elif isinstance(distribution, IntDistribution):
        trial.suggest_int(key, distribution.low, distribution.high, step=distribution.step, log=distribution.log)
    elif isinstance(distribution, FloatDistribution):
        trial.suggest_float(key, distribution.low, distribution.high, step=distribution.step, log=distribution.log)


def as_overrides(values: Mapping[str, Any], *, digits: int = 17) -> list[str]:
    """Write chosen values as they are typed.

    Args:
        values: By key.
        digits: Of a number with a fraction, at most; 17 keep it as it is.
    """
    short = {key: float(f"{value:.{digits}g}") if isinstance(value, float) else value for key, value in values.items()}
    return [f"{key}={value!r}" if isinstance(value, float) else f"{key}={value}" for key, value in short.items()]


def _distribution(override: Override) -> BaseDistribution:
    from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    sweep: Any = override.value()
    key = str(override.get_key_element())
    if isinstance(sweep, ChoiceSweep) or override.is_choice_sweep():
        # Their texts: a choice of lists or of options of a group is one of words to a sampler.
        return CategoricalDistribution(list(dict.fromkeys(override.sweep_string_iterator())))
    tags = set(sweep.tags) & _TAGS
    try:
        low: Any
        high: Any
        step: Any
        if isinstance(sweep, IntervalSweep):
            low, high, step = sweep.start, sweep.end, None
            whole = "int" in tags or (isinstance(low, int) and isinstance(high, int) and "float" not in tags)
        else:
            values: list[Any] = list(override.sweep_iterator())
            low, high, step = float(values[0]), float(values[-1]), float(sweep.step)
            low, high = min(low, high), max(low, high)
            step, whole = abs(step), all(float(value).is_integer() for value in (*values, sweep.step))
        if "log" in tags:
            step = None
        if whole:
            return IntDistribution(int(low), int(high), log="log" in tags, step=int(step or 1))
        return FloatDistribution(float(low), float(high), log="log" in tags, step=step)
    except (ValueError, IndexError, TypeError) as error:
        raise UserError(
            f"no values can be drawn from this: {error}",
            key=key.lstrip("+"),
            received=str(override.input_line).partition("=")[2],
            fix="tag(log, interval(1e-5, 1e-1)), interval(0, 1), range(1, 9, 2) or choice(a, b)",
            family="hydra",
        ) from error


def _values(distribution: BaseDistribution) -> list[Any] | None:
    """List the values of a distribution; None for a continuum or one on a logarithmic scale."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    if isinstance(distribution, IntDistribution) and not distribution.log:
        return list(range(distribution.low, distribution.high + 1, distribution.step))
    if isinstance(distribution, FloatDistribution) and distribution.step is not None:
        count = round((distribution.high - distribution.low) / distribution.step) + 1
        return [distribution.low + index * distribution.step for index in range(count)]
    return None


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
