"""Memory that runs out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.harness import TRAIN, Process, assert_ended, assert_same_end, at, newest

Run = Callable[..., Process]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("memory", "error: out of memory after step 9: MemoryError"),
        ("allocate", "tried to allocate 1125899906842624 bytes"),
        ("cuda", "error: out of memory after step 9: CUDA out of memory. Tried to allocate 20.00 GiB."),
    ],
)
def test_out_of_memory_says_what_to_change_and_resume_goes_on(
    ran: Run, project: Path, whole: Path, what: str, reason: str
) -> None:
    process = ran(*TRAIN, at(9, what))
    assert_ended(process, project / "run", 4, reason, "data.batch_size=5 trainer.accumulate=2")
    assert newest(project / "run")["state"]["step"] == 9
    (project / "fine").touch()
    assert ran("resume", "run").code == 0
    assert_same_end(whole, project / "run")


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["memory", "allocate"])
def test_out_of_memory_while_the_run_is_built_leaves_nothing(ran: Run, project: Path, what: str) -> None:
    process = ran(*TRAIN, f"data.dataset.what={what}", "data.dataset.here=true")
    assert process.code == 4
    assert process.err.startswith("error: out of memory while the run was built: ")
    assert not (project / "run").exists()


@pytest.mark.slow
def test_out_of_memory_in_evaluation(ran: Run, project: Path) -> None:
    assert ran(*TRAIN, "model.what=allocate", "model.number=9").code == 0
    for command in ("eval", "predict"):
        process = ran(command, "run", "--split", "train")
        assert process.code == 0
    process = ran(*TRAIN, "hydra.run.dir=other", "model.what=allocate", "model.number=1")
    assert process.code == 4


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("memory", "(reading a batch, 10 samples): MemoryError (in a loader process)"),
        ("allocate", "(in a loader process)"),
    ],
)
def test_out_of_memory_in_a_loader_process(ran: Run, project: Path, what: str, reason: str) -> None:
    process = ran(*TRAIN, "data.num_workers=2", f"data.dataset.what={what}")
    assert_ended(process, project / "run", 4, reason, "data.batch_size=5 trainer.accumulate=2")
