"""A learning rate by trying: what is measured, and that nothing of it reaches the run."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lightkit.finders.lr as finder
from lightkit.common.errors import UserError
from lightkit.config import compose, load_run, to_yaml
from lightkit.device.ranks import Ranks
from lightkit.finders.lr import FoundRate, find_lr, keep_found_lr, measure, resolve_lr
from lightkit.finders.suggestion import LossAtRate, Suggestion
from lightkit.runner import Runner
from lightkit.runs.catalog import has_configuration
from tests.runner.test_run import QUICK, comparable, weights


def config(*overrides: str) -> Any:
    return compose([*QUICK, *overrides]).cfg


def measured(*overrides: str, low: float = 1e-4, high: float = 1.0, steps: int = 12) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    measure(config(*overrides), answers.append, low=low, high=high, steps=steps)
    assert answers.pop() == {"end": True}
    return answers


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The rates of all groups, one step after the other."""
    seen: list[float] = []

    def give(group: dict[str, Any], rate: float) -> None:
        group["lr"] = rate
        seen.append(rate)

    monkeypatch.setattr(finder, "_set", give)
    return seen


def test_the_rate_rises_evenly_on_a_logarithmic_scale() -> None:
    answers = measured()
    assert len(answers) == 12
    steps = [later["lr"] / before["lr"] for before, later in pairwise(answers)]
    assert steps == pytest.approx([steps[0]] * 11)
    assert (answers[0]["lr"], answers[-1]["lr"]) == pytest.approx((1e-4, 1.0))
    assert answers[-1]["loss"] < answers[0]["loss"]


def test_it_ends_where_the_loss_diverges() -> None:
    assert len(measured("optim=sgd", high=1e9, steps=60)) < 60


