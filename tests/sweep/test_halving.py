"""Halving with an engine that trains nothing: each job has a curve of values, and counts the epochs that it trains."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightkit.common.errors import UserError
from lightkit.config.schema.sweeping import HalvingConfig
from lightkit.sweep.halving import build_halving, deal, hyperband_shares
from lightkit.sweep.job import Job, JobOutcome

LENGTH = 27


def job(name: str, folder: Path = Path("/none"), **trainer: Any) -> Job:
    cfg = {
        "trainer": {"epochs": LENGTH, "steps": None, "validate_every": 1, "validate_unit": "epoch"} | trainer,
        "metrics": {"monitor": "val/accuracy", "mode": "max"},
        "checkpoint": {"enabled": True},
        "ensemble": {"_target_": "lightkit.ensemble.methods.NoEnsemble"},
    }
    return Job(name, folder / name, (f"seed={name}",), yaml.safe_dump(cfg))


def jobs(count: int = 27, **trainer: Any) -> list[Job]:
    return [job(f"{number:02}", **trainer) for number in range(count)]


class Simulated:
    """Trains jobs in so many slots, which end in an order drawn by a seed."""

    def __init__(self, search: Any, *, slots: int = 3, seed: int = 0, fails: tuple[str, ...] = ()) -> None:
        self.search, self.slots, self.fails, self.draw = search, slots, fails, random.Random(seed)
        self.done: dict[str, int] = {}
        self.trained = 0
        self.told: list[JobOutcome] = []
        self.removed: set[str] = set()
        self.running: list[Any] = []

    def value(self, name: str, epoch: int) -> float:
        return (int(name) * 7 % 27) / 27 + epoch / 1000

    def step(self) -> bool:
        """Start what there is room for, and let one job end; False at the end."""
        self.running += self.search.next(self.slots - len(self.running))
        assert len({start.job.name for start in self.running}) == len(self.running) <= self.slots
        assert not self.removed & {start.job.name for start in self.running}
        if not self.running:
            assert self.search.ended
            return False
        start = self.running.pop(self.draw.randrange(len(self.running)))
        self.tell(self.outcome(start.job.name, start.stop_at))
        return True

    def outcome(self, name: str, stop_at: str | None) -> JobOutcome:
        if name in self.fails:
            return JobOutcome(name, "failed", code=3)
        end = int(stop_at or LENGTH)
        assert end > self.done.get(name, 0)
        self.trained += end - self.done.get(name, 0)
        self.done[name] = end
        status = "paused" if stop_at else "finished"
        return JobOutcome(name, status, {"objective": self.value(name, end)}, epoch=end, step=8 * end)

    def tell(self, outcome: JobOutcome) -> None:
        self.search.tell(outcome)
        self.told.append(outcome)
        self.removed |= {*self.search.out_of_race()}

    def run(self) -> Simulated:
        while self.step():
            pass
        return self

    def at(self, epochs: int) -> list[str]:
        return sorted(name for name, done in self.done.items() if done >= epochs)


HALVING = HalvingConfig(rungs=[1, 3, 9, 27])


@pytest.mark.parametrize(("slots", "seed"), [(1, 0), (5, 1), (30, 0)])
def test_27_jobs_train_81_epochs_whatever_the_slots(slots: int, seed: int) -> None:
    ran = Simulated(build_halving(jobs(), HALVING), slots=slots, seed=seed).run()
    assert ran.trained == 81
    assert [len(ran.at(rung)) for rung in (1, 3, 9, 27)] == [27, 9, 3, 1]
    best = sorted(ran.done, key=lambda name: -ran.value(name, 0))
    assert [ran.at(rung) for rung in (3, 9, 27)] == [sorted(best[:count]) for count in (9, 3, 1)]
    assert ran.removed == {*ran.done} - {*ran.at(27)}


def test_rungs_are_made_of_a_first_one_and_eta() -> None:
    for options in (HalvingConfig("successive"), HalvingConfig("successive", rungs=[1, 3, 9])):
        assert Simulated(build_halving(jobs(), options)).run().trained == 81
    search = build_halving(jobs(4), HalvingConfig("successive", first=2, eta=2))
    assert search is not None
    assert search.brackets[0].rungs == (2, 4, 8, 16)


@pytest.mark.parametrize("options", [HALVING, HalvingConfig("hyperband")])
@pytest.mark.parametrize("cut", [1, 20, 33])
def test_outcomes_told_again_give_the_same_decisions(options: HalvingConfig, cut: int) -> None:
    whole = Simulated(build_halving(jobs(), options), slots=2).run()
    first = Simulated(build_halving(jobs(), options), slots=2)
    for _ in range(cut):
        first.step()
    again = Simulated(build_halving(jobs(), options), slots=3, seed=5)
    for outcome in first.told:
        again.tell(outcome)
    again.search.leave_out(first.removed)
    again.done, again.trained = {**first.done}, first.trained
    again.run()
    assert again.done == whole.done
    assert (again.trained, again.removed) == (whole.trained, whole.removed)


def test_an_interrupted_job_is_named_again_for_the_same_rung() -> None:
    search = build_halving(jobs(2), HALVING)
    assert search is not None
    first, second = search.next(5)
    assert search.next(5) == []
    search.tell(JobOutcome(first.job.name, "interrupted", code=143))
    assert search.next(5) == [first]
    search.tell(JobOutcome(second.job.name, "paused", {"objective": 0.5}, epoch=1, step=8))
    search.tell(JobOutcome(first.job.name, "failed", code=1, reason="no memory"))
    assert [(start.job.name, start.stop_at) for start in search.next(5)] == [(second.job.name, None)]
    assert not search.ended
    search.tell(JobOutcome(second.job.name, "finished", {"objective": 0.5}, epoch=27, step=216))
    assert search.ended
    assert search.out_of_race() == []


def test_failed_jobs_take_no_place_and_the_best_may_be_the_smallest() -> None:
    made = [replace(one, config=one.config.replace("mode: max", "mode: min")) for one in jobs()]
    ran = Simulated(build_halving(made, HALVING)).run()
    assert ran.at(27) == [min(ran.done, key=lambda name: ran.value(name, 0))]
    ran = Simulated(build_halving(jobs(), HALVING), fails=("01", "02", "26")).run()
    assert [len(ran.at(rung)) for rung in (1, 3, 9, 27)] == [24, 9, 3, 1]
    assert not {"01", "02", "26"} & ran.removed


def test_rungs_in_steps() -> None:
    search = build_halving(jobs(3), HalvingConfig(rungs=[8, 24], unit="step"))
    assert search is not None
    assert {start.stop_at for start in search.next(9)} == {"8 steps"}
    for number in range(3):
        search.tell(JobOutcome(f"{number:02}", "paused", {"objective": number}, epoch=1, step=8))
    assert [(start.job.name, start.stop_at) for start in search.next(9)] == [("02", None)]


def test_hyperband_begins_later_in_each_bracket() -> None:
    assert hyperband_shares(4, 3) == [27, 12, 6, 4]
    search = build_halving(jobs(49), HalvingConfig("hyperband"))
    assert search is not None
    assert [(len(part.names), part.rungs) for part in search.brackets] == [
        (27, (1, 3, 9)),
        (12, (3, 9)),
        (6, (9,)),
        (4, ()),
    ]
    assert sorted(name for part in search.brackets for name in part.names) == [one.name for one in jobs(49)]
    ran = Simulated(search, slots=4).run()
    assert len(ran.at(27)) == 1 + 1 + 2 + 4
    assert deal(["a"], [3, 1]) == [["a"], []]


@pytest.mark.parametrize(
    ("options", "trainer", "message"),
    [
        (HalvingConfig(rungs=[3, 1]), {}, r"sweep\.halving\.rungs: rungs rise"),
        (HalvingConfig(rungs=[]), {}, r"sweep\.halving\.rungs: rungs rise"),
        (HalvingConfig(rungs=[27, 81]), {}, r"sweep\.halving\.rungs: no rung lies before the end"),
        (HalvingConfig("successive", first=30), {}, r"sweep\.halving\.first: no rung"),
        (HalvingConfig("successive"), {"validate_every": 2}, r"sweep\.halving\.first: there is no value"),
        (HalvingConfig("successive", unit="step"), {}, r"sweep\.halving\.rungs: how many steps"),
        (HALVING, {"stop_at": 3}, r"trainer\.stop_at: halving says itself"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: HalvingConfig, trainer: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_halving(jobs(3, **trainer), options)


def test_jobs_that_cannot_be_compared_are_refused() -> None:
    assert build_halving(jobs(3), HalvingConfig()) is build_halving([], HALVING) is None
    with pytest.raises(UserError, match="the same length"):
        build_halving([*jobs(2), job("x", epochs=9)], HALVING)
    plain = job("00")
    for old, new, message in (
        ("enabled: true", "enabled: false", "without checkpoints"),
        ("NoEnsemble", "Voting", "does not pause"),
    ):
        with pytest.raises(UserError, match=message):
            build_halving([replace(plain, config=plain.config.replace(old, new))], HALVING)
