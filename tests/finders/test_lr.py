"""A learning rate by trying: what is measured, and that nothing of it reaches the run."""

from __future__ import annotations

import os
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
from tests.warm import Warm


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
    assert measured("trainer.epochs=null", "trainer.steps=3")[-1] == {"end": True, "short": 3, "total": 3}


def test_an_optimizer_without_a_rate() -> None:
    cfg = config("optim=custom", "optim._target_=torch.optim.Rprop")
    with pytest.raises(UserError, match=r"optim\.lr: the optimizer has no learning rate to look for"):
        find_lr(cfg)


def test_in_a_process_of_its_own_and_the_state_of_this_one_stays(warm: Warm, project: Path) -> None:
    with open(os.devnull) as none, (project / "said.txt").open("w") as out:
        streams = [none.fileno(), out.fileno(), out.fileno()]
        code = warm.start([], project, streams, module="tests.finders.test_lr").wait()
    assert code == 0, (project / "said.txt").read_text()


def main(_: list[str]) -> int:
    """Search from a process that starts others in milliseconds."""
    expected = measured(steps=12)
    before = random.getstate(), torch.random.get_rng_state(), np.random.get_state()[1].copy(), torch.get_num_threads()
    steps: list[int] = []
    trained: list[ShortTraining] = []
    rate = find_lr(
        config(),
        low=1e-4,
        high=1.0,
        steps=12,
        tell=lambda step, point: steps.append(step),
        tell_training=trained.append,
    )
    assert steps == [*range(1, len(rate.points) + 1)]
    assert rate.configured == config().optim.lr
    assert rate.suggestion is not None
    assert rate.suggestion.lr < max(training.lr for training in trained)
    assert list(rate.trainings) == trained
    answers = [*(point._asdict() for point in rate.points), *({"training": each._asdict()} for each in trained)]
    assert [*answers, {"end": True, "short": rate.short, "total": rate.total}] == expected
    assert random.getstate() == before[0]
    assert torch.equal(torch.random.get_rng_state(), before[1])
    assert (np.random.get_state()[1] == before[2]).all()
    assert torch.get_num_threads() == before[3]
    return 0


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every search finds a rate of 0.02; the configurations that were searched for."""
    asked: list[Any] = []

    def search(cfg: Any, **_: Any) -> FoundRate:
        asked.append(cfg)
        return FoundRate((LossAtRate(0.2, 1.0),), float(cfg.optim.lr), (ShortTraining(0.02, (1.0, 1.0)),), 5, 5)

    monkeypatch.setattr(finder, "find_lr", search)
    return asked


@pytest.mark.thorough(first=0)
def test_the_run_has_the_rate_in_place_of_the_question(found: list[Any], tmp_path: Path) -> None:
    asked = config("trainer.find_lr=true")
    run, plain, cut = (tmp_path / name for name in ("run", "plain", "cut"))
    Runner(asked, run).run()
    Runner(config("optim.lr=0.02"), plain).run()
    cfg = load_run(run).cfg
    assert (cfg.optim.lr, cfg.trainer.find_lr) == (0.02, False)
    assert (run / "config.yaml").read_text() == (plain / "config.yaml").read_text()
    line = "lr      0.02: of trainings of 5 steps 0.02 ends lowest: 1; optim.lr was 0.001"
    assert line in (run / "run.log").read_text()
    Runner(config("trainer.find_lr=true", "trainer.stop_at=1"), cut).run()
    Runner(asked, cut).run(resume=True)
    assert load_run(cut).cfg.optim.lr == 0.02
    assert len(found) == 2, "the resume looks for nothing"
    assert comparable(run) == comparable(plain)
    for name, tensor in weights(run).items():
        assert torch.equal(tensor, weights(plain)[name]), name
        assert torch.equal(tensor, weights(cut)[name]), name
    # the run is found again by the question
    assert has_configuration(run, to_yaml(asked))
    assert not has_configuration(run, to_yaml(config("trainer.find_lr=true", "seed=1")))
    assert not has_configuration(run, to_yaml(config()))
    assert keep_found_lr(config(), "").optim.lr == config().optim.lr


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
