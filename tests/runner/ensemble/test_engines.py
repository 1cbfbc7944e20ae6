"""Members side by side as processes: the same bits, and how they end together."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lightkit.common.errors import UserError
from lightkit.runner import Runner
from lightkit.runner.comparison import compare_runs
from lightkit.runner.ensemble import engines
from tests.conftest import Outcome
from tests.resume.ensembles import BASE, METHODS, config, go_on
from tests.resume.harness import forked
from tests.runner.processes import configured, far, train
from tests.waiting import until

SIDE_BY_SIDE = ("ensemble.engine=processes", "ensemble.size=2")


@pytest.mark.thorough(first=0)
def test_processes_give_what_one_gives(process: Callable[..., Outcome], project: Path) -> None:
    typed = [*BASE, *METHODS["voting"], "ensemble.size=2", "ensemble.slots=2"]
    for engine in ("sequential", "processes"):
        outcome = process("train", *typed, f"ensemble.engine={engine}", f"hydra.run.dir={engine}")
        assert outcome.code == 0, outcome.err
    compared = compare_runs(project / "sequential", project / "processes")
    different = [item.different for item in compared if item.different and item.name != "ensemble.safetensors"]
    assert different == []


@pytest.mark.thorough
def test_a_member_that_fails_ends_all(tmp_path: Path) -> None:
    bad = ("optim=sgd", "optim.lr=1e30", "data.normalize=none", "trainer.epochs=50")
    message = r"(?s)the process of member 0\d ended with status 3.*no longer finite"
    with pytest.raises(UserError, match=message) as caught:
        Runner(config("voting", *SIDE_BY_SIDE, *bad), tmp_path / "run").run()
    assert caught.value.exit_code == 3


@pytest.mark.thorough
def test_a_signal_ends_all_and_they_go_on(tmp_path: Path) -> None:
    cfg, place = config("voting", *SIDE_BY_SIDE, "ensemble.slots=2", "trainer.epochs=400"), tmp_path / "run"

    def job() -> None:
        main = threading.main_thread().ident
        assert main is not None

        def ask() -> None:
            names = [place / "members" / name / "checkpoints" / "manifest.json" for name in ("00", "01")]
            until(lambda: all(name.exists() for name in names), "both members to save")
            signal.pthread_kill(main, signal.SIGTERM)

        threading.Thread(target=ask, daemon=True).start()
        Runner(cfg, place).run()

    forked(job, tmp_path / "log", want=128 + signal.SIGTERM)
    assert not (place / "ensemble.safetensors").exists()
    forked(lambda: go_on(cfg, place, "trainer.epochs=2"), tmp_path / "log")
    assert (place / "ensemble.safetensors").exists()


TWO = {
    "voting": ("ensemble=voting", "ensemble.size=2", "ensemble.weights=validation"),
    "folds": ("ensemble=bagging", "ensemble.resample=folds", "ensemble.folds=2"),
    "stacking": (
        *("ensemble=stacking", "ensemble.members=[{model.hidden: [8]}, {model.hidden: []}]"),
        *("ensemble.folds=2", "ensemble.meta.trainer.steps=20"),
    ),
    "boosting": ("ensemble=gradient_boosting", "ensemble.size=2", "ensemble.patience=1"),
    "tuned": ("ensemble=voting", "ensemble.size=2", "finetune=lora", "finetune.lora.rank=2"),
}


def result(place: Path) -> dict[str, Any]:
    return json.loads((place / "result.json").read_text())


@pytest.mark.thorough
@pytest.mark.parametrize("method", TWO)
def test_two_processes_give_what_one_gives(method: str, tmp_path: Path) -> None:
    more = ["ensemble.engine=sequential"] if method != "boosting" else []
    if method == "tuned":
        base = train(tmp_path / "base", configured("device.parallel=none"), 1)
        more.append(f"finetune.weights.path={base}")
    cfg = configured(*TWO[method], *more)
    train(tmp_path / "two", cfg, 2)
    Runner(cfg, tmp_path / "one").run()
    one, two = result(tmp_path / "one"), result(tmp_path / "two")
    assert one["metrics"] == pytest.approx(two["metrics"], rel=2e-4, abs=2e-5)
    names = sorted(path.name for path in (tmp_path / "one" / "members").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "two" / "members").iterdir())
    for name in names:
        assert not far(tmp_path / "one" / "members" / name, tmp_path / "two" / "members" / name)
    held = [load_file(tmp_path / place / "oof.safetensors") for place in ("one", "two")]
    assert torch.equal(held[0]["rows"], held[1]["rows"])
    assert torch.allclose(held[0]["predictions"], held[1]["predictions"], atol=1e-4, equal_nan=True)


@pytest.mark.thorough
def test_what_rank_0_cannot_write_ends_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr("lightkit.runner.ensemble.run.write_ensemble", refuse)
    train(tmp_path / "two", configured(*TWO["voting"]), 2, want=[1, 1])
    assert result(tmp_path / "two")["status"] == "failed"


def test_the_order_of_what_a_member_sets_makes_no_other_kind() -> None:
    values = {"optim.lr": 0.1, "optim.weight_decay": 0.01}, {"optim.weight_decay": 0.1, "optim.lr": 0.03}
    members: Any = [SimpleNamespace(values=own) for own in values]
    assert engines._by_kind(members) == [members]
