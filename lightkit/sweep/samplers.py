"""Optuna's samplers and pruners by their names, and samplers that a killed study does not begin anew."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from lightkit.common.errors import UserError
from lightkit.common.randomness import mix
from lightkit.sweep.space import KEY, PRUNERS, SAMPLERS, Space, StudySettings

SEEDING = 2
"""How trials of a new study are seeded; see `SeededSampler`."""
_SEEDS = 2**32
"""Seeds that all samplers take are smaller."""


class SeededSampler(BaseSampler):
    """Sample each trial with a sampler of its own, seeded by the trial's number.

    A sampler that lives as long as its process starts over when the study is resumed. With one for each trial, a study
    that was killed and resumed equals one that was not.

    Args:
        make: Makes the sampler of a trial from a seed.
        seed: Seed of the study.
    """

    def __init__(self, make: Callable[[int], BaseSampler], seed: int) -> None:
        self._make, self._seed = make, seed
        self._samplers: dict[int, BaseSampler] = {}
        self.exhausted = False
        self.version = SEEDING

    def _seed_of(self, number: int) -> int:
        """Return the seed of a trial: no other one, nor any of a study with another seed, has the same by intent."""
        if self.version == 1:  # as studies began before: trial k + 1 of seed 0 was trial k of seed 1
            return self._seed + number
        return mix(self._seed, "trial", number) % _SEEDS

    def _of(self, trial: FrozenTrial) -> BaseSampler:
        if trial.number not in self._samplers:
            with quiet():
                self._samplers[trial.number] = self._make(self._seed_of(trial.number))
        return self._samplers[trial.number]

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Tell which values are drawn together."""
        return self._of(trial).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Draw values together."""
        return self._of(trial).sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Draw a value by itself."""
        return self._of(trial).sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Prepare a trial."""
        self._of(trial).before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Take the end of a trial; notice that every point of a grid was tried."""
        try:
            self._of(trial).after_trial(study, trial, state, values)
        except RuntimeError:  # `study.stop()` is for Optuna's own loop
            self.exhausted = True
        self._samplers.pop(trial.number, None)


def check_settings(space: Space, settings: StudySettings) -> None:
    """Check sampler and pruner before anything is written.

    Args:
        space: What varies.
        settings: Those of the study.

    Raises:
        UserError: One of them cannot be.
    """
    sampler_maker(space, settings)
    build_named("pruner", PRUNERS, settings.pruner, settings.pruner_options, {})


def sampler_maker(space: Space, settings: StudySettings) -> Callable[[int], BaseSampler]:
    """Return what makes the sampler of a trial; one is made at once, so that a mistake shows before anything starts."""
    given: dict[str, Any] = {}
    if settings.sampler == "grid":
        if space.grid is None:
            continuous = [key.lstrip("+") for key, one in space.varied.items() if Space((), {"": one}).grid is None]
            what = "a grid needs values that can be listed"
            received = f"grid, with a continuum for {', '.join(continuous)}"
            fix = f"choice(a, b) or range(1, 9, 2) instead of interval, or {KEY}.sampler=tpe"
            raise UserError(what, key=f"{KEY}.sampler", received=received, fix=fix)
        given["search_space"] = space.grid

    def make(seed: int) -> BaseSampler:
        # The seed of a grid is the order of its points, which all trials go through.
        seeded = {**given, "seed": settings.seed if settings.sampler == "grid" else seed}
        made = build_named("sampler", SAMPLERS, settings.sampler, settings.sampler_options, seeded)
        assert isinstance(made, BaseSampler)
        return made

    make(settings.seed)
    return make


def build_named(
    kind: str, names: Mapping[str, str], name: str, options: Mapping[str, Any], given: Mapping[str, Any]
) -> Any:
    """Build a sampler or pruner by its name.

    Raises:
        UserError: There is none of this name, it does not take an option, or a package is missing.
    """
    if name not in names:
        raise UserError(f"no such {kind}", key=f"{KEY}.{kind}", received=name, choices=sorted(names))
    target = getattr(getattr(optuna, f"{kind}s"), names[name])
    known = {parameter for parameter in inspect.signature(target).parameters if parameter != "self"}
    unknown = [option for option in options if option not in known]
    if unknown:
        key = f"{KEY}.{kind}_options.{unknown[0]}"
        raise UserError(f"{names[name]} has no such argument", key=key, choices=sorted(known - set(given)))
    needed = {"patient": {"wrapped_pruner": optuna.pruners.MedianPruner()}}.get(name, {})
    passed = {**{key: value for key, value in given.items() if key in known}, **needed, **options}
    if name == "cmaes" and find_spec("cmaes") is None:  # which Optuna notices in the midst of a study
        fix = "pip install 'lightkit[sweep]', or pip install cmaes"
        raise UserError(f"{names[name]} needs the package cmaes", key=f"{KEY}.{kind}", fix=fix)
    try:
        with quiet():
            return target(**passed)
    except (TypeError, ValueError) as error:
        raise UserError(f"{names[name]}: {error}", key=f"{KEY}.{kind}_options", received=dict(options)) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Optuna's notes about itself from the terminal."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield
