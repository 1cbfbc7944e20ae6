"""Times and rows of the loop; logged learning rates are those that the optimizer stepped with."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.optim.optimizer import register_optimizer_step_pre_hook

from lightkit.loggers.events import read_scalars
from lightkit.trainer import report
from lightkit.trainer.report import Clock, Reporter
from lightkit.trainer.state import State, Timetable
from tests.conftest import Outcome
from tests.trainer.parts import trainer

Cli = Callable[..., Outcome]
TRAIN = (
    "data=wine",
    "model.hidden=[4]",
    "data.batch_size=32",
    "optim=sgd",
    "optim.lr=0.1",
    "optim.rules=[{match: head, name: head, lr_scale: 0.5}]",
    "trainer.epochs=4",
    "logger.every_steps=1",
    "logger.console.style=quiet",
    "device=cpu",
    "metrics.figures=[]",
    "metrics.monitor=val/loss",
    "metrics.mode=min",
    "hydra.run.dir=run",
)
PLATEAU = ("scheduler=plateau", "scheduler.patience=0", "scheduler.threshold=1")
STEP = ("scheduler=step", "scheduler.every_epochs=1", "scheduler.gamma=0.5")
KINDS = {
    "PyTorch's by epoch": ("scheduler=torch",),
    "constant": ("scheduler=constant", "scheduler.warmup_steps=3"),
    "cosine": ("scheduler=cosine", "scheduler.warmup_steps=2"),
    "linear by epoch": ("scheduler=linear", "scheduler.interval=epoch"),
    "one cycle": ("scheduler=one_cycle",),
    "step": STEP,
    "plateau": PLATEAU,
    "PyTorch's by step": ("scheduler=torch", "scheduler.interval=step"),
    "accumulated": ("scheduler=cosine", "trainer.accumulate=2"),
}


@pytest.fixture
def used() -> Iterator[list[list[float]]]:
    """The rate of every group in each step that an optimizer takes."""
    taken: list[list[float]] = []

    def note(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        taken.append([float(group["lr"]) for group in optimizer.param_groups])

    handle = register_optimizer_step_pre_hook(note)
    yield taken
    handle.remove()


def logged(folder: Path = Path("run")) -> dict[int, list[float]]:
    """Logged rates by step, in the order of the groups."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    groups = [name for name in max(rows, key=len) if name.startswith("lr/")]
    return {row["step"]: [row[name] for name in groups] for row in rows if groups[0] in row}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_the_logged_rate_is_the_one_the_step_used(cli: Cli, used: list[list[float]], kind: str) -> None:
    done = cli("train", *TRAIN, *KINDS[kind], "logger.tensorboard.enabled=false")
    assert done.code == 0, done.err
    rows = logged()
    steps = used[-len(rows) :]  # before the run, copies try out what a step costs
    assert rows == dict(enumerate(steps, 1))
    assert len({tuple(rates) for rates in steps}) > 1
    assert all(head == pytest.approx(rates / 2) for rates, head in steps)


def test_the_first_step_of_an_epoch_has_the_rate_that_was_planned(cli: Cli) -> None:
    args = (*TRAIN, *STEP, "logger.tensorboard.enabled=true")
    (phase,) = json.loads(cli("plan", *args, "--json").out)["phases"]
    assert cli("train", *args).code == 0
    curves = read_scalars(Path("run"))
    for row in phase["groups"]:
        curve = dict(curves[f"vitals/lr/{row['group']}"])
        assert [curve[step + 1] for step in phase["steps"]] == pytest.approx(row["rates"])
        assert row["rates"] == pytest.approx([row["rate"] * 0.5**epoch for epoch in range(4)])


def test_a_row_of_several_steps_has_the_rate_of_its_last(cli: Cli, used: list[list[float]]) -> None:
    assert cli("train", *TRAIN, "scheduler=cosine", "logger.every_steps=3").code == 0
    steps = used[-16:]
    assert logged() == {step: steps[step - 1] for step in range(3, 17, 3)}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["one cycle", "step", "plateau", "PyTorch's by epoch"])
