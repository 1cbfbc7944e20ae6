"""Jobs that Optuna suggests: samplers, pruners, several objectives, and studies that machines share (optuna.org)."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from lightkit.common.errors import UserError, UserErrors
from lightkit.common.text import slug
from lightkit.sweep.job import Job, Outcome, Start
from lightkit.sweep.space import Space, as_overrides, draw
from lightkit.sweep.study_settings import KEY, PRUNERS, SAMPLERS, StudySettings

_LOG = logging.getLogger(__name__)
_JOB, _SWEEP, _REASON = "job", "sweep", "reason"
"""Attributes of a trial: its job's name, the folder of the sweep that runs it, and why it failed."""
Suggest = Callable[[Trial], object]
"""A function that suggests values for keys of its choice: `trial.suggest_float("optim.lr", 1e-5, 1, log=True)`."""


class SeededSampler(BaseSampler):
    """Sample each trial with a sampler of its own, seeded by the trial's number.

    A sampler that lives as long as its process starts over when the study is resumed. With one for each trial, a study
    that was killed and resumed equals one that was not.

    Args:
        make: Makes the sampler of a trial from a seed.
        seed: Seed of the first trial.
    """

    def __init__(self, make: Callable[[int], BaseSampler], seed: int) -> None:
        self._make, self._seed = make, seed
        self._samplers: dict[int, BaseSampler] = {}
        self.exhausted = False

    def _of(self, trial: FrozenTrial) -> BaseSampler:
        if trial.number not in self._samplers:
            with _quiet():
                self._samplers[trial.number] = self._make(self._seed + trial.number)
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


class OptunaSearch:
    """Let Optuna choose the values of jobs from the results of those before.

    Trials of this sweep that were under way when its process died go on as the jobs they are. A trial whose job fails
    counts, and does not end the study.

    Args:
        space: What is fixed and what varies.
        make_job: Composes and checks the job of a name and its overrides.
        folder: Folder of the sweep.
        settings: Those of the study.
        suggest: Suggests values of more keys, where which keys vary depends on other values.
        known: Jobs that an earlier process of this sweep has planned, by name.

    Raises:
        UserError: A sampler, pruner or storage that cannot be.
    """

    tries_failed_again = False

    def __init__(
        self,
        space: Space,
        make_job: Callable[[str, Sequence[str]], Job],
        folder: Path,
        settings: StudySettings,
        *,
        suggest: Suggest | None = None,
        known: Mapping[str, Job] | None = None,
    ) -> None:
        self._space, self._make_job, self._suggest = space, make_job, suggest
        self._folder, self._settings, self._known = str(folder.resolve()), settings, dict(known or {})
        self._open: dict[int, Trial] = {}
        self._sampler = SeededSampler(_sampler_maker(space, settings), settings.seed)
        self.study = open_study(folder, settings, self._sampler)
        own = [trial for trial in self.study.get_trials() if self._is_own(trial)]
        self._trials = {trial.user_attrs[_JOB]: trial.number for trial in own if _JOB in trial.user_attrs}
        self._waiting = [trial.number for trial in own if trial.state == TrialState.RUNNING]

    def next(self, room: int) -> Sequence[Start]:
        """Name jobs that were under way before, then what Optuna suggests."""
        starts: list[Start] = []
        while len(starts) < room and not self.ended:
            trial = self._drawn(self._trial(self._waiting.pop(0))) if self._waiting else self._ask()
            try:
                starts.append(Start(self._job(trial)))
            except UserErrors as errors:
                reason = "; ".join(f"{error.key}: {error.what}" for error in errors.errors)
                _LOG.warning("trial %d cannot run: %s", trial.number, reason)
                self._fail(trial.number, reason)
        return starts

    def watch(self, name: str, row: Mapping[str, Any]) -> bool:
        """Report the value that is optimized, at its step; return whether the pruner has seen enough."""
        objective, step = self._settings.objectives[:1], row.get("step")
        value = row.get(objective[0]) if objective else None
        if len(self._settings.directions) > 1 or not isinstance(value, int | float) or not isinstance(step, int):
            return False
        trial = self._trial(self._trials[name])
        with _quiet():
            # A job that has gone on after a kill logs again what it had logged.
            if step not in self.study.get_trials()[trial.number].intermediate_values:
                trial.report(float(value), step)
            return trial.should_prune()

    def tell(self, outcome: Outcome) -> None:
        """Tell Optuna how a job ended; one that was interrupted goes on later."""
        number = self._trials.get(outcome.name)
        if number is None or self.study.get_trials()[number].state.is_finished() or outcome.status == "interrupted":
            return
        if outcome.status == "failed":
            self._fail(number, outcome.reason)
            return
        if outcome.status == "pruned":
            with _quiet():
                self.study.tell(number, state=TrialState.PRUNED)
            return
        single = len(self._settings.directions) == 1
        names = ("objective",) if single else self._settings.objectives
        missing = [name for name in names if outcome.values.get(name) is None]
        if missing:
            self._fail(number, f"no value of {', '.join(missing)}")
            return
        with _quiet():
            self.study.tell(number, [outcome.values[name] for name in names])

    @property
    def ended(self) -> bool:
        """Whether the study has its trials, or a grid has no more points."""
        if self._waiting:
            return False
        return self._sampler.exhausted or len(self.study.get_trials(deepcopy=False)) >= self._budget

    @property
    def objectives(self) -> list[str]:
        """The names of what is optimized."""
        return list(self._settings.objectives)

    def best(self) -> list[FrozenTrial]:
        """Return the best finished trial; of several objectives, those that no other one beats in all."""
        finished = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if not finished:
            return []
        return [self.study.best_trial] if len(self.study.directions) == 1 else self.study.best_trials

    @property
    def _budget(self) -> int:
        grid = self._space.grid if self._settings.sampler in ("grid", "bruteforce") and not self._suggest else None
        points = 1
        for values in (grid or {}).values():
            points *= len(values)
        return min(self._settings.n_trials, points) if grid else self._settings.n_trials

    def _ask(self) -> FrozenTrial:
        """Let Optuna choose values; the trial is kept before its job begins."""
        with _quiet():
            trial = self.study.ask()
        return self._drawn(trial)

    def _drawn(self, trial: Trial) -> FrozenTrial:
        """Draw the values that a trial lacks, and note that it is a job of this sweep."""
        with _quiet():
            trial.set_user_attr(_SWEEP, self._folder)
            for key, distribution in self._space.varied.items():
                draw(trial, key, distribution)
            if self._suggest is not None:
                self._suggest(trial)
            name = ",".join([f"{trial.number:03d}", *as_overrides(trial.params, digits=4)])
            trial.set_user_attr(_JOB, slug(name))
        self._trials[slug(name)], self._open[trial.number] = trial.number, trial
        return self.study.get_trials()[trial.number]

    def _job(self, trial: FrozenTrial) -> Job:
        name = str(trial.user_attrs[_JOB])
        return self._known.get(name) or self._make_job(name, [*self._space.fixed, *as_overrides(trial.params)])

    def _trial(self, number: int) -> Trial:
        if number not in self._open:
            self._open[number] = Trial(self.study, self.study.get_trials(deepcopy=False)[number]._trial_id)
        return self._open[number]

    def _fail(self, number: int, reason: str) -> None:
        with _quiet():
            self._trial(number).set_user_attr(_REASON, reason)
            self.study.tell(number, state=TrialState.FAIL)

    def _is_own(self, trial: FrozenTrial) -> bool:
        # A process that was killed while it drew values has left a trial without attributes, in a file of its own.
        there = trial.user_attrs.get(_SWEEP)
        return there == self._folder or (there is None and self._settings.storage is None)


