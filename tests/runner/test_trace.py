"""Lines of a trace: their moments, hashes of what is in them, and where those of two runs part."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from lightkit.config import compose
from lightkit.runner import Runner
from lightkit.runner.comparison import compare_runs, digest, first_mismatch, flatten, read_trace
from lightkit.runner.trace import Moment, RunTrace, traced_runner
from tests.resume.harness import forked

TINY = ["data=wine", "model.hidden=[4]", "trainer.steps=4", "device=cpu", "metrics.figures=[]", "logger=quiet"]


def test_bits_not_values_are_compared() -> None:
    nan = torch.tensor([float("nan"), 0.0])
    for value in (nan, float("nan"), [nan, {"a": 1}]):
        assert digest(value) == digest(copy.deepcopy(value))
    for one, other in (
        (nan, torch.tensor([float("nan"), -0.0])),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2), torch.zeros(1, 2)),
        (1, 1.0),
        (0.0, -0.0),
        ({"a": 1}, {"a": 2}),
    ):
        assert digest(one) != digest(other)


def test_the_process_ends_at_its_moment_and_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightkit.runner.trace._listen", lambda: None)  # it would slow this process down until its end
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
        with trace.saving(SimpleNamespace(store=None)):  # type: ignore[arg-type]
            (folder / "a.pt").write_text("")
            (folder / "a.pt").read_text()
            (folder / "a.pt").rename(folder / "b.pt")
            (tmp_path / "elsewhere").write_text("")

    forked(save, tmp_path / "log")  # what listens for file operations stays until the process ends
    saved = [(row["step"], row["what"]) for row in lines(tmp_path) if row["phase"] == "save"]
    assert saved == [(3, "begin"), (3, "open a.pt"), (3, "os.rename a.pt"), (3, "handed over")]


def test_what_comes_from_the_clock_is_left_out() -> None:
    last = {"speed/x": 1, "system/ram_gib": 1.0, "a": [1, {"b": 2}]}
    tree = {"time": 1, "system": {"bound": "data"}, "last": last, "seconds": 3}
    assert dict(flatten(tree, "state")) == {"state.last.a[0]": 1, "state.last.a[1].b": 2}


def test_the_first_difference_of_two_traces(tmp_path: Path) -> None:
    rows = [
        {"phase": "start", "step": 0, "number": 0, "weights": "a"},
        {"phase": "micro", "step": 1, "number": 0, "batch": "b"},
        {"phase": "micro", "step": 1, "number": 0, "loss": "c"},
        {"phase": "step", "step": 1, "number": 0, "weights": "d", "rates": [1.0]},
        {"phase": "save", "step": 1, "number": 0, "what": "begin"},
    ]
    path = tmp_path / "trace"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"phase": "to')
    trace = read_trace(path)
    assert len(trace) == 4
    assert first_mismatch(trace, trace) is None
    for fact, index in (("batch", 1), ("loss", 1), ("weights", 2), ("rates", 2)):
        other = [dict(row) for row in trace]
        other[index][fact] = "x"
        mismatch = first_mismatch(trace, other)
        assert mismatch is not None
        assert (mismatch.fact, mismatch.row["step"]) == (fact, 1)
    resumed = {"phase": "start", "step": 1, "number": 0, "weights": "d", "rates": [0.1]}
    assert first_mismatch(trace, [resumed]) is None
    assert str(first_mismatch(trace, [{"phase": "micro", "step": 2, "number": 0}])) == "what is done of step 2"


@pytest.mark.thorough
def test_a_trace_changes_nothing_of_a_run(tmp_path: Path) -> None:
    cfg = compose(TINY).cfg
    Runner(cfg, tmp_path / "plain").run()
    # In a process of its own: what listens for file operations stays until it ends.
    forked(lambda: traced_runner(cfg, tmp_path / "traced", trace=tmp_path / "trace").run(), tmp_path / "log")
    compared = {item.name: item.different for item in compare_runs(tmp_path / "plain", tmp_path / "traced")}
    assert {name for name, different in compared.items() if different} <= {"callbacks"}
    phases = [row["phase"] for row in read_trace(tmp_path / "trace")]
    assert phases[0] == "start"
    assert (phases.count("step"), phases.count("end")) == (4, 1)
    assert {"micro", "save", "validation", "test"} <= set(phases)
