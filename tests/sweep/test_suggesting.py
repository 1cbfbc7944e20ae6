"""Jobs that Optuna suggests: samplers, pruning, several objectives, kills."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightkit.common.errors import UserError, UserErrors
from lightkit.config.loader import make_loader
from lightkit.sweep.job import Job, JobOutcome
from lightkit.sweep.space import SAMPLERS, StudySettings, read_space

pytest.importorskip("optuna")
from lightkit.sweep.suggesting import OptunaSearch

CONTINUUM = ["data=wine", "optim.lr=tag(log,interval(1e-4,1e-1))", "model.hidden=[8],[16,8]", "seed=range(4)"]
LISTED = ["data=wine", "optim.lr=0.1,0.01,0.001", "model.hidden=[8],[16,8]", "seed=range(2)"]


class Study:
    """A sweep whose jobs are a function of their values, and whose process may die."""

    def __init__(self, folder: Path, texts: Sequence[str] = CONTINUUM, **settings: Any) -> None:
        loader = make_loader()
        self.folder, self.space = folder, read_space([loader.parse(text) for text in texts])
        self.suggest: Any = settings.pop("suggest", None)
        self.settings = StudySettings(**{"n_trials": 12, "directions": ("maximize",), **settings})
        self.jobs: dict[str, Job] = {}
        self.refused: set[str] = set()
        self.ran: list[tuple[str, tuple[str, ...]]] = []
        self.restart()

    def restart(self) -> None:
        """Begin again as a process of its own would."""
        self.search = OptunaSearch(
            self.space, self.make, self.folder, self.settings, suggest=self.suggest, known=self.jobs
        )

    def make(self, name: str, overrides: Sequence[str]) -> Job:
        if name.partition(",")[0] in self.refused:
            raise UserErrors([UserError("not this one", key="optim.lr")])
        return self.jobs.setdefault(name, Job(name, self.folder / name, tuple(overrides), ""))

    def run(self, *, deaths: Sequence[int] = (), outcomes: Mapping[str, JobOutcome] | None = None) -> None:
        """Run to the end; before these jobs' ends the process dies once."""
        dying = set(deaths)
        while not self.search.ended:
            for start in self.search.next(1):
                number = start.job.name.partition(",")[0]
                if int(number) in dying:
                    dying.remove(int(number))
                    self.restart()
                    break
                self.ran.append((start.job.name, start.job.overrides))
                ended = (outcomes or {}).get(number) or JobOutcome("", "finished", {"objective": worth(start.job)})
                self.search.tell(replace(ended, name=start.job.name))


def worth(job: Job) -> float:
    values = dict(text.partition("=")[::2] for text in job.overrides)
    return -abs(math.log10(float(values["optim.lr"])) + 2) + len(values["model.hidden"]) / 100


@pytest.mark.thorough
@pytest.mark.parametrize("sampler", ["tpe", *sorted(SAMPLERS.keys() - {"tpe", "grid"})])
def test_a_study_that_died_twice_equals_one_that_did_not(sampler: str, tmp_path: Path) -> None:
    texts = LISTED if sampler == "bruteforce" else CONTINUUM
    whole, killed = (Study(tmp_path / name, texts, sampler=sampler, seed=3) for name in "ab")
    whole.run()
    killed.run(deaths=[4, 11])
    assert killed.ran == whole.ran
    assert len(whole.ran) == 12
    assert len({overrides for _, overrides in whole.ran}) > 6
    assert all(overrides[0] == "data=wine" for _, overrides in whole.ran)


def test_a_grid_ends_with_its_points_however_many_trials_are_asked_for(tmp_path: Path) -> None:
    whole, killed = (Study(tmp_path / name, LISTED, sampler="grid", n_trials=100) for name in "ab")
    whole.run()
    assert len(whole.ran) == len({overrides for _, overrides in whole.ran}) == 12
    killed.run(deaths=[4, 11])
    assert killed.ran == whole.ran
    with pytest.raises(UserError, match="can be listed") as caught:
        Study(tmp_path / "c", CONTINUUM, sampler="grid")
    assert "optim.lr" in str(caught.value)


def test_failed_trials_count_with_their_reason_and_do_not_end_the_study(tmp_path: Path) -> None:
    study = Study(tmp_path)
    study.refused = {"003"}
    failed = JobOutcome("001", "failed", code=1, reason="out of memory")
    without = JobOutcome("002", "finished", {})
    study.run(outcomes={"001": failed, "002": without})
    trials = study.search.study.get_trials()
    assert len(trials) == 12
    states = {trial.user_attrs["job"][:3]: (trial.state.name, trial.user_attrs.get("reason")) for trial in trials}
    assert states["001"] == ("FAIL", "out of memory")
    assert states["002"] == ("FAIL", "no value of objective")
    assert states["003"] == ("FAIL", "optim.lr: not this one")
    assert states["011"] == ("COMPLETE", None)
    assert not [name for name, _ in study.ran if name.startswith("003")]


def test_an_interrupted_job_is_named_again_and_a_finished_one_told_twice_counts_once(tmp_path: Path) -> None:
    study = Study(tmp_path, n_trials=2)
    first = study.search.next(1)[0].job
    study.search.tell(JobOutcome(first.name, "interrupted", code=143))
    study.restart()
    assert study.search.next(2)[0].job is first
    for _ in range(2):
        study.search.tell(JobOutcome(first.name, "finished", {"objective": 0.5}))
    assert study.search.study.get_trials()[0].value == 0.5
    assert study.search.ended


