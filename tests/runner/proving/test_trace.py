"""Lines of a trace: their moments, and hashes of what is in them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from lightkit.runner.proving.trace import Moment, RunTrace, digest
from tests.resume.harness import forked


def test_moments_in_words() -> None:
    assert Moment("micro", 3, 1).describe() == "before batch 2 of step 3"
    assert Moment("step", 3, 0).describe() == "after step 3"
    assert Moment("validation", 3, 0).describe() == "before batch 1 of the validation after step 3"


def test_the_same_bits_have_the_same_digest() -> None:
    nan = torch.tensor([float("nan"), 0.0])
    assert digest([nan, {"a": 1}]) == digest([nan.clone(), {"a": 1}]) != digest([nan, {"a": 2}])
    assert digest(torch.zeros(2)) != digest(torch.zeros(2, dtype=torch.int32))


def test_the_process_ends_at_its_moment_and_nowhere_else(tmp_path: Path) -> None:
    ended = list[int]()
    end_at = Moment("step", 2, 1)
    trace = RunTrace(tmp_path / "trace", tmp_path, end_at=end_at, end=lambda: ended.append(len(lines(tmp_path))))
    for step in (1, 2, 2, 2):
        trace.moment("step", step, what="x")
    assert ended == [3], "its line is written before"
    assert lines(tmp_path)[1] == {"phase": "step", "step": 2, "number": 0, "what": "x", "member": ""}


def lines(folder: Path) -> list[dict[str, object]]:
    """What is in the trace so far."""
    return [json.loads(line) for line in (folder / "trace").read_text().splitlines()]


def test_files_that_are_written_in_a_save_are_moments_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()

    def save() -> None:
        trace, model = RunTrace(tmp_path / "trace", folder), nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer: Any = SimpleNamespace(state=SimpleNamespace(step=3), model=model, optimizer=optimizer)
        trace.on_fit_start(trainer)
        (folder / "before").write_text("")
        with trace.saving():
            (folder / "a.pt").write_text("")
            (folder / "a.pt").read_text()
            (folder / "a.pt").rename(folder / "b.pt")
            (tmp_path / "elsewhere").write_text("")

    forked(save, tmp_path / "log")  # what listens for file operations stays until the process ends
    saved = [(row["step"], row["what"]) for row in lines(tmp_path) if row["phase"] == "save"]
    assert saved == [(3, "begin"), (3, "open a.pt"), (3, "os.rename a.pt"), (3, "handed over")]
