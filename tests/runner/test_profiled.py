"""Runs with `profile=true`: files, tables, and the same results."""

from __future__ import annotations

import gzip
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.checkpoint.store import CheckpointStore
from lightkit.config import compose, load_run
from lightkit.runner import Runner
from lightkit.runs.reading import read_jsonl
from lightkit.trainer import Callback
from lightkit.trainer.interrupt import Interrupted
from tests.runner.processes import configured, train

QUICK = (
    "data=wine", "device=cpu", "trainer.epochs=3", "data.batch_size=16", "model.hidden=[8]", "model.dropout=0.2",
    "metrics.figures=[]", "logger=quiet", "logger.every_steps=2", "logger.system.enabled=false",
)  # fmt: skip
PROFILE = ("profile=true", "logger.profile.skip_steps=2", "logger.profile.warmup_steps=1", "logger.profile.steps=3")


class EndAt(Callback):
    """A signal at a step."""

    def on_step(self, trainer: Any) -> None:
        if trainer.state.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)


def run(folder: Path, *overrides: str) -> dict[str, Any]:
    return Runner(compose([*QUICK, *overrides]).cfg, folder).run()


def traces(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The named events of every trace, as any reader of Chrome's format sees them."""
    events = {}
    for path in sorted((folder / "profile").glob("*.pt.trace.json.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            events[path.name] = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
        assert all(isinstance(event["ts"], float | int) and event["dur"] >= 0 for event in events[path.name])
    return events


def summary(folder: Path) -> list[str]:
    return (folder / "profile" / "summary.txt").read_text(encoding="utf-8").splitlines()


def same(one: Path, other: Path) -> None:
    rows = [
        [{key: value for key, value in row.items() if key != "time" and "speed/" not in key} for row in logged]
        for logged in (read_jsonl(one / "metrics.jsonl"), read_jsonl(other / "metrics.jsonl"))
    ]
    assert rows[0] == rows[1]
    saved = [CheckpointStore(folder / "checkpoints").load_newest()[1] for folder in (one, other)]  # type: ignore[index]
    assert saved[0]["state"] == saved[1]["state"] | {"last": saved[0]["state"]["last"]}
    assert saved[0]["model"].keys() == saved[1]["model"].keys()
    assert all(torch.equal(tensor, saved[1]["model"][name]) for name, tensor in saved[0]["model"].items())


@pytest.mark.thorough
@pytest.mark.parametrize(
    "changes",
    [
        ("trainer.accumulate=2", "trainer.ema.decay=0.9", "trainer.validate_unit=step", "trainer.validate_every=3"),
        ("device.precision=fp16", "trainer.nonfinite.action=rollback", "trainer.nonfinite.every=2"),
    ],
    ids=["accumulation", "fp16, rollback"],
)
def test_a_profiled_run_has_the_same_results(tmp_path: Path, changes: tuple[str, ...]) -> None:
    run(tmp_path / "plain", *changes)
    result = run(tmp_path / "under", *PROFILE, *changes)
    same(tmp_path / "plain", tmp_path / "under")
    assert not (tmp_path / "plain" / "profile").exists()
    (events,) = traces(tmp_path / "under").values()
    names = [event["name"] for event in events]
    each = 2 if "trainer.accumulate=2" in changes else 1
    validated = each == 2  # after step 6
    assert names.count("backward") == 3 * each
    assert names.count("validation") == validated
    assert names.count("forward") == 3 * each + 2 * validated  # two batches of the validation
    assert names.count("optimizer") >= 3
    assert {"data", "metrics", "logging"} <= set(names)
    assert result["status"] == "finished"


def test_the_tables_are_on_the_screen_in_a_file_and_in_tensorboard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(tmp_path, *PROFILE, "logger.console.style=lines", "logger.tensorboard.enabled=true")
    out = capsys.readouterr().out
    assert "profile steps 4 to 6 will be recorded, after 1 to warm up\n" in out
    lines = summary(tmp_path)
    assert lines[0] == "where the time goes, in steps 4 to 6 and in the whole run"
    shares = [float(line.split()[2]) for line in lines[2 : lines.index("")]]
    assert sum(shares[:-1]) == pytest.approx(100.0, abs=0.1 * len(shares))
    assert shares[-1] == 100.0
    assert "operators that cost most, without what they call, in steps 4 to 6" in lines
    assert any(line.split()[:2] == ["aten::addmm", "2"] for line in lines)
    assert lines[-2].endswith("rank0-step4.pt.trace.json.gz: open it in https://ui.perfetto.dev,")
    assert all(line in out for line in lines)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    (written,) = events.Tensors("vitals/profile/text_summary")
    assert "where the time goes" in written.tensor_proto.string_val[0].decode()


@pytest.mark.thorough
def test_a_resumed_run_is_profiled_from_where_it_stands(tmp_path: Path) -> None:
    run(tmp_path / "whole", *PROFILE, "checkpoint.every_steps=5")
    stop = "trainer.callbacks={end: {_target_: tests.runner.test_profiled.EndAt}}"
    with pytest.raises(Interrupted):
        run(tmp_path / "part", *PROFILE, "trust=[tests]", stop, "checkpoint.every_steps=5")
    assert len(traces(tmp_path / "part")["rank0-step4.pt.trace.json.gz"]) > 0
    assert "in steps 4 to 5 " in summary(tmp_path / "part")[0]  # what there was of them
    cfg = load_run(tmp_path / "part", ["trainer.callbacks={}"]).cfg
    Runner(cfg, tmp_path / "part").run(resume=True)
    assert list(traces(tmp_path / "part")) == ["rank0-step4.pt.trace.json.gz", "rank0-step9.pt.trace.json.gz"]
    assert "in steps 9 to 11 " in summary(tmp_path / "part")[0]
    same(tmp_path / "whole", tmp_path / "part")


def test_an_error_of_the_run_is_still_that_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, trainer: Any) -> None:
        if trainer.state.step == 5:
            raise KeyError("mine")

    monkeypatch.setattr(EndAt, "on_step", fail)
    stop = "trainer.callbacks={end: {_target_: tests.runner.test_profiled.EndAt}}"
    (tmp_path / "profile").write_text("in the way of the folder")
    with pytest.raises(KeyError, match="mine"):
        run(tmp_path, *PROFILE, "trust=[tests]", stop)
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "failed"
    log = (tmp_path / "run.log").read_text()
    for line in ("profile not all of it could be recorded: ", "summary.txt cannot be written: File exists"):
        assert line in log


@pytest.mark.thorough
def test_every_process_writes_a_trace_of_its_own(tmp_path: Path) -> None:
    changes = ("trainer.epochs=1", "model.dropout=0.2")
    train(tmp_path / "plain", configured(*changes), 2)
    train(tmp_path / "under", configured(*changes, *PROFILE), 2)
    same(tmp_path / "plain", tmp_path / "under")
    written = traces(tmp_path / "under")
    assert list(written) == ["rank0-step4.pt.trace.json.gz", "rank1-step4.pt.trace.json.gz"]
    for events in written.values():
        assert [event["name"] for event in events].count("backward") == 3
    assert len([path for path in (tmp_path / "under" / "profile").iterdir() if path.suffix == ".txt"]) == 1