def test_a_resumed_run_logs_the_rates_of_the_whole_one(cli: Cli, kind: str) -> None:
    kept = ("logger.tensorboard.enabled=false", "checkpoint.every_steps=6", "checkpoint.keep_last=9")
    assert cli("train", *TRAIN, *KINDS[kind], *kept).code == 0
    whole, folder = logged(), Path("run")
    later = [path for path in (folder / "checkpoints").glob("step-*.pt") if int(path.stem[5:]) > 6]
    for path in (folder / "result.json", folder / "checkpoints/manifest.json", *later):
        path.unlink()
    done = cli("resume", "run")
    assert done.code == 0, done.err
    assert "resumed at step 6" in (folder / "run.log").read_text()
    assert logged() == whole


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    times = [100.0]
    monkeypatch.setattr(report, "perf_counter", lambda: times[0])
    return times


def test_what_a_sample_is_worth_is_told_beside_the_samples(now: list[float]) -> None:
    clock = Clock(per_sample={"tokens_per_second": 32.0, "mfu": 0.002})
    assert clock.throughput() == {}
    now[0] = 110.0
    read = clock.read(50)
    assert read == {
        "speed/samples_per_second": 5.0, "speed/tokens_per_second": 160.0, "speed/mfu": 0.01, "speed/data_wait": 0.0
    }  # fmt: skip
    now[0] = 120.0
    clock.read(150)
    assert clock.throughput() == {"samples_per_second": 10.0, "tokens_per_second": 320.0, "mfu": 0.02}


def test_totals_hold_what_was_read_and_what_was_not(now: list[float]) -> None:
    clock = Clock()
    now[0], clock.data_seconds = 110.0, 2.0
    clock.leave_out(5.0)
    assert clock.read(50) == {"speed/samples_per_second": 10.0, "speed/data_wait": 0.4}
    assert clock.totals() == (5.0, 2.0)
    now[0], clock.data_seconds = 113.0, 1.0
    assert clock.totals() == (8.0, 3.0)
    clock.leave_out(9.0)
    assert clock.totals() == (5.0, 3.0)


def test_values_of_the_machine_are_logged_in_the_same_row_and_kept_nowhere() -> None:
    seen: list[dict[str, float]] = [{"system/ram_gib": 1.0}, {}]
    run = trainer(timetable={"epochs": 1, "log_steps": 2}, clock=Clock(lambda: seen.pop(0)))
    run.fit()
    assert run.logger.series("system/ram_gib") == [(2, 1.0)]
    assert [step for step, _ in run.logger.series("train/loss_step")] == [2, 4]
    assert seen == []
    assert "system/ram_gib" not in run.state.last


def test_the_row_counts_once() -> None:
    rows: list[Any] = []
    state = State()
    logger: Any = type("Rows", (), {"scalars": lambda self, values, **place: rows.append(values)})()
    timetable = Timetable(epoch_samples=4, batch_size=2, epochs=1)
    Reporter(logger, state, timetable, Clock()).values({"a": 1.0}, {"b": 2.0})
    assert (rows, state.rows, state.last) == ([{"a": 1.0, "b": 2.0}], 1, {"a": 1.0})


def state() -> State:
    last = {"train/loss": 0.5, "train/loss_step": 0.4, "val/f1/a": 1.0, "test/loss": math.nan, "lr/all": 0.1}
    return State(epoch=3, step=30, best_value=0.9, best_step=20, last=last | {"epoch": 3})


def test_the_result_names_objective_and_test_values() -> None:
    result = report.result(state(), status="finished", monitor="val/f1", mode="max", name="run")
    assert result["objective"] == {"name": "val/f1", "mode": "max", "value": 0.9, "step": 20}
    assert list(result["test"]) == ["test/loss"]
    assert (result["epochs"], result["steps"], result["name"], result["reason"]) == (3, 30, "run", None)


def test_the_table_has_a_line_for_each_metric_and_a_column_for_each_split() -> None:
    columns, rows = report.final_table(report.final_values(state()), {})
    assert columns == ["metric", "train", "val", "test"]
    assert rows == [["loss", "0.5000", "", "nan"], ["f1/a", "", "1.0000", ""]]

    assert report.final_table({"train/loss": 1.0}, {})[0] == ["metric", "train"]
    _, rows = report.final_table({"val/a": 1.234e-7, "val/b": 98765.4, "val/c": 0.0}, {})
    assert rows == [["a", "1.234e-07"], ["b", "9.877e+04"], ["c", "0.0000"]]
    columns, rows = report.final_table({"val/f1": 0.8, "test/f1": 0.7}, {"val/f1": 0.9})
    assert columns == ["metric", "val", "best val", "test"]
    assert rows == [["f1", "0.8000", "0.9000", "0.7000"]]
