"""Jobs that Optuna suggests: samplers, pruners, several objectives, and studies that machines share (optuna.org)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.samplers import BaseSampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study, StudyDirection
from optuna.trial import FixedTrial, FrozenTrial, Trial, TrialState

from lightkit.common import run_files
from lightkit.common.errors import UserError, UserErrors
from lightkit.common.text import slug
from lightkit.sweep.job import Job, JobOutcome, JobSearch, Start
from lightkit.sweep.samplers import SEEDING, SeededSampler, build_named, quiet, sampler_maker
from lightkit.sweep.space import KEY, PRUNERS, Space, StudySettings, as_overrides, draw

_LOG = logging.getLogger(__name__)
_JOB, _SWEEP, _REASON = "job", "sweep", "reason"
_SEEDING = "lightkit.seeding"
"""Attribute of a study: the version of how its trials are seeded; studies from before have none, which is 1."""
"""Attributes of a trial: its job's name, the folder of the sweep that runs it, and why it failed."""
Suggest = Callable[[Trial], object]
"""A function that suggests values for keys of its choice: `trial.suggest_float("optim.lr", 1e-5, 1, log=True)`."""


class OptunaSearch(JobSearch):
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
        self._overrides: dict[int, list[str]] = {}
        self._sampler = SeededSampler(sampler_maker(space, settings), settings.seed)
        self.study = open_study(folder, settings, self._sampler)
        self._sampler.version = _seeding(self.study)
        own = [trial for trial in self.study.get_trials() if self._is_own(trial)]
        self._trials = {trial.user_attrs[_JOB]: trial.number for trial in own if _JOB in trial.user_attrs}
        self._waiting = [trial.number for trial in own if trial.state == TrialState.RUNNING]

    def next(self, room: int) -> Sequence[Start]:
        """Name jobs that were under way before, then what Optuna suggests."""
        starts: list[Start] = []
        while len(starts) < room and not self.ended:
            trial = self._drawn(self._trial(self._waiting.pop(0)), begun=True) if self._waiting else self._ask()
            try:
                starts.append(Start(self._job(trial)))
            except UserError as found:
                errors = found.errors if isinstance(found, UserErrors) else [found]
                reason = "; ".join(f"{error.key}: {error.what}" for error in errors)
                _LOG.warning("trial %d cannot run: %s", trial.number, reason)
                self._fail(trial.number, reason)
        return starts

    def watch(self, name: str, row: Mapping[str, Any]) -> bool:
        """Report the value that is optimized, at its step; return whether the pruner has seen enough."""
        objective, step = self._settings.objectives[:1], row.get("step")
        value = row.get(objective[0]) if objective and name in self._trials else None
        if len(self._settings.directions) > 1 or not isinstance(value, int | float) or not isinstance(step, int):
            return False
        trial = self._trial(self._trials[name])
        with quiet():
            # A job that has gone on after a kill logs again what it had logged.
            if step not in self.study.get_trials()[trial.number].intermediate_values:
                trial.report(float(value), step)
            return trial.should_prune()

    def tell(self, outcome: JobOutcome) -> None:
        """Tell Optuna how a job ended; one that was interrupted goes on later."""
        number = self._trials.get(outcome.name)
        if number is None or self.study.get_trials()[number].state.is_finished() or outcome.status == "interrupted":
            return
        if outcome.status in ("failed", "stopped"):
            self._fail(number, outcome.reason)
            return
        if outcome.status == "pruned":
            with quiet():
                self.study.tell(number, state=TrialState.PRUNED)
            return
        single = len(self._settings.directions) == 1
        names = ("objective",) if single else self._settings.objectives
        missing = [name for name in names if outcome.values.get(name) is None]
        if missing:
            self._fail(number, f"no value of {', '.join(missing)}")
            return
        with quiet():
            self.study.tell(number, [outcome.values[name] for name in names])

    @property
    def ended(self) -> bool:
        """Tell whether the study has its trials, or a grid has no more points."""
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
        with quiet():
            trial = self.study.ask()
        return self._drawn(trial)

    def _drawn(self, trial: Trial, *, begun: bool = False) -> FrozenTrial:
        """Draw the values that a trial lacks, and note that it is a job of this sweep.

        Args:
            trial: The trial.
            begun: Whether it stands in the file already, with values that anybody may have written.
        """
        with quiet():
            trial.set_user_attr(_SWEEP, self._folder)
            for key, distribution in self._space.varied.items():
                draw(trial, key, distribution)
            if self._suggest is not None:
                self._suggest(trial)
            chosen = self._asked_for(trial.params) if begun else trial.params
            self._overrides[trial.number] = as_overrides(chosen)
            name = ",".join([f"{trial.number:03d}", *as_overrides(chosen, digits=4)])
            trial.set_user_attr(_JOB, slug(name))
        self._trials[slug(name)], self._open[trial.number] = trial.number, trial
        return self.study.get_trials()[trial.number]

    def _asked_for(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return those of a trial's values that the space and the user's function ask for."""
        keys = {*self._space.varied}
        if self._suggest is not None:
            fixed: Any = FixedTrial(params)
            self._suggest(fixed)
            keys |= {*fixed.params}
        return {key: value for key, value in params.items() if key in keys}

    def _job(self, trial: FrozenTrial) -> Job:
        name = str(trial.user_attrs[_JOB])
        return self._known.get(name) or self._make_job(name, [*self._space.fixed, *self._overrides[trial.number]])

    def _trial(self, number: int) -> Trial:
        if number not in self._open:
            self._open[number] = Trial(self.study, self.study.get_trials(deepcopy=False)[number]._trial_id)
        return self._open[number]

    def _fail(self, number: int, reason: str) -> None:
        with quiet():
            self._trial(number).set_user_attr(_REASON, reason)
            self.study.tell(number, state=TrialState.FAIL)

    def _is_own(self, trial: FrozenTrial) -> bool:
        # A process that was killed while it drew values has left a trial without attributes, in a file of its own.
        there = trial.user_attrs.get(_SWEEP)
        return there == self._folder or (there is None and self._settings.storage is None)


def _seeding(study: Study) -> int:
    """Return how the trials of a study are seeded: as it began, or of one without trials as today."""
    noted = study.user_attrs.get(_SEEDING)
    if noted is None:
        noted = 1 if study.get_trials(deepcopy=False) else SEEDING
        with quiet():
            study.set_user_attr(_SEEDING, noted)
    return noted if noted in (1, SEEDING) else SEEDING


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
    pruner = build_named("pruner", PRUNERS, settings.pruner, settings.pruner_options, {})
    path = settings.storage or folder / run_files.SWEEP_STUDY
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with quiet():
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
        what, fix = "the study in this file has other directions", f"another {KEY}.study_name or {KEY}.storage"
        received = ", ".join(settings.directions)
        raise UserError(what, key=f"{KEY}.direction", expected=", ".join(found), received=received, fix=fix)
    return study
