"""The trace of a run: one bit is found, positions count, and a killed run has the lines of one that was not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lightkit.common import run_files
from lightkit.common.errors import UserErrors
from lightkit.trainer.traced import StepTrace, _fingerprint, _short
from tests.resume.harness import Case, configured
from tests.trainer.parts import network, trainer


def fingerprint(tensors: list[torch.Tensor]) -> str | float:
    """What stands in the line."""
    return _short(_fingerprint(tensors))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.complex64])
@pytest.mark.parametrize("count", [3, 1 << 14, (1 << 15) + 3])
def test_a_single_bit_gives_another_fingerprint(kind: torch.dtype, count: int) -> None:
    torch.manual_seed(0)
    plain = torch.randint(-1000, 1000, (count,)).to(kind)
    known, seen = (fingerprint([plain])), set[str | float]()
    assert known == fingerprint([plain.clone()])
    for place in (0, count // 2, count - 1):
        for bit in range(8):
            other = plain.clone()
            other.view(torch.uint8).view(-1)[place * plain.element_size() + bit % plain.element_size()] ^= 1 << bit
            seen.add(fingerprint([other]))
    assert len(seen) == 24
    assert known not in seen


def test_order_counts_and_any_layout_is_read() -> None:
    one, two = torch.arange(6.0).view(2, 3), torch.ones(2)
    assert fingerprint([one, two]) != fingerprint([two, one])
    assert fingerprint([torch.tensor([3, 5, 8])]) != fingerprint([torch.tensor([5, 3, 8])])
    assert fingerprint([one.t()])  # in the order in which it lies in memory
    assert fingerprint([one.to_sparse()]) == fingerprint([one])
    unaligned = torch.randn((1 << 14) + 2)
    assert fingerprint([unaligned[1:-1]]) == fingerprint([unaligned[1:-1].clone()])
    assert fingerprint([]) == fingerprint([])


@pytest.mark.thorough(first=1)
@pytest.mark.parametrize("phase", ["micro", "save", "step"])
def test_a_killed_run_has_the_lines_of_one_that_was_not(tmp_path: Path, phase: str) -> None:
    case = Case(configured("data=wine", "logger.trace=2"), tmp_path)
    whole = (case.whole / run_files.TRACE).read_text()
    steps = [json.loads(line)["step"] for line in whole.splitlines()]
    assert steps == [*range(0, 25, 2)]
    moments = case.moments(phase)
    place = case.kill(moments[len(moments) // 2], phase)
    with (place / run_files.TRACE).open("a") as file:
        file.write('{"phase": "step", "step": 99, "number": 0}\nno line\n{"phase": "st')
    case.resume(place)
    assert (place / run_files.TRACE).read_text() == whole


def test_none_is_kept_without_a_folder_and_nothing_is_called_by_default(tmp_path: Path) -> None:
    trainer(network(), callbacks=[StepTrace(1)], timetable={"epochs": 1}).fit()
    assert configured().logger.trace is None
    with pytest.raises(UserErrors, match=r"logger\.trace: ensemble\.engine=torchensemble"):
        configured("logger.trace=3", "ensemble=voting", "ensemble.size=2", "ensemble.engine=torchensemble", base=())
