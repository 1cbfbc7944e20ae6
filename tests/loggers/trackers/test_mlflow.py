"""MLflow: the real client, with its own stores."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightkit.runs.reading import read_jsonl
from tests.conftest import Outcome
from tests.loggers.trackers.reading import RUN, SHORT, logged, told

Process = Callable[..., Outcome]
MLFLOW = (*SHORT, "logger=mlflow")
KILL, SHOWS = "trainer.callbacks.kill._target_=mine.Kill", "trainer.callbacks.shows._target_=mine.Shows"


@pytest.fixture
def store(own: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A store of files, which needs no database, and a client."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (own / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient
    return MlflowClient((own / "mlruns").as_uri())


def runs(client: Any) -> list[Any]:
    (found,) = [one for one in client.search_experiments() if one.name == "lightkit"]
    return sorted(client.search_runs([found.experiment_id]), key=lambda run: run.data.tags["lightkit.folder"])


def points(client: Any, run: Any) -> list[tuple[str, int, float | None]]:
    """All points that were sent, but for those of the machine and the best value."""
    found = [
        (point.key, point.step, None if math.isnan(point.value) else point.value)
        for key in run.data.metrics
        for point in client.get_metric_history(run.info.run_id, key)
    ]
    return sorted(point for point in found if told({point[0]: 0}) and not point[0].startswith("best/"))


def expected(folder: Path) -> list[tuple[str, int, float | None]]:
    rows = [(row["step"], row) for row in logged(folder)]
    return sorted((name, step, value) for step, row in rows for name, value in row.items() if "/" in name)


def test_a_run_that_was_killed_has_each_point_once(own: Path, process: Process, store: Any) -> None:
    more = ("metrics.figures=[confusion_matrix]", "logger.more.mlflow.tags={team: blue}")
    assert process("train", *MLFLOW, *more, KILL, SHOWS, f"hydra.run.dir={RUN}").code == -9
    paused = process("resume", RUN, "trainer.stop_at=2")
    assert paused.code == 0, paused.err
    assert [run.info.status for run in runs(store)] == ["SCHEDULED"]
    ended = process("resume", RUN, "trainer.stop_at=null", "logger.every_steps=2")
    assert (ended.code, "logger.more.mlflow" in ended.err) == (0, False), ended.err
    (run,) = runs(store)
    assert points(store, run) == expected(own / RUN)
    assert (run.info.status, run.data.tags["lightkit.status"], run.data.tags["team"]) == (
        "FINISHED",
        "finished",
        "blue",
    )
    assert run.data.params["optim.lr"] == "0.001"
    best = max(row["val/accuracy"] for row in logged(own / RUN) if "val/accuracy" in row)
    assert run.data.metrics["best/val/accuracy"] == best
    kept = [item.path for item in store.list_artifacts(run.info.run_id)]
    assert kept == ["config.yaml", "media"]
    shown = [item.path for item in store.list_artifacts(run.info.run_id, "media/extra/pictures")]
    assert shown[-2:] == [f"media/extra/pictures/0000024-{number}.png" for number in (0, 1)]
    assert [item.path for item in store.list_artifacts(run.info.run_id, "media/test")] == [
        "media/test/confusion_matrix"
    ]


@pytest.mark.thorough(first=0)
def test_a_changed_run_keeps_both_and_says_so(own: Path, process: Process, store: Any) -> None:
    (own / "slow.py").write_text(SLOW)
    wait = "trainer.callbacks.wait._target_=slow.Wait"
    assert process("train", *MLFLOW, wait, f"hydra.run.dir={RUN}").code == -9
    before = {*points(store, runs(store)[0])}
    ended = process("resume", RUN, "optim.lr=0.1", "resume.override=[optim.lr]")
    assert ended.code == 0, ended.err
    (run,) = runs(store)
    assert {*points(store, run)} == before | {*expected(own / RUN)}
    assert before - {*expected(own / RUN)}
    assert "the server keeps such points beside the new ones" in ended.err
    assert (run.data.params["optim.lr"], run.data.tags["changed.optim.lr"]) == ("0.001", "0.1")


def test_a_run_whose_id_was_not_kept_yet_is_found_again(own: Path, process: Process, store: Any) -> None:
    assert process("train", *MLFLOW, "trainer.stop_at=1", f"hydra.run.dir={RUN}").code == 0
    file = own / RUN / "trackers" / "mlflow.json"
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({"mark": kept["mark"]}))
    assert process("resume", RUN, "trainer.stop_at=null").code == 0
    (run,) = runs(store)
    assert run.info.run_id == kept["run"] == json.loads(file.read_text())["run"]
    assert points(store, run) == expected(own / RUN)


SLOW = '''
import glob
import os
import signal
import time

from lightkit.trainer import Callback


class Wait(Callback):
    """Kills the run when the store has its first rows, and those after the checkpoint."""

    def on_step(self, trainer):
        if trainer.state.step == 11 and not os.path.exists("done"):
            open("done", "w").close()
            while len(open(file).readlines() if (file := _file()) else ()) < 5:
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGKILL)


def _file():
    return next(iter(glob.glob("mlruns/*/*/metrics/train/loss_step")), None)
'''


def test_a_server_that_is_gone_ends_no_run_and_is_told(own: Path, process: Process) -> None:
    gone = {"MLFLOW_TRACKING_URI": "http://me:secret-word@127.0.0.1:9", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    ended = process("train", *MLFLOW, "trainer.epochs=1", f"hydra.run.dir={RUN}", **gone)
    assert ended.code == 0, ended.err
    assert ended.err.count("logger.more.mlflow: start fails") == 1
    assert "calls did not arrive" in ended.err
    written = [path for path in (own / RUN).rglob("*") if path.is_file() and b"secret-word" in path.read_bytes()]
    assert ("secret-word" in ended.err, written) == (False, [])


@pytest.mark.thorough
def test_members_and_jobs_are_told_apart(own: Path, process: Process, store: Any) -> None:
    size = ("ensemble=voting", "ensemble.size=2", "trainer.epochs=1", f"hydra.run.dir={RUN}")
    ended = process("train", *MLFLOW, *size)
    assert (ended.code, "another" in ended.err) == (0, False), ended.err
    whole, *members = runs(store)
    assert [run.data.tags["mlflow.parentRunId"] for run in members] == [whole.info.run_id] * 2
    assert [points(store, run) for run in members] == [
        expected(place) for place in sorted((own / RUN / "members").iterdir())
    ]
    assert points(store, whole) == sorted({*expected(own / RUN)})
    assert {run.info.status for run in (whole, *members)} == {"FINISHED"}
    swept = process("train", "-m", *MLFLOW, "trainer.epochs=1", "seed=1,2", "hydra.sweep.dir=outputs/sweeps/two")
    assert swept.code == 0, swept.err
    assert [run.data.tags.get("lightkit.group") for run in runs(store)][-2:] == ["sweeps/two"] * 2


@pytest.mark.thorough
def test_by_default_it_is_a_database(own: Path, process: Process) -> None:
    ended = process("train", *MLFLOW, f"hydra.run.dir={RUN}")
    assert (ended.code, ended.err.count("mlflow")) == (0, 0), ended.err
    assert (own / "mlflow.db").exists()
    assert len(read_jsonl(own / RUN / "metrics.jsonl")) > 0
