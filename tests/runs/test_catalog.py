from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.runs.catalog import (
    all_runs,
    dated,
    find_run,
    find_unfinished,
    run_name,
    runs_below,
    started,
    with_run_folders,
)

CONFIG = "seed: 1\nname: demo\n"


def a_demo(root: Path, name: str, *, status: str | None, config: str = CONFIG, saved: bool = True) -> Path:
    folder = root / "outputs" / "runs" / "2026-01-31" / name
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text(config)
    if saved:
        (folder / "checkpoints" / "step-00000001.pt").write_bytes(b"")
    if status:
        (folder / "result.json").write_text(json.dumps({"status": status}))
    return folder


def a_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("name: run\n")
    return folder


def test_runs_are_found_by_path_name_and_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = tmp_path / "outputs"
    middle = a_run(outputs / "runs" / "2026-01-02" / "12-00-00-a")
    newest = a_run(outputs / "sweeps" / "2026-01-03" / "09-00-00-s" / "seed=1")
    oldest = a_run(outputs / "runs" / "2026-01-01" / "23-00-00-b")
    monkeypatch.chdir(middle.parent)
    assert all_runs(tmp_path) == [oldest, middle, newest]
    assert find_run("last", tmp_path) == newest
    assert find_run(str(oldest), tmp_path) == oldest
    assert find_run("12-00-00-a", tmp_path) == middle
    assert find_run("outputs/runs/2026-01-01/23-00-00-b", tmp_path) == oldest
    assert find_run("runs/2026-01-01/23-00-00-b", tmp_path) == oldest
    assert find_run("23-00-00-b", tmp_path) == oldest


def test_unknown_run_names_the_nearest(tmp_path: Path) -> None:
    a_run(tmp_path / "outputs" / "runs" / "2026-01-01" / "10-00-00-digits")
    with pytest.raises(UserError, match=r"no run here.*\n.*\n.*nearest: 10-00-00-digits"):
        find_run("10-00-00-digit", tmp_path)
    with pytest.raises(UserError, match=r"no run here: .*outputs has none yet\n.*`lightkit train` makes one"):
        find_run("last", tmp_path / "empty")
    a_run(tmp_path / "outputs" / "runs" / "2026-01-02" / "10-00-00-digits")
    with pytest.raises(UserError, match="several runs have this name"):
        find_run("10-00-00-digits", tmp_path)


def noted(folder: Path, time: datetime) -> Path:
    """A run whose record says when it was started."""
    a_run(folder)
    (folder / "environment.json").write_text(json.dumps({"time": f"{time.astimezone():%Y-%m-%dT%H:%M:%S%z}"}))
    return folder


def test_a_run_outside_the_dates_has_its_own_time(tmp_path: Path) -> None:
    runs = tmp_path / "outputs" / "runs"
    demo = noted(runs / "demo", datetime(2026, 1, 2, 11))
    late = a_run(runs / "2026-01-02" / "12-00-00-a")
    early = a_run(runs / "2026-01-02" / "10-00-00-a")
    bare = a_run(runs / "bare")
    os.utime(bare / "config.yaml", (1, datetime(2026, 1, 2, 9).timestamp()))
    assert all_runs(tmp_path) == [bare, early, demo, late]
    assert find_run("last", tmp_path) == late
    assert started(demo) == datetime(2026, 1, 2, 11)
    (bare / "result.json").write_text("{}")
    assert find_run("last", tmp_path) == bare
    (demo / "environment.json").write_text('{"time": "noon"}')
    assert started(demo).year > 2000


