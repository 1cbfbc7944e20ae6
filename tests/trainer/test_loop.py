"""The loop and its timetable: what a step weighs, when is validated, logged and saved, and going on where it ended."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from lightkit.checkpoint import content
from lightkit.common.errors import UserError
from lightkit.trainer import Callback, EarlyStopping, Ema, State, Timetable
from lightkit.trainer.evaluate import Predictions
from tests.trainer.parts import changed, network, points, same_weights, saving, stateful, trainer, weights


def linear() -> nn.Module:
    torch.manual_seed(2)
    return nn.Linear(4, 1)


def steps_of(run, name: str) -> list[int]:
    return [step for step, _ in run.logger.series(name)]


def test_training_lowers_the_loss() -> None:
    run = trainer(linear(), timetable={"epochs": 30})
    run.fit()
    losses = [value for _, value in run.logger.series("val/loss")]
    assert len(losses) == 30
    assert losses[-1] < 0.2 * losses[0]


@pytest.mark.parametrize(
    ("small", "large"),
    [
        # 40 training rows: windows of 3 x 5 = 15, 15 and 10 samples against batches of 15, 15 and 10.
        ({"batch_size": 5, "timetable": {"accumulate": 3}}, {"batch_size": 15}),
        # 18 training rows of 22: windows of 8 + 8 and of 2: with batches of 16 the second step sees 2 rows.
        ({"rows": 22, "batch_size": 8, "timetable": {"accumulate": 3}}, {"rows": 22, "batch_size": 24}),
    ],
)
def test_accumulated_batches_equal_one_large_batch_and_weigh_every_sample_the_same(small, large) -> None:
    runs = trainer(linear(), **small), trainer(linear(), **large)
    for run in runs:
        run.fit()
    assert runs[0].state.step == runs[1].state.step
    for a, b in zip(*(weights(run.model) for run in runs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch_size", [1, 7, 40])
def test_the_training_loss_is_the_mean_over_samples_whatever_the_batch_size(batch_size: int) -> None:
    run = trainer(linear(), lr=1e-30, batch_size=batch_size, timetable={"epochs": 1})
    x, y = points().take(run.learner.data.train.rows)
    expected = nn.functional.mse_loss(run.model(x).squeeze(-1), y).item()
    run.fit()
    assert run.logger.series("train/loss") == [(-(-40 // batch_size), pytest.approx(expected, rel=1e-5))]


def test_the_training_loss_of_an_epoch_is_of_it_alone() -> None:
    one, two = (trainer(linear(), batch_size=40, timetable={"epochs": epochs}) for epochs in (1, 2))
    one.fit()
    two.fit()
    x, y = points().take(one.learner.data.train.rows)
    expected = nn.functional.mse_loss(one.model(x).squeeze(-1), y).item()
    assert two.logger.series("train/loss")[1] == (2, pytest.approx(expected, rel=1e-5))


@pytest.mark.parametrize(
    ("timetable", "validated"),
    [
        ({"steps": 6}, [4, 6]),
        ({"epochs": 3, "validate_unit": "step", "validate_every": 5}, [5, 10, 12]),
        ({"epochs": 5, "validate_every": 2}, [8, 16, 20]),
    ],
)
def test_when_is_validated(timetable, validated) -> None:
    run = trainer(timetable=timetable)
    run.fit()
    assert steps_of(run, "val/loss") == validated
    if "steps" in timetable:
        assert (run.state.step, run.state.epoch, run.state.samples_done) == (6, 1, 20)


def test_validation_changes_neither_training_nor_the_modes_of_modules() -> None:
    quiet, busy = (trainer(network(0.5), timetable={"validate_every": every}) for every in (100, 1))
    for run in (quiet, busy):
        run.model[1].eval()
        run.model.train = lambda mode=True, run=run: run.model
        run.fit()
    assert (busy.model[1].training, busy.model[3].training) == (False, True)
    assert same_weights(quiet, busy)


def test_validation_uses_the_average_and_training_its_own_weights() -> None:
    plain, model = trainer(), network()
    run = trainer(model, average=Ema(model, 0.99))
    plain.fit()
    run.fit()
    assert same_weights(plain, run)
    assert plain.logger.series("val/loss") != run.logger.series("val/loss")
    assert run.average.state_dict()["steps"] == run.state.step


def test_clipping_limits_the_norm_and_the_logged_norm_is_the_one_before() -> None:
    run = trainer(linear(), clip_norm=1e-3, lr=1.0, momentum=0.0, timetable={"steps": 1})
    before = weights(run.model)
    run.fit()
    moved = torch.cat([(a - b).flatten() for a, b in zip(before, weights(run.model), strict=True)]).norm()
    assert float(moved) == pytest.approx(1e-3, rel=1e-3)
    assert run.logger.series("grad/norm")[0][1] > 1.0


def test_what_is_logged() -> None:
    run = trainer(network(), timetable={"epochs": 2, "log_steps": 3})
    run.optimizer.param_groups[0]["name"] = "all"
    run.fit()
    assert run.logger.series("lr/all") == [(step, 0.05) for step in (3, 6)]
    assert steps_of(run, "speed/samples_per_second") == [3, 6]
    assert all(0 <= share <= 1 for _, share in run.logger.series("speed/data_wait"))


@pytest.mark.thorough
@pytest.mark.parametrize("accumulate", [2, 1])
@pytest.mark.parametrize("kill", [3, 1, 4, 6])
def test_going_on_from_a_saved_state_gives_the_same_bits(kill: int, accumulate: int) -> None:
    times = {"epochs": 4, "accumulate": accumulate, "save_steps": 1}
    whole, first, second = (trainer(network(0.5), timetable=times) for _ in range(3))
    whole.fit()
    saved = {}

    def save(value):
        saved[first.state.step] = copy.deepcopy(content.gather(**stateful(first)))

    changed(first, save=save).fit()
    content.apply(saved[kill], **stateful(second))
    torch.rand(17)  # whatever else draws random numbers changes nothing
    second.fit()
    assert same_weights(whole, second)
    losses = [[row for row in run.logger.series("val/loss") if row[0] > kill] for run in (whole, second)]
    assert losses[0] == losses[1]
    assert whole.logger.series("train/loss")[-1] == second.logger.series("train/loss")[-1]


def test_a_checkpoint_is_asked_for_once_a_step_with_the_value_where_there_is_one() -> None:
    times = {"epochs": 3, "save_epochs": 2, "save_steps": 3, "validate_every": 3}
    run, saved = saving(trainer(timetable=times))
    run.fit()
    assert [step for step, _ in saved] == [3, 6, 8, 9, 12]
    assert [value is not None for _, value in saved] == [False, False, False, False, True]


def test_a_better_validation_in_mid_epoch_is_saved_at_once() -> None:
    times = {"epochs": 1, "validate_unit": "step", "validate_every": 1, "save_epochs": None}
    run, saved = saving(trainer(timetable=times))
    run.fit()
    assert min(run.logger.series("val/loss"), key=lambda row: row[1]) in saved


def test_the_end_is_saved_also_where_it_is_not_the_best() -> None:
    run, saved = saving(trainer(linear(), lr=2.0, timetable={"steps": 6, "save_epochs": None}))
    run.fit()
    assert run.state.best_step == 4
    assert [step for step, _ in saved] == [4, 6]


@pytest.mark.parametrize("monitor", ["train/loss", "val/loss"])
def test_a_save_in_mid_epoch_is_not_ranked_by_the_value_of_an_earlier_step(monitor: str) -> None:
    run, saved = saving(trainer(monitor=monitor, timetable={"save_steps": 1}))
    run.fit()
    values = dict(run.logger.series(monitor))
    assert saved == [(step, values.get(step)) for step in range(1, 9)]
    assert list(values) == [4, 8]


def test_an_unknown_monitored_value_names_those_there_are() -> None:
    with pytest.raises(UserError, match=r"metrics\.monitor: no such value[\s\S]*val/loss"):
        trainer(monitor="val/lost").fit()


def test_training_without_validation() -> None:
    run = trainer(monitor="train/loss")
    run = changed(run, data=replace(run.learner.data, val=None))
    run.fit()
    assert run.state.best_value == min(value for _, value in run.logger.series("train/loss"))
    assert not run.logger.series("val/loss")


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


def test_early_stopping_ends_after_patience() -> None:
    stopping = EarlyStopping("val/loss", "min", patience=2, min_delta=1e9)
    run = trainer(timetable={"epochs": 50}, callbacks=[stopping])
    run.fit()
    assert run.state.epoch == 3
    assert "early stopping: val/loss has not improved 2 times" in str(run.state.stop_reason)


def test_hooks_of_callbacks_are_called() -> None:
    class Counting(Callback):
        seen: list[int] = []

        def on_step(self, trainer) -> None:
            self.seen.append(trainer.state.step)

    trainer(callbacks=[Counting(), Callback()], timetable={"epochs": 1}).fit()
    assert Counting.seen == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("targets", "names", "predicted"),
    [
        (torch.tensor([0, 1]), ("cat", "dog"), ["dog", "cat"]),
        (torch.tensor([0, 1]), (), [[0.0, 9.0], [9.0, 0.0]]),
        (torch.tensor([[0.0, 1.0], [1.0, 1.0]]), ("cat", "dog"), [[0.0, 9.0], [9.0, 0.0]]),
    ],
)
def test_classes_of_samples_of_another_form_have_their_names(targets, names, predicted) -> None:
    collected = Predictions("custom", names)
    collected.update(torch.tensor([[0.0, 9.0], [9.0, 0.0]]), targets, torch.tensor(0.0), 2)
    rows = collected.rows(torch.arange(2))
    assert [row["prediction"] for row in rows] == predicted
    assert [row["target"] for row in rows] == ([*names] if isinstance(predicted[0], str) else targets.tolist())


@pytest.mark.parametrize(
    ("samples", "batch", "accumulate", "per_epoch"),
    [(100, 10, 1, 10), (101, 10, 1, 11), (100, 10, 3, 4), (5, 10, 1, 1)],
)
def test_steps_per_epoch_count_the_last_partial_window(samples, batch, accumulate, per_epoch) -> None:
    times = Timetable(samples, batch, epochs=3, accumulate=accumulate)
    assert (times.steps_per_epoch, times.total_steps) == (per_epoch, 3 * per_epoch)
    times = Timetable(25, 10, accumulate=2)
    assert (times.window(0), times.window(20)) == (20, 5)


@pytest.mark.parametrize(
    ("batch", "steps", "stands", "total"),
    [
        (10, None, (13, 1, 30), 13 + 17),
        (20, None, (13, 1, 30), 13 + 4 + 5),
        (5, None, (13, 1, 30), 13 + 14 + 20),
        (20, None, (10, 1, 0), 10 + 5 + 5),
        (7, None, (20, 1, 100), 20 + 15),
        (30, None, (30, 3, 0), 30),
        (20, 40, (13, 1, 30), 40),
    ],
)
def test_another_batch_size_keeps_the_epochs_or_the_steps(batch, steps, stands, total) -> None:
    places = dict(zip(("step", "epoch", "samples_done"), stands, strict=True))
    times = Timetable(100, batch, epochs=3, steps=steps).continued(**places)
    assert times.total_steps == total
    assert steps or times.total_epochs == 3


@pytest.mark.parametrize(("mode", "target"), [("min", 1e9), ("max", -1e9)])
def test_early_stopping_ends_at_a_target_from_an_epoch_on(mode: str, target: float) -> None:
    stopping = EarlyStopping("val/loss", mode, target=target, from_epoch=3)
    run = trainer(timetable={"epochs": 9, "validate_unit": "step", "validate_every": 1}, callbacks=[stopping])
    run.fit()
    assert (run.state.epoch, run.state.step) == (2, 9), "in the third epoch"
    assert f"and the target {target:g}" in str(run.state.stop_reason)
    never = EarlyStopping("val/loss", "min", target=-1.0, patience=1, from_epoch=99)
    run = trainer(timetable={"epochs": 4}, callbacks=[never], lr=1e-30, momentum=0.0)
    run.fit()
    assert (run.state.epoch, never.best, run.state.stop_reason) == (4, None, None)
