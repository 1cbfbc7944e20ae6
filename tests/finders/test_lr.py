"""A learning rate by trying: what is measured, and that nothing of it reaches the run."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lightkit.finders.lr as finder
from lightkit.common.errors import UserError
from lightkit.config import compose, load_run, to_yaml
from lightkit.device.ranks import Ranks
from lightkit.finders.lr import FoundRate, LossAtRate, ShortTraining, find_lr, keep_found_lr, measure, resolve_lr
from lightkit.runner import Runner
from lightkit.runs.catalog import has_configuration
from tests.conftest import Outcome
from tests.runner.test_run import QUICK, comparable, weights


def config(*overrides: str) -> Any:
    return compose([*QUICK, *overrides]).cfg


def measured(*overrides: str, low: float = 1e-4, high: float = 1.0, steps: int = 12) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    measure(config(*overrides), answers.append, low=low, high=high, steps=steps)
    return answers


def test_rates_that_rise_then_short_trainings() -> None:
    answers = measured(steps=20)
    end = answers.pop()
    assert end == {"end": True, "short": 10, "total": 24}
    trained = [answer["training"] for answer in answers if "training" in answer]
    assert 3 <= len(trained) <= 7
    assert len(answers) - len(trained) == 20
    assert min(training["lr"] for training in trained) < max(training["lr"] for training in trained) / 5


def test_a_short_training_is_no_longer_than_the_run() -> None:
    assert measured("trainer.epochs=null", "trainer.steps=3")[-1] == {"end": True, "short": 3, "total": 3}


def test_an_optimizer_without_a_rate() -> None:
    cfg = config("optim=custom", "optim._target_=torch.optim.Rprop")
    with pytest.raises(UserError, match=r"optim\.lr: the optimizer has no learning rate to look for"):
        find_lr(cfg)


def test_in_a_process_of_its_own_and_the_state_of_this_one_stays() -> None:
    expected = measured(low=1e-4, high=1.0, steps=20)
    before = random.getstate(), torch.random.get_rng_state(), np.random.get_state()[1].copy(), torch.get_num_threads()
    told: list[int] = []
    trained: list[ShortTraining] = []
    found = find_lr(
        config(),
        low=1e-4,
        high=1.0,
        steps=20,
        tell=lambda step, point: told.append(step),
        tell_training=trained.append,
    )
    assert told == [*range(1, len(found.points) + 1)]
    assert found.configured == config().optim.lr
    assert found.suggestion is not None
    assert found.suggestion.lr < max(training.lr for training in trained)
    assert list(found.trainings) == trained
    said = [*(point._asdict() for point in found.points), *({"training": each._asdict()} for each in trained)]
    assert [*said, {"end": True, "short": found.short, "total": found.total}] == expected
    assert random.getstate() == before[0]
    assert torch.equal(torch.random.get_rng_state(), before[1])
    assert (np.random.get_state()[1] == before[2]).all()
    assert torch.get_num_threads() == before[3]


@pytest.mark.thorough
def test_a_step_that_fails_is_told(process: Callable[..., Outcome]) -> None:
    task = "trainer.task={_target_: tests.runner.test_bench.Hungry, most: 4, what: other}"
    done = process("find", "lr", *QUICK, task)
    assert done.code == 1
    assert "KeyError: 'whatever'" in done.err


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every search finds a rate of 0.02; the configurations that were searched for."""
    asked: list[Any] = []

    def search(cfg: Any, **_: Any) -> FoundRate:
        asked.append(cfg)
        return FoundRate((LossAtRate(0.2, 1.0),), float(cfg.optim.lr), (ShortTraining(0.02, (1.0, 1.0)),), 5, 5)

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
    assert (
        "lr      0.02: of trainings of 5 steps 0.02 ends lowest: 1; optim.lr was 0.001"
        in (tmp_path / "run/run.log").read_text()
    )
    assert len(found) == 1


@pytest.mark.thorough
def test_bits_of_a_run_with_a_real_search_before_it(process: Callable[..., Outcome], project: Path) -> None:
    run, plain = project / "outputs/run", project / "outputs/plain"
    done = process("train", *QUICK, "model.dropout=0.3", "trainer.find_lr=true", f"hydra.run.dir={run}")
    assert done.code == 0, done.err
    rate = load_run(run).cfg.optim.lr
    assert f"lr      {rate:g}: of trainings of 24 steps " in (run / "run.log").read_text()
    assert process("train", *QUICK, "model.dropout=0.3", f"optim.lr={rate}", f"hydra.run.dir={plain}").code == 0
    assert comparable(run) == comparable(plain)
    for name, tensor in weights(run).items():
        assert torch.equal(tensor, weights(plain)[name]), name


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
    monkeypatch.setattr(finder, "find_lr", lambda cfg, **_: FoundRate((), 0.1))
    with pytest.raises(UserError, match=r"trainer\.find_lr: the loss falls with none of the rates") as caught:
        Runner(config("trainer.find_lr=true"), tmp_path / "run").run()
    assert caught.value.exit_code == 1
    assert not (tmp_path / "run").exists()