def test_jobs_of_a_sweep_are_told_apart_by_their_record(tmp_path: Path) -> None:
    sweep = tmp_path / "outputs" / "sweeps" / "2026-01-02" / "12-00-00-s"
    second = noted(sweep / "seed=10", datetime(2026, 1, 2, 13))
    first = noted(sweep / "seed=9", datetime(2026, 1, 2, 12))
    between = a_run(tmp_path / "outputs" / "runs" / "2026-01-02" / "12-30-00-a")
    assert all_runs(tmp_path) == [first, between, second]
    assert run_name(second) == "s/seed=10"
    assert find_run("s/seed=9", tmp_path) == first
    assert sorted(runs_below(sweep)) == sorted([first, second])
    assert runs_below(tmp_path / "nowhere") == []


def test_of_several_runs_with_a_name_the_newest_is_meant(tmp_path: Path) -> None:
    day = tmp_path / "outputs" / "runs" / "2026-01-02"
    newest = a_run(day / "12-00-00-cnn_demo")
    a_run(day / "11-00-00-cnn_demo")
    assert find_run("cnn_demo", tmp_path) == newest
    with pytest.raises(UserError, match="nearest: cnn_demo"):
        find_run("cnn_dem", tmp_path)


def test_few_names_are_listed(tmp_path: Path) -> None:
    for minute in range(30):
        a_run(tmp_path / "outputs" / "runs" / "2026-01-02" / f"10-{minute:02}-00-name{minute}")
    with pytest.raises(UserError, match="no run here") as refused:
        find_run("other", tmp_path)
    assert refused.value.choices == ("name29", "name28", "name27", "name26", "name25", "name24")


@pytest.mark.parametrize("status", [None, "interrupted", "failed"])
def test_the_newest_find_unfinished_of_the_same_configuration_is_found(tmp_path: Path, status: str | None) -> None:
    a_demo(tmp_path, "10-00-00-demo", status=None)
    wanted = a_demo(tmp_path, "11-00-00-demo", status=status)
    a_demo(tmp_path, "12-00-00-demo", status="finished")
    a_demo(tmp_path, "13-00-00-demo", status=None, config="seed: 2\nname: demo\n")
    a_demo(tmp_path, "14-00-00-demo", status=None, saved=False)
    assert find_unfinished(tmp_path, CONFIG + "resume: {mode: auto}\n") == wanted


def test_nothing_is_found_where_nothing_is_left_to_do(tmp_path: Path) -> None:
    assert find_unfinished(tmp_path, CONFIG) is None
    a_demo(tmp_path, "11-00-00-demo", status=None, config="seed: [")  # a damaged one is passed over
    a_demo(tmp_path, "12-00-00-demo", status="finished")
    assert find_unfinished(tmp_path, CONFIG) is None


def test_a_path_tells_when_and_which(tmp_path: Path) -> None:
    place = dated(tmp_path / "2026-01-02" / "12-00-00-s" / "seed=1")
    assert place is not None
    assert (place.date, place.time, place.name, place.job) == ("2026-01-02", "12-00-00", "s", "/seed=1")
    assert dated(tmp_path / "mine") is None


def test_a_run_to_start_from_is_named_as_one_types_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = a_run(tmp_path / "outputs" / "runs" / "2026-01-01" / "10-00-00-base")
    new = a_run(tmp_path / "outputs" / "runs" / "2026-01-02" / "10-00-00-base")
    job = a_run(tmp_path / "outputs" / "sweeps" / "2026-01-03" / "10-00-00-s" / "seed=1")
    (tmp_path / "weights.pt").touch()
    monkeypatch.chdir(tmp_path)

    def taken(text: str) -> str:
        return with_run_folders([text], tmp_path)[0]

    assert taken("finetune.weights.path=base") == f"finetune.weights.path={new.relative_to(tmp_path)}"
    assert taken("finetune.distill.teacher=last") == f"finetune.distill.teacher='{job.relative_to(tmp_path)}'"
    left = ["name=base", "finetune.weights.path=weights.pt", "finetune.weights.path=nothing", "~finetune.weights.path"]
    left += [f"finetune.weights.path={old}", "finetune.weights.path=null", "finetune.weights.path=base,last"]
    assert [text for text in left if taken(text) != text] == []
