from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lightkit.runs.index import RunIndex, all_records, read_record
from lightkit.runs.lock import locked
from lightkit.runs.record import RunRecord
from tests.compare.made import CONFIG, SWEEP, a_run, a_sweep

VALUES = {0.1: [0.5, 0.75], 0.01: [0.25, 0.5]}


def facts(records: list[RunRecord]) -> list[Any]:
    return [
        (r.name, r.seed, r.status, r.metric, r.best, r.epochs, r.values, r.keys, r.started, r.data) for r in records
    ]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    a_sweep(tmp_path, VALUES)
    a_run(tmp_path / "outputs" / "runs" / "2026-01-31" / "13-00-00-killed", val=None, curve=[0.3, 0.6, 0.4])
    return tmp_path / "outputs" / ".index.json"


def test_what_is_known_of_a_run(tmp_path: Path) -> None:
    run = read_record(a_run(tmp_path / "2026-01-31" / "12-00-00-demo", lr=0.2, seed=3, val=0.5, test=0.4))
    assert (run.name, run.seed, run.status, run.metric, run.best, run.epochs) == (
        "demo", 3, "finished", "val/accuracy", 0.5, 2,
    )  # fmt: skip
    assert (run.keys["optim.lr"], run.keys["model.hidden"], run.part("name")) == (0.2, [8], "demo")
    assert (run.values, run.overrides) == ({"test/accuracy": 0.4, "val/accuracy": 0.5}, ("optim.lr=0.2", "seed=3"))


def sealed(content: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Change the lines of runs in a cache as somebody does who knows how it is written."""
    first, *lines = content.splitlines()[1:]
    body = b"\n".join([first, *map(change, lines)])
    return b"lightkit index 4 %s\n%s" % (hashlib.sha256(body).hexdigest().encode(), body)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "none": lambda content: content,
    "empty": lambda content: b"",
    "cut": lambda content: content[:-20],
    "changed": lambda content: content.replace(b"0.75", b"0.99"),
    "older": lambda content: b"lightkit index 0 0\n{}",
    "random": lambda content: os.urandom(500),
    "without runs": lambda content: sealed(content, lambda _: b"").replace(b"\n" * 5, b"\n"),
    "short lines": lambda content: sealed(content, lambda line: line.split(b"\t")[0]),
    "odd lines": lambda content: sealed(content, lambda line: line.replace(b'"labels":{}', b'"labels":[]')),
    "unknown sections": lambda content: sealed(content, lambda line: line.replace(b"\t", b"\tnone ", 1)),
    "deep lines": lambda content: sealed(content, lambda line: line.split(b"{")[0] + b'{"a":' * 9999),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_cache_that_is_damaged_is_read_anew(tmp_path: Path, cache: Path, damage: str) -> None:
    whole = facts(all_records(tmp_path))
    cache.write_bytes(DAMAGES[damage](cache.read_bytes()))
    assert facts(all_records(tmp_path)) == whole
    assert cache.read_bytes().startswith(b"lightkit index 4 ")


def test_what_changed_is_seen_and_what_is_gone_is_forgotten(tmp_path: Path, cache: Path) -> None:
    before = all_records(tmp_path)
    (before[0].folder / "result.json").write_text(json.dumps({"status": "failed"}))
    (before[1].folder / "config.yaml").unlink()
    after = {record.folder: record for record in all_records(tmp_path)}
    assert after[before[0].folder].status == "failed"
    assert before[1].folder not in after
    killed = next(record for record in after.values() if record.name == "killed")
    assert killed.best == 0.6
    with (killed.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 40, "epoch": 4, "val/accuracy": 0.9}\n{"step": 50, "epo')
    (killed,) = [record for record in all_records(tmp_path) if record.name == "killed"]
    assert (killed.best, killed.epochs, killed.status) == (0.9, 4, "unfinished")


def test_unchanged_runs_are_not_read(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    all_records(tmp_path)
    monkeypatch.setattr("lightkit.runs.index._content", lambda *_: pytest.fail("read"))
    assert len(all_records(tmp_path)) == 5


def test_a_run_whose_folder_is_held_goes_on(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / SWEEP / "optim.lr=0.1,seed=0"
    with locked(folder):
        assert {r.folder.name: r.status for r in all_records(tmp_path)}[folder.name] == "running"
    assert {r.folder.name: r.status for r in all_records(tmp_path)}[folder.name] == "finished"


def test_a_project_that_cannot_be_written_works_without(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "open", refuse)
    assert len(RunIndex(tmp_path).records([*(tmp_path / SWEEP).iterdir()])) == 4
    assert not cache.exists()
    monkeypatch.undo()
    (record,) = RunIndex(tmp_path).records([a_run(tmp_path / "elsewhere")])
    assert (record.best, cache.exists()) == (0.5, False), "runs elsewhere are read without the cache"


def test_several_at_once_write_whole_caches(tmp_path: Path, cache: Path) -> None:
    def look(_: int) -> list[Any]:
        cache.unlink(missing_ok=True)
        return facts(all_records(tmp_path))

    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(look, range(12)))
    assert all(each == seen[0] for each in seen)
    assert [path.name for path in cache.parent.glob(".index*")] in ([], [".index.json"])


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        ("{name: x, seed: 1}", {"name": "x", "seed": 1}),
        ("seed: [", {}),
        ("- 1\n", {}),
        ("a: &x {b: 1}\nc: *x\n", {}),
        ("a:\n  b: 2026-01-31\n  c: .inf\n", {"a.b": "2026-01-31", "a.c": float("inf")}),
        ("---\nname: 'two\n\nlines'\n", {"name": "two\nlines"}),
    ],
    ids=["flow", "broken", "list", "alias", "odd", "document"],
)
def test_configurations_of_any_hand(tmp_path: Path, config: str, keys: dict[str, Any]) -> None:
    (tmp_path / "config.yaml").write_text(config)
    assert read_record(tmp_path).keys == keys


def test_a_loss_is_best_where_it_is_smallest(tmp_path: Path) -> None:
    config = CONFIG.replace("mode: max", "mode: min")
    assert read_record(a_run(tmp_path / "run", config=config, val=None, curve=[0.3, 0.1, 0.4])).best == 0.1
