"""Resuming more than once, after the end, after a torn save, after a signal, and under a changed configuration."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UserError
from lightkit.loggers.events import read_scalars, repeated
from lightkit.runner.merge import KeyChange
from lightkit.runner.restore import check_moments
from lightkit.runner.trace import Moment
from lightkit.runs.reading import read_jsonl
from tests.resume.harness import Case, configured, forked

OPTIONS = ("data=wine", "model.dropout=0.2", "trainer.validate_unit=step", "trainer.validate_every=4")


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(configured(*OPTIONS), tmp_path_factory.mktemp("going-on"))


def copied(case: Case, name: str, source: Path | None = None) -> Path:
    return Path(shutil.copytree(source or case.whole, case.place / name))


@pytest.fixture(scope="module")
def cut(case: Case) -> Path:
    """The run, killed in the middle of its second epoch."""
    return case.kill(Moment("micro", 14, 0), "cut")


def newest(place: Path) -> dict[str, Any]:
    found = CheckpointStore(place / "checkpoints").load_newest()
    assert found is not None
    return found[1]


@pytest.mark.thorough
def test_a_run_killed_again_and_again(case: Case) -> None:
    place = case.kill(Moment("step", 10, 0), "often")
    for moment in (Moment("micro", 13, 0), Moment("save", 15, 2), Moment("validation", 20, 1), Moment("test", 24, 0)):
        _kill_resumed(case, place, moment)
    case.resume(place)
    assert case.differences(place) == []
    assert repeated(place) == {}, "no record of the event files stands twice, whoever reads them"


def _kill_resumed(case: Case, place: Path, moment: Moment) -> None:
    from lightkit.config import load_run
    from lightkit.runner.trace import traced_runner

    def job() -> None:
        trace = place.with_name(f"{place.name}-{moment.step}.jsonl")
        traced_runner(load_run(place).cfg, place, trace=trace, end_at=moment).run(resume=True)

    forked(job, place.with_name(f"{place.name}.log"), want=-signal.SIGKILL)


@pytest.mark.thorough
def test_resuming_a_finished_run_changes_nothing(case: Case) -> None:
    place = copied(case, "finished")
    for _ in range(2):
        case.resume(place)
        assert case.differences(place) == []


@pytest.mark.thorough
def test_a_signal_in_a_validation(case: Case) -> None:
    """At the end of an epoch the values of training are logged before those of the validation, as ever."""
    place = case.kill(Moment("validation", 8, 1), "signal", sign=signal.SIGTERM)
    assert json.loads((place / "result.json").read_text())["status"] == "interrupted"
    case.resume(place)
    assert case.differences(place) == []


@pytest.mark.thorough
def test_a_longer_run_is_the_one_that_was_longer_from_the_start(tmp_path: Path) -> None:
    options = ("data=wine", "scheduler=constant", "model.dropout=0.2")
    short = Case(configured(*options), tmp_path / "short")
    long = Case(configured(*options, "trainer.epochs=5"), tmp_path / "long")
    short.resume(short.whole, "trainer.epochs=5")
    rows = [item for item in long.differences(short.whole) if not item.startswith(("metrics.jsonl", "TensorBoard"))]
    assert rows == []
    for place in (short.whole, long.whole):
        curve = read_scalars(place)["val/loss"]
        assert [step for step, _ in curve] == [8, 16, 24, 32, 40]
    assert read_scalars(short.whole)["val/loss"] == read_scalars(long.whole)["val/loss"]


def settings(place: Path) -> dict[str, Any]:
    return dict(newest(place)["optimizer"]["groups"][0])


def test_a_changed_rate_is_kept_out_unless_it_is_named(case: Case, cut: Path) -> None:
    place = copied(case, "kept", cut)
    case.resume(place, "optim.lr=0.5", "optim.weight_decay=0.3")
    assert case.differences(place) == []
    log = (place / "run.log").read_text()
    assert "optim.lr: the checkpoint says 0.01, the configuration 0.5; the checkpoint's is kept" in log
    assert "resume.override=[optim.weight_decay]" in log


@pytest.mark.thorough(first=0)
def test_a_named_rate_is_taken(case: Case, cut: Path) -> None:
    place = copied(case, "taken", cut)
    case.resume(place, "optim.lr=0.5", "optim.weight_decay=0.3", "resume.override=[optim.lr,optim.weight_decay]")
    assert settings(place)["initial_lr"] == 0.5
    assert settings(place)["weight_decay"] == 0.3
    rates, before = (
        [row["lr/all"] for row in read_jsonl(run / "metrics.jsonl") if row["step"] == 14 and "lr/all" in row]
        for run in (place, case.whole)
    )
    assert rates == pytest.approx([value * 50 for value in before])
    case.resume(place)  # `resume.override` is in the folder's configuration now, and nothing differs any more
    assert settings(place)["initial_lr"] == 0.5


@pytest.mark.thorough
def test_the_rate_of_a_scheduler_of_torch_cannot_be_changed(tmp_path: Path) -> None:
    case = Case(configured("data=wine", "scheduler=torch", "trainer.epochs=2"), tmp_path / "torch")
    place = copied(case, "again")
    case.resume(place, "optim.lr=0.5", "trainer.epochs=3")
    again = copied(case, "refused")
    case.resume(again, "optim.lr=0.5", "trainer.epochs=3", "resume.override=[optim.lr]", want=1)
    assert "keep the learning rate in their own state" in (case.place / "refused-resumed.log").read_text()


@pytest.mark.thorough(first=0)
def test_callbacks_and_early_stopping_come_and_go(case: Case, cut: Path) -> None:
    place = copied(case, "callbacks", cut)
    counts = "trainer.callbacks.counts={_target_: tests.resume.sets.Counts}"
    case.resume(place, "trainer.early_stopping.patience=50", counts)
    assert newest(place)["callbacks"]["counts"] == {"steps": 24 - 12}
    assert newest(place)["callbacks"]["early_stopping"]["best"] is not None
    longer = copied(case, "callbacks-gone", place)
    case.resume(longer, "trainer.early_stopping.patience=null", "~trainer.callbacks.counts", "trainer.epochs=4")
    assert set(newest(longer)["callbacks"]) == set()
    assert "callback counts is gone, and what it knew" in (longer / "run.log").read_text()


@pytest.mark.thorough
def test_more_patience_goes_on_after_an_early_end(tmp_path: Path) -> None:
    early = ("data=wine", "optim.lr=1", "trainer.early_stopping.patience=1", "trainer.epochs=8")
    stopped = Case(configured(*early), tmp_path / "stopped")
    state = newest(stopped.whole)["state"]
    assert state["stop_reason"]
    place = copied(stopped, "same")
    stopped.resume(place)
    assert newest(place)["state"]["step"] == state["step"]
    stopped.resume(place, "trainer.early_stopping.patience=50")
    assert newest(place)["state"]["step"] == 64


@pytest.mark.thorough
def test_what_may_change_freely_does_not_change_the_weights(case: Case, cut: Path) -> None:
    place = copied(case, "free", cut)
    saves = ("checkpoint.every_steps=1", "checkpoint.asynchronous=false", "data.eval_batch_size=5")
    case.resume(place, *saves, "logger.every_steps=3", "name=other", "extra.note=hello", "metrics.figures=[roc]")
    whole, other = newest(case.whole)["model"], newest(place)["model"]
    assert all(torch.equal(whole[name], other[name]) for name in whole)
    assert (place / "figures").is_dir()


def test_a_length_that_moves_the_beginning_of_a_phase_is_refused() -> None:
    named = torch.optim.SGD([{"params": [torch.zeros(1)], "name": "from_step_12.body"}], lr=1.0)
    saved = {"groups": [{"name": "from_step_8.body"}]}
    longer = KeyChange("trainer.epochs", 4, 6, taken=True)
    message = r"trainer\.epochs: [\s\S]*from_step_8[\s\S]*from_step_12[\s\S]*resume\.override"
    with pytest.raises(UserError, match=message):
        check_moments(saved, named, [longer])
    check_moments({"groups": [{"name": "from_step_12.body"}]}, named, [longer])
    check_moments({"groups": [{"name": "body"}]}, torch.optim.SGD([torch.zeros(1)], lr=1.0), [longer])
