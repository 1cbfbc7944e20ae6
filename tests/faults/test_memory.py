"""Memory that runs out, in whatever part of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.harness import TRAIN, Process, assert_ended, assert_same_end, at, newest

Run = Callable[..., Process]
FIX = "data.batch_size=5 trainer.accumulate=2"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("allocate", "tried to allocate 1125899906842624 bytes"),
        ("cuda", "error: out of memory after step 9: CUDA out of memory. Tried to allocate 20.00 GiB."),
    ],
)
def test_out_of_memory_says_what_to_change_and_resume_goes_on(
    ran: Run, project: Path, whole: Path, what: str, reason: str
) -> None:
    assert_ended(ran(*TRAIN, at(9, what)), project / "run", 4, reason, FIX)
    assert newest(project / "run")["state"]["step"] == 9
    (project / "fine").touch()
    assert ran("resume", "run").code == 0
    assert_same_end(whole, project / "run")


def test_out_of_memory_in_a_loader_process(ran: Run, project: Path) -> None:
    process = ran(*TRAIN, "data.num_workers=2", "data.dataset.what=memory")
    assert_ended(process, project / "run", 4, "(reading a batch, 10 samples): MemoryError (in a loader process)", FIX)