def open_study(folder: Path, settings: StudySettings, sampler: BaseSampler | None = None) -> Study:
    """Open the study of a sweep, or begin it.

    The file is Optuna's journal, which bears several writers; a database of SQLite does not when two of them begin it.

    Args:
        folder: Folder of the sweep.
        settings: Those of the study.
        sampler: What suggests values; not needed for looking at it.

    Raises:
        UserError: The file cannot be used, or holds a study with other directions.
    """
    pruner = _built("pruner", PRUNERS, settings.pruner, settings.pruner_options, {})
    path = settings.storage or folder / "optuna.journal"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _quiet():
            study = optuna.create_study(
                storage=JournalStorage(JournalFileBackend(str(path))),
                study_name=settings.study_name,
                directions=[StudyDirection[name.upper()] for name in settings.directions],
                sampler=sampler,
                pruner=pruner,
                load_if_exists=True,
            )
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror}", key=f"{KEY}.storage", received=str(path)) from error
    found = tuple(direction.name.lower() for direction in study.directions)
    if found != settings.directions:
        raise UserError(
            "the study in this file has other directions",
            key=f"{KEY}.direction",
            expected=", ".join(found),
            received=", ".join(settings.directions),
            fix=f"another {KEY}.study_name or {KEY}.storage",
        )
    return study


def check_settings(space: Space, settings: StudySettings) -> None:
    """Check sampler and pruner before anything is written.

    Args:
        space: What varies.
        settings: Those of the study.

    Raises:
        UserError: One of them cannot be.
    """
    _sampler_maker(space, settings)
    _built("pruner", PRUNERS, settings.pruner, settings.pruner_options, {})


def _sampler_maker(space: Space, settings: StudySettings) -> Callable[[int], BaseSampler]:
    """Return what makes the sampler of a trial; one is made at once, so that a mistake shows before anything starts."""
    given: dict[str, Any] = {}
    if settings.sampler == "grid":
        if space.grid is None:
            continuous = [key.lstrip("+") for key, one in space.varied.items() if _is_continuous(one)]
            raise UserError(
                "a grid needs values that can be listed",
                key=f"{KEY}.sampler",
                received=f"grid, with a continuum for {', '.join(continuous)}",
                fix=f"choice(a, b) or range(1, 9, 2) instead of interval, or {KEY}.sampler=tpe",
            )
        given["search_space"] = space.grid

    def make(seed: int) -> BaseSampler:
        # The seed of a grid is the order of its points, which all trials go through.
        seeded = {**given, "seed": settings.seed if settings.sampler == "grid" else seed}
        made = _built("sampler", SAMPLERS, settings.sampler, settings.sampler_options, seeded)
        assert isinstance(made, BaseSampler)
        return made

    make(settings.seed)
    return make


def _is_continuous(distribution: BaseDistribution) -> bool:
    return Space((), {"": distribution}).grid is None


def _built(kind: str, names: Mapping[str, str], name: str, options: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
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
        with _quiet():
            return target(**passed)
    except (TypeError, ValueError) as error:
        raise UserError(f"{names[name]}: {error}", key=f"{KEY}.{kind}_options", received=dict(options)) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna's notes about itself from the terminal."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield
