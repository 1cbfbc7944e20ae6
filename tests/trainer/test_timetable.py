from __future__ import annotations

import pytest

from lightkit.trainer import Timetable


@pytest.mark.parametrize(
    ("samples", "batch", "accumulate", "per_epoch"),
    [(100, 10, 1, 10), (101, 10, 1, 11), (100, 10, 3, 4), (5, 10, 1, 1)],
)
def test_steps_per_epoch_count_the_last_partial_window(
    samples: int, batch: int, accumulate: int, per_epoch: int
) -> None:
    times = Timetable(samples, batch, epochs=3, accumulate=accumulate)
    assert times.steps_per_epoch == per_epoch
    assert times.total_steps == 3 * per_epoch


def test_steps_win_over_epochs() -> None:
    times = Timetable(100, 10, epochs=3, steps=25)
    assert (times.total_steps, times.total_epochs) == (25, 3)


def test_windows_end_with_the_epoch() -> None:
    times = Timetable(25, 10, accumulate=2)
    assert (times.window(0), times.window(20)) == (20, 5)


@pytest.mark.parametrize(
    ("batch", "stands", "left"),
    [
        (10, {"step": 13, "epoch": 1, "samples_done": 30}, 17),
        (20, {"step": 13, "epoch": 1, "samples_done": 30}, 4 + 5),
        (5, {"step": 13, "epoch": 1, "samples_done": 30}, 14 + 20),
        (20, {"step": 10, "epoch": 1, "samples_done": 0}, 5 + 5),
        (7, {"step": 20, "epoch": 1, "samples_done": 100}, 15),
        (30, {"step": 30, "epoch": 3, "samples_done": 0}, 0),
    ],
)
def test_another_batch_size_keeps_the_epochs(batch, stands, left):
    times = Timetable(100, batch, epochs=3).continued(**stands)
    assert times.total_steps == stands["step"] + left
    assert times.total_epochs == 3


def test_steps_stay_steps_with_another_batch_size():
    times = Timetable(100, 20, epochs=3, steps=40).continued(step=13, epoch=1, samples_done=30)
    assert times.total_steps == 40