def test_a_pruner_sees_each_step_once_and_stops_what_promises_little(tmp_path: Path) -> None:
    study = Study(tmp_path, pruner="median", pruner_options={"n_startup_trials": 2}, objectives=("val/accuracy",))
    verdicts = []
    for value in (0.9, 0.8, 0.1, 0.95):
        name = study.search.next(1)[0].job.name
        rows = [{"step": step, "val/accuracy": value} for step in (10, 20, 10)]
        stop = [study.search.watch(name, row) for row in [{"step": 5, "train/loss": 1.0}, *rows]]
        verdicts.append(any(stop))
        study.search.tell(JobOutcome(name, "pruned" if any(stop) else "finished", {"objective": value}))
    assert verdicts == [False, False, True, False]
    states = [trial.state.name for trial in study.search.study.get_trials()]
    assert states == ["COMPLETE", "COMPLETE", "PRUNED", "COMPLETE"]


def test_several_objectives_have_a_front(tmp_path: Path) -> None:
    names = ("val/accuracy", "val/loss")
    study = Study(tmp_path, objectives=names, directions=("maximize", "minimize"), sampler="nsgaii", n_trials=4)
    pairs = [(0.9, 0.5), (0.8, 0.2), (0.7, 0.6), (0.5, 0.3)]
    study.run(outcomes={f"00{at}": JobOutcome("", "finished", dict(zip(names, pair))) for at, pair in enumerate(pairs)})
    assert [trial.number for trial in study.search.study.best_trials] == [0, 1]
    assert not study.search.watch("000", {"step": 1, "val/accuracy": 0.1})


def test_machines_share_a_study_and_its_number_of_trials(tmp_path: Path) -> None:
    file = tmp_path / "shared" / "study.journal"
    one, other = (Study(tmp_path / name, storage=file, n_trials=6) for name in "ab")
    while not (one.search.ended and other.search.ended):
        for study in (one, other):
            for start in study.search.next(1):
                study.ran.append((start.job.name, start.job.overrides))
                study.search.tell(JobOutcome(start.job.name, "finished", {"objective": worth(start.job)}))
    assert [name[:3] for name, _ in one.ran] == ["000", "002", "004"]
    assert [name[:3] for name, _ in other.ran] == ["001", "003", "005"]
    assert len(one.search.study.get_trials()) == 6


def test_values_can_depend_on_each_other(tmp_path: Path) -> None:
    def suggest(trial: Any) -> None:
        if trial.suggest_categorical("optim", ["sgd", "adam"]) == "sgd":
            trial.suggest_float("optim.momentum", 0.5, 0.99)

    study = Study(tmp_path, ["data=wine", "optim.lr=interval(0.001,0.1)", "model.hidden=[8],[4]"], suggest=suggest)
    study.run()
    for _, overrides in study.ran:
        assert ("optim=sgd" in overrides) == any(text.startswith("optim.momentum=") for text in overrides)
    assert {text for _, overrides in study.ran for text in overrides} >= {"optim=sgd", "optim=adam"}


def test_wrong_settings_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"hydra\.sweeper\.sampler_options\.n_startup"):
        Study(tmp_path, sampler_options={"n_startup": 3})
    with pytest.raises(UserError, match=r"hydra\.sweeper\.pruner_options"):
        Study(tmp_path, pruner="threshold")
    Study(tmp_path)
    with pytest.raises(UserError, match="other directions"):
        Study(tmp_path, directions=("minimize",))


@pytest.mark.parametrize("suggest", [None, lambda trial: trial.suggest_int("data.batch_size", 8, 16)])
def test_a_trial_that_was_under_way_brings_no_keys_that_nobody_asks_for(tmp_path: Path, suggest: Any) -> None:
    from optuna.trial import TrialState

    study = Study(tmp_path, suggest=suggest)
    trial = study.search.study.ask()
    trial.suggest_categorical("trust", ["[os]"])
    trial.suggest_categorical("model._target_", ["os.system"])
    trial.set_user_attr("sweep", str(tmp_path.resolve()))
    trial.set_user_attr("job", "../../mine")
    study.restart()
    (start,) = study.search.next(1)
    assert study.search.study.trials[0].state == TrialState.RUNNING
    keys = {text.partition("=")[0] for text in start.job.overrides}
    asked = {"data.batch_size"} if suggest else set[str]()
    assert keys == {"data", "optim.lr", "model.hidden", "seed"} | asked
    assert start.job.name.startswith("000,optim.lr=")


def drawn(study: Study) -> list[tuple[str, ...]]:
    """Return the overrides of all trials, run to the end."""
    study.run()
    return [overrides for _, overrides in study.ran]


def test_random_studies_with_neighbouring_seeds_share_no_trial(tmp_path: Path) -> None:
    made = [drawn(Study(tmp_path / str(seed), sampler="random", seed=seed)) for seed in range(2)]
    assert len({overrides for each in made for overrides in each}) == 24
    assert drawn(Study(tmp_path / "again", sampler="random", seed=1)) == made[1]


def test_a_study_from_before_goes_on_as_it_began(tmp_path: Path) -> None:
    import optuna

    def begun(name: str, seed: int) -> Study:
        """Begin a study as older versions did: it says nothing of how its trials are seeded."""
        study = Study(tmp_path / name, sampler="random", seed=seed)
        optuna.create_study(storage=study.search.study._storage, study_name="before", direction="maximize").add_trial(
            optuna.trial.create_trial(value=0.0)
        )
        study.settings = replace(study.settings, study_name="before")
        study.restart()
        return study

    older, next_one = drawn(begun("a", 0)), drawn(begun("b", 1))
    assert older[1:] == next_one[:-1]
    killed = begun("c", 0)
    killed.run(deaths=[5])
    assert [overrides for _, overrides in killed.ran] == older
