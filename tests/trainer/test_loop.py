from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from lightkit.checkpoint import content
from lightkit.common.errors import UserError
from lightkit.trainer import State, StepOutput, Task
from tests.trainer.parts import changed, network, points, trainer, weights


def linear() -> nn.Module:
    torch.manual_seed(2)
    return nn.Linear(4, 1)


def test_training_lowers_the_loss() -> None:
    run = trainer(linear(), timetable={"epochs": 30})
    run.fit()
    losses = [value for _, value in run.logger.series("val/loss")]
    assert len(losses) == 30
    assert losses[-1] < 0.2 * losses[0]


def test_accumulated_batches_equal_one_large_batch_also_in_a_last_partial_window() -> None:
    # 40 training rows: windows of 3 x 5 = 15, 15 and 10 samples against batches of 15, 15 and 10.
    small = trainer(linear(), batch_size=5, timetable={"accumulate": 3})
    large = trainer(linear(), batch_size=15)
    small.fit()
    large.fit()
    assert small.state.step == large.state.step == 6
    for a, b in zip(weights(small.model), weights(large.model), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_window_with_uneven_batches_weighs_every_sample_the_same() -> None:
    # 18 training rows of 22: windows of 8 + 8 and of 2: with batches of 16 the second step sees 2 rows.
    uneven = trainer(linear(), rows=22, batch_size=8, timetable={"accumulate": 3, "epochs": 1})
    whole = trainer(linear(), rows=22, batch_size=24, timetable={"epochs": 1})
    uneven.fit()
    whole.fit()
    for a, b in zip(weights(uneven.model), weights(whole.model), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch_size", [1, 7, 40])
def test_the_training_loss_is_the_mean_over_samples_whatever_the_batch_size(batch_size: int) -> None:
    run = trainer(linear(), lr=1e-30, batch_size=batch_size, timetable={"epochs": 1})
    data = points()
    x, y = data.take(run.learner.data.train.rows)
    expected = nn.functional.mse_loss(run.model(x).squeeze(-1), y).item()
    run.fit()
    assert run.logger.series("train/loss") == [(-(-40 // batch_size), pytest.approx(expected, rel=1e-5))]


def test_steps_take_the_place_of_epochs_and_end_in_mid_epoch() -> None:
    run = trainer(timetable={"steps": 6})
    run.fit()
    assert (run.state.step, run.state.epoch, run.state.samples_done) == (6, 1, 20)
    assert [step for step, _ in run.logger.series("val/loss")] == [4, 6]


def test_validation_by_steps() -> None:
    run = trainer(timetable={"epochs": 3, "validate_unit": "step", "validate_every": 5})
    run.fit()
    assert [step for step, _ in run.logger.series("val/loss")] == [5, 10, 12]


def test_validation_every_second_epoch_and_after_the_last() -> None:
    run = trainer(timetable={"epochs": 5, "validate_every": 2})
    run.fit()
    assert [step for step, _ in run.logger.series("val/loss")] == [8, 16, 20]


def test_clipping_limits_the_norm_and_the_logged_norm_is_the_one_before() -> None:
    run = trainer(linear(), clip_norm=1e-3, lr=1.0, momentum=0.0, timetable={"steps": 1})
    before = weights(run.model)
    run.fit()
    moved = torch.cat([(a - b).flatten() for a, b in zip(before, weights(run.model), strict=True)]).norm()
    assert float(moved) == pytest.approx(1e-3, rel=1e-3)
    assert run.logger.series("grad/norm")[0][1] > 1.0


def test_the_rate_of_every_group_is_logged_under_its_name() -> None:
    model = network()
    run = trainer(model, timetable={"epochs": 1})
    run.optimizer.param_groups[0]["name"] = "all"
    run.fit()
    assert run.logger.series("lr/all") == [(step, 0.05) for step in (1, 2, 3, 4)]


def test_throughput_counts_the_samples_between_two_logged_steps() -> None:
    run = trainer(timetable={"epochs": 2, "log_steps": 3})
    run.fit()
    assert [step for step, _ in run.logger.series("speed/samples_per_second")] == [3, 6]
    assert all(0 <= share <= 1 for _, share in run.logger.series("speed/data_wait"))


@pytest.mark.thorough
@pytest.mark.parametrize("kill", [1, 3, 4, 6])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_going_on_from_a_saved_state_gives_the_same_bits(kill: int, accumulate: int) -> None:
    times = {"epochs": 4, "accumulate": accumulate, "save_steps": 1}
    whole = trainer(network(0.5), timetable=times)
    whole.fit()

    saved: dict[int, dict[str, Any]] = {}
    first = trainer(network(0.5), timetable=times)
    first = changed(
        first, save=lambda value: saved.update({first.state.step: copy.deepcopy(content.gather(**stateful(first)))})
    )
    first.fit()

    second = trainer(network(0.5), timetable=times)
    content.apply(saved[kill], **stateful(second))
    torch.rand(17)  # whatever else draws random numbers changes nothing
    second.fit()
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, second.model.state_dict()[name]), name
    expected = [row for row in whole.logger.series("val/loss") if row[0] > kill]
    assert expected == [row for row in second.logger.series("val/loss") if row[0] > kill]
    assert whole.logger.series("train/loss")[-1] == second.logger.series("train/loss")[-1]


def stateful(run: Any) -> dict[str, Any]:
    return {
        "model": run.model,
        "optimizer": run.optimizer,
        "scheduler": run.scheduler,
        "precision": run.engine.precision,
        "callbacks": {},
        "metrics": {"train": run.learner.metrics["train"]},
        "state": run.state,
    }


def test_a_checkpoint_is_asked_for_once_a_step_with_the_value_where_there_is_one() -> None:
    asked: list[tuple[int, float | None]] = []
    run = trainer(timetable={"epochs": 3, "save_epochs": 2, "save_steps": 3, "validate_every": 3})
    run = changed(run, save=lambda value: asked.append((run.state.step, value)))
    run.fit()
    assert [step for step, _ in asked] == [3, 6, 8, 9, 12]
    assert [value is not None for _, value in asked] == [False, False, False, False, True]


def test_a_better_validation_in_mid_epoch_is_saved_at_once() -> None:
    asked: list[tuple[int, float | None]] = []
    run = trainer(timetable={"epochs": 1, "validate_unit": "step", "validate_every": 1, "save_epochs": None})
    run = changed(run, save=lambda value: asked.append((run.state.step, value)))
    run.fit()
    best = min(run.logger.series("val/loss"), key=lambda row: row[1])
    assert best in asked


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_ends_the_run_with_status_3(bad: float) -> None:
    class Broken(Task):
        def step(self, model: nn.Module, batch: Any, criterion: Any) -> StepOutput:
            return StepOutput(model(batch[0]).mean() * bad)

    run = trainer(task=Broken())
    with pytest.raises(
        UserError, match=r"the loss is no longer finite at step 1 \(epoch 1, samples from 0 on\)"
    ) as caught:
        run.fit()
    assert caught.value.exit_code == 3


def test_an_unknown_monitored_value_names_those_there_are() -> None:
    with pytest.raises(UserError, match=r"metrics\.monitor: no such value[\s\S]*val/loss"):
        trainer(monitor="val/lost").fit()


def test_training_without_validation() -> None:
    run = trainer(monitor="train/loss")
    run = changed(run, data=replace(run.learner.data, val=None))
    run.fit()
    assert run.state.best_value == min(value for _, value in run.logger.series("train/loss"))
    assert not run.logger.series("val/loss")


@pytest.mark.parametrize("monitor", ["train/loss", "val/loss"])
def test_a_save_in_mid_epoch_is_not_ranked_by_the_value_of_an_earlier_step(monitor: str) -> None:
    saved: list[tuple[int, float | None]] = []
    run = trainer(monitor=monitor, timetable={"save_steps": 1})
    run = changed(run, save=lambda value: saved.append((run.state.step, value)))
    run.fit()
    found = dict(run.logger.series(monitor))
    assert saved == [(step, found.get(step)) for step in range(1, 9)]
    assert list(found) == [4, 8]


def test_nothing_to_do_when_all_steps_are_taken() -> None:
    run = trainer(state=State(epoch=2, step=8, closed_step=8))
    before = weights(run.model)
    run.fit()
    assert all(torch.equal(a, b) for a, b in zip(before, weights(run.model), strict=True))
    assert run.logger.rows == []


def test_of_equal_values_the_later_is_the_best() -> None:
    run = trainer(linear(), lr=1e-30, momentum=0.0, timetable={"epochs": 3})
    run.fit()
    assert run.state.best_step == run.state.step
