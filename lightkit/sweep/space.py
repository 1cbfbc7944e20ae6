"""The values that a sampler may choose for each key, from what was typed in Hydra's sweep grammar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
