"""A project with one of everything, and every kind of damage that a file in it can have."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from lightkit.config import compose, save
from lightkit.runs.lock import boot_id
from tests.detached.made import LOG, make_sweep

RUN, ENSEMBLE, OTHER = "outputs/runs/2026-01-31/12-00-00-a", "outputs/runs/2026-01-31/12-10-00-many", "outputs/chosen"
SWEEP = "outputs/sweeps/2026-01-31/13-00-00-grid"
FILES = {
    **{name: f"{RUN}/{name}" for name in ("result.json", "config.yaml", "overrides.yaml", "environment.json")},
    **{name: f"{RUN}/{name}" for name in ("metrics.jsonl", ".progress.json", ".lock", ".job", ".mark", "run.log")},
    **{name: f"{RUN}/{name}" for name in ("output.log", "checkpoints/manifest.json", "finetune.json")},
    **{f"{name} of a job": f"{SWEEP}/lr=1/{name}" for name in ("result.json", "config.yaml")},
    **{f"{name} of a member": f"{ENSEMBLE}/members/0/{name}" for name in ("result.json", "config.yaml")},
    "plan": f"{ENSEMBLE}/ensemble.json",
    "journal": f"{SWEEP}/sweep.jsonl",
    "index": "outputs/.index.json",
}
"""What is damaged, by its kind."""
_RESULT = {
    "status": "finished",
    "reason": None,
    "name": "a",
    "seconds": 1.5,
    "system": {"bound": "data", "advice": ["data.num_workers=2"], "data_wait": 0.5},
    "objective": {"name": "val/loss", "mode": "min", "value": 0.5, "step": 8},
    "best": {"val/loss": 0.5},
    "test": {"test/loss": 0.25},
    "metrics": {"train/loss": 0.5, "val/loss": 0.5, "test/loss": 0.25},
    "epochs": 1,
    "steps": 8,
    "exit_status": 0,
}
_HOLDER = {"pid": 999999, "host": socket.gethostname(), "boot": boot_id(), "born": 7}
_LOCK = f"process 999999 on {socket.gethostname()}\n{json.dumps(_HOLDER)}\n"
ODD: tuple[Any, ...] = (
    *(None, True, -1, 2**70, 0.5, "", "a\0b", "\ud800", "../../x", [], [None], {}, {"a": {"b": []}}, [[1]]),
)
"""Values of other kinds than the one that is expected."""


def make_project(root: Path) -> None:
    """Make the folders of runs, a sweep and an ensemble; nothing in them was trained."""
    for place in (RUN, OTHER, ENSEMBLE, f"{ENSEMBLE}/members/0", f"{ENSEMBLE}/members/1"):
        _make_run(root / place)
    plan = {
        "method": "Voting",
        "members": [{"name": str(i), "folder": f"members/{i}", "depends_on": []} for i in (0, 1)],
    }
    (root / ENSEMBLE / "ensemble.json").write_text(json.dumps(plan))
    sweep = make_sweep(root, "lr=1", "lr=2")
    for name in ("lr=1", "lr=2"):
        _make_run(sweep / name)
    (root / "outputs" / ".index.json").write_text("lightkit index 2 0\n{}")


@cache
def _composed() -> Any:
    return compose(["data=wine", "trainer.epochs=1", "device=cpu", "model.hidden=[4]", "logger=quiet"]).cfg


def _make_run(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save(_composed(), folder)
    rows = [{"step": step, "epoch": 0, "time": 1.7e9, "train/loss": 1 / step, "val/loss": 1 / step} for step in (4, 8)]
    texts = {
        "result.json": json.dumps(_RESULT),
        "overrides.yaml": '- "data=wine"\n',
        "environment.json": json.dumps({"time": "2026-01-31T12:00:00+0000", "data": "f", "packages": {"torch": "2"}}),
        "metrics.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        ".lock": f"{_LOCK}released\n",
        ".job": f"{_LOCK}released\n",
        ".progress.json": json.dumps({"written": 1.0, "share": 0.5, "eta_seconds": 2.0}),
        "run.log": LOG,
        "output.log": "Traceback\nValueError: odd\n",
        "finetune.json": json.dumps({"plan": [], "head": {"name": "a", "found": "b", "why": "c", "beside": []}}),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    entry = {"file": "step-00000008.pt", "step": 8, "epoch": 1, "value": 0.5, "sha256": "", "bytes": 3}
    manifest = {"version": 1, "mode": "min", "leaving": {}, "entries": [entry]}
    (checkpoints / "manifest.json").write_text(json.dumps(manifest))
    (checkpoints / "step-00000008.pt").write_bytes(b"odd")


def damages(seed: int) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Yield ways to damage a file, each with its name, without an end: first one of each kind, then at random."""
    draw = random.Random(seed)
    yield from _PLACES
    yield from _CONTENTS
    while True:
        number = draw.randrange(2**32)
        kind = draw.choice((_truncate, _flip, _odd_value, _odd_value))
        yield f"{kind.__name__} {number}", lambda path, kind=kind, number=number: kind(path, random.Random(number))


def clear(path: Path) -> None:
    """Take away whatever is at a path."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _replaced(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        clear(path)
        make(path)

    return damage


def _contents(content: bytes) -> Callable[[Path], None]:
    return lambda path: _replaced(lambda place: place.write_bytes(content))(path)


_PLACES = (
    ("missing", clear),
    ("a folder", _replaced(Path.mkdir)),
    ("a link to itself", _replaced(lambda path: path.symlink_to(path))),
    ("a link to nothing", _replaced(lambda path: path.symlink_to("nowhere"))),
    ("a link to a folder", _replaced(lambda path: path.symlink_to("."))),
    ("a pipe", _replaced(os.mkfifo)),
    ("unreadable", lambda path: path.chmod(0)),
    ("a device", _replaced(lambda path: path.symlink_to("/dev/zero"))),
)
_DEEP = 100_000
_CONTENTS = tuple(
    (name, _contents(content))
    for name, content in {
        "empty": b"",
        "zeros": b"\0" * 4096,
        "binary": bytes(range(256)) * 16,
        "not UTF-8": b'{"status": "\xff\xfe"}\n',
        "deep": b"[" * _DEEP,
        "deep object": b'{"a":' * _DEEP,
        "deep within the limit": b'{"metrics":' + b"[" * 900 + b"]" * 900 + b"}\n",
        "nested result": json.dumps({"metrics": {"a": {"b": [1]}}, "objective": [1], "status": {}}).encode() + b"\n",
        "a list": b"[1, 2]\n",
        "a number": b"1e999\n",
        "no number": b'{"status": NaN, "epochs": NaN, "step": NaN, "time": Infinity}\n',
        "many digits": b'{"step": ' + b"9" * 5000 + b', "event": "sweep"}\n',
        "half a character": b'{"status": "\\ud800", "event": "\\udc00", "step": 1}\n',
        "a reference": b"a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
        "a tag": b"a: !!timestamp x\n",
        "a key that is a date": b"2026-01-31: 1\n",
        "a long line": b'{"event": "' + b"a" * (1 << 20) + b'"}\n',
    }.items()
)


def _read(path: Path) -> bytes:
    with suppress(OSError):
        return path.read_bytes()
    return b""


def _truncate(path: Path, draw: random.Random) -> None:
    content = _read(path)
    path.write_bytes(content[: draw.randrange(len(content) + 1)])


def _flip(path: Path, draw: random.Random) -> None:
    content = bytearray(_read(path))
    for _ in range(draw.randint(1, 4)):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(bytes(content))


def _odd_value(path: Path, draw: random.Random) -> None:
    _change(path, draw, draw.choice(ODD))


def _change(path: Path, draw: random.Random, value: Any) -> None:
    """Replace the value of a key of one line of JSON, or a line of something else."""
    lines = _read(path).decode().splitlines()
    at = draw.randrange(len(lines))
    try:
        found = json.loads(lines[at])
    except ValueError:
        key = lines[at].partition(":")[0]
        lines[at] = f"{key}: {json.dumps(value)}"
    else:
        lines[at] = json.dumps(_changed(found, draw, value))
    path.write_text("\n".join(lines) + "\n")


def _changed(found: Any, draw: random.Random, value: Any) -> Any:
    """Replace a value somewhere in plain content."""
    if not isinstance(found, dict | list) or not found:
        return value
    key: Any = draw.choice(list(found) if isinstance(found, dict) else range(len(found)))
    copy = found.copy()
    copy[key] = value if draw.random() < 0.5 else _changed(found[key], draw, value)
    return copy
