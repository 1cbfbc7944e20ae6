from __future__ import annotations

import pytest

from lightkit.doctor.training.saving import kept_at_once
from lightkit.trainer.timetable import Timetable

RUN = Timetable(epoch_samples=100, batch_size=10, epochs=20)


@pytest.mark.parametrize(
    ("timetable", "last", "best", "every", "expected"),
    [
        (RUN, 1, 0, None, 2),  # the new one lies beside the old one for a moment
        (RUN, 2, 1, None, 4),
        (Timetable(epoch_samples=100, batch_size=10, epochs=1), 5, 5, None, 2),
        (RUN, 1, 1, 50, 7),
        (Timetable(epoch_samples=100, batch_size=10, epochs=20, save_steps=1), 1, 1, 1, 203),
        (Timetable(epoch_samples=100, batch_size=10, epochs=20, save_epochs=None), 1, 0, None, 2),
    ],
)
def test_checkpoints_that_lie_on_the_disk_at_once(
    timetable: Timetable, last: int, best: int, every: int | None, expected: int
) -> None:
    assert kept_at_once(timetable, last=last, best=best, every=every) == expected