def test_groups_keep_their_ratio_and_those_with_rates_of_their_own_keep_them(rates: list[float]) -> None:
    rules = "optim.rules=[{match: head.bias, lr: 0.5}, {match: head.weight, lr_scale: 10}]"
    measured(rules, "scheduler.warmup_epochs=1")
    each = [rates[start : start + len(rates) // 12] for start in range(0, len(rates), len(rates) // 12)]
    assert len(each) == 12
    for groups, lr in zip(each, np.geomspace(1e-4, 1.0, 12)):
        assert 0.5 in groups, "one that was given for itself stays"
        assert pytest.approx(lr) in groups
        assert pytest.approx(10 * lr) in groups


def test_no_group_follows_the_rate_of_the_optimizer() -> None:
    with pytest.raises(UserError, match=r"optim\.lr: every group of parameters has a rate of its own"):
        measured("optim.rules=[{match: '*', lr: 0.1}]")


def test_what_is_frozen_at_first_does_not_move(monkeypatch: pytest.MonkeyPatch) -> None:
    import lightkit.finders.steps as steps

    made: list[Any] = []
    known = steps.TrialSteps.__init__

    def init(self: Any, cfg: Any) -> None:
        known(self, cfg)
        made.extend((self, {name: value.clone() for name, value in self.learner.model.named_parameters()}))

    monkeypatch.setattr(steps.TrialSteps, "__init__", init)
    measured("finetune=head")
    trial, before = made
    moved = {name for name, value in trial.learner.model.named_parameters() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if name.startswith("head.")}


def test_an_optimizer_without_a_rate() -> None:
    cfg = config("optim=custom", "optim._target_=torch.optim.Rprop")
    with pytest.raises(UserError, match=r"optim\.lr: the optimizer has no learning rate to look for"):
        find_lr(cfg)


def test_in_a_process_of_its_own_and_the_state_of_this_one_stays() -> None:
    expected = measured(low=1e-4, high=1.0, steps=20)
    before = random.getstate(), torch.random.get_rng_state(), np.random.get_state()[1].copy(), torch.get_num_threads()
    told: list[int] = []
    found = find_lr(config(), low=1e-4, high=1.0, steps=20, tell=lambda step, point: told.append(step))
    assert told == [*range(1, len(found.points) + 1)]
    assert found.configured == config().optim.lr
    assert found.suggestion is not None
    assert 1e-4 < found.suggestion.lr < 1.0
    assert [point._asdict() for point in found.points] == expected
    assert random.getstate() == before[0]
    assert torch.equal(torch.random.get_rng_state(), before[1])
    assert (np.random.get_state()[1] == before[2]).all()
    assert torch.get_num_threads() == before[3]


@pytest.mark.thorough
def test_a_step_that_fails_is_told() -> None:
    task = "trainer.task={_target_: tests.runner.memory.test_bench.Hungry, most: 4, what: other}"
    with pytest.raises(UserError, match="KeyError: 'whatever'") as caught:
        find_lr(config(task))
    assert caught.value.exit_code == 1


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every search finds a rate of 0.02; the configurations that were searched for."""
    asked: list[Any] = []

    def search(cfg: Any, **_: Any) -> FoundRate:
        asked.append(cfg)
        point = LossAtRate(0.2, 1.0)
        return FoundRate((point,), Suggestion(0.02, "a tenth of 0.2", point, point, 2.0, 1.0), float(cfg.optim.lr))

    monkeypatch.setattr(finder, "find_lr", search)
    return asked


def test_the_run_has_the_rate_in_place_of_the_question(found: list[Any], tmp_path: Path) -> None:
    Runner(config("trainer.find_lr=true"), tmp_path / "run").run()
    Runner(config("optim.lr=0.02"), tmp_path / "plain").run()
    cfg = load_run(tmp_path / "run").cfg
    assert (cfg.optim.lr, cfg.trainer.find_lr) == (0.02, False)
    assert (tmp_path / "run/config.yaml").read_text() == (tmp_path / "plain/config.yaml").read_text()
    assert comparable(tmp_path / "run") == comparable(tmp_path / "plain")
    for name, tensor in weights(tmp_path / "run").items():
        assert torch.equal(tensor, weights(tmp_path / "plain")[name]), name
    assert "lr      0.02: a tenth of 0.2; optim.lr was 0.001" in (tmp_path / "run/run.log").read_text()
    assert len(found) == 1


@pytest.mark.thorough
def test_bits_of_a_run_with_a_real_search_before_it(tmp_path: Path) -> None:
    Runner(config("trainer.find_lr=true", "model.dropout=0.3"), tmp_path / "run").run()
    rate = load_run(tmp_path / "run").cfg.optim.lr
    Runner(config(f"optim.lr={rate}", "model.dropout=0.3"), tmp_path / "plain").run()
    assert comparable(tmp_path / "run") == comparable(tmp_path / "plain")
    for name, tensor in weights(tmp_path / "run").items():
        assert torch.equal(tensor, weights(tmp_path / "plain")[name]), name


def test_a_resumed_run_keeps_what_was_found(found: list[Any], tmp_path: Path) -> None:
    Runner(config("trainer.find_lr=true", "trainer.stop_at=1"), tmp_path / "cut").run()
    Runner(config("trainer.find_lr=true"), tmp_path / "cut").run(resume=True)
    Runner(config("trainer.find_lr=true"), tmp_path / "whole").run()
    assert len(found) == 2, "the resume looks for nothing"
    assert load_run(tmp_path / "cut").cfg.optim.lr == 0.02
    for name, tensor in weights(tmp_path / "whole").items():
        assert torch.equal(tensor, weights(tmp_path / "cut")[name]), name
    assert keep_found_lr(config(), "").optim.lr == config().optim.lr


def test_the_run_is_found_again_by_the_question(found: list[Any], tmp_path: Path) -> None:
    asked = config("trainer.find_lr=true")
    Runner(asked, tmp_path / "run").run()
    assert has_configuration(tmp_path / "run", to_yaml(asked))
    assert not has_configuration(tmp_path / "run", to_yaml(config("trainer.find_lr=true", "seed=1")))
    assert not has_configuration(tmp_path / "run", to_yaml(config()))


def test_one_process_searches_for_all(found: list[Any]) -> None:
    class Second(Ranks):
        rank, size = 1, 2

        def shared(self, make: Callable[[], Any]) -> Any:
            return 0.03, "told"

    cfg, lines = resolve_lr(config("trainer.find_lr=true"), Second())
    assert (cfg.optim.lr, lines, found) == (0.03, ("told",), [])


def test_no_rate_lets_the_loss_fall(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(finder, "find_lr", lambda cfg, **_: FoundRate((), None, 0.1))
    with pytest.raises(UserError, match=r"trainer\.find_lr: the loss falls with none of the rates") as caught:
        Runner(config("trainer.find_lr=true"), tmp_path / "run").run()
    assert caught.value.exit_code == 1
    assert not (tmp_path / "run").exists()
