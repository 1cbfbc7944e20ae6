from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from lightkit.cli.terminal import SHORTEST, table, width
from tests.conftest import Outcome

TITLES = ("name", "best", "folder")
ROWS = [
    ["a_very_long_name_of_a_run", "0.5", "outputs/runs/2026-01-31/12-00-00-a_very_long_name_of_a_run"],
    ["b", "1", "c"],
]


def test_a_table_fits_the_terminal_and_nothing_is_cut_where_there_is_room() -> None:
    for columns in (40, 60, 80):
        text = table(TITLES, ROWS, cut=[0, 2], columns=columns)
        assert max(map(len, text.splitlines())) <= columns
        assert ("…" in text, text.splitlines()[1].endswith("of_a_run")) == (True, True)
    whole = table(TITLES, ROWS)
    assert "…" not in whole
    assert table(TITLES, ROWS, cut=[0, 2], columns=200) == table(TITLES, ROWS, cut=[0, 2]) == whole
    assert table(TITLES, ROWS, columns=40) == whole
    assert table(TITLES, [], cut=[0, 2], columns=10) == "name  best  folder"
    name, best, folder = table(TITLES, ROWS, cut=[0, 2], columns=5).splitlines()[1].split()
    assert (len(name), best, len(folder)) == (SHORTEST, "0.5", SHORTEST)


def test_width_is_that_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "47")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert width() == 47
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert width() is None


EVIL = "evil\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"


@pytest.fixture
def run(project: Path) -> Path:
    """The folder of a run that somebody else has written."""
    folder = project / f"outputs/runs/2026-01-31/12-00-00-{EVIL}"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"name": EVIL, "metrics": {"monitor": EVIL}}))
    (folder / "result.json").write_text(json.dumps({"status": EVIL, "monitor": EVIL, "best": EVIL}))
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "epoch": 1, EVIL: 1.0}) + "\n")
    for number in (1, 2):
        state = {EVIL: torch.full((2,), float(number)), "b\nfake row": torch.ones(1)}
        torch.save(state, folder / f"weights{number}.pt")
    return folder


@pytest.mark.parametrize(
    "args",
    [
        ("runs",),
        ("ckpt", "inspect", "{run}"),
        ("ckpt", "inspect", "{run}/weights1.pt", "--tensors"),
        ("ckpt", "diff", "{run}/weights1.pt", "{run}/weights2.pt"),
        ("ckpt", "convert", "{run}/weights1.pt", "{run}/none/out.pt"),
        ("resume", "{run}"),
        ("eval", "{run}"),
        ("plan", "data=wine", f"finetune.weights.path={{run}}/{EVIL}"),
        ("config", "data=wine", f"name={EVIL!r}"),
        ("train", "data=wine", f"--cfg={EVIL}"),
        ("train", f"{EVIL}=1"),
        (EVIL,),
    ],
)
def test_no_control_character_of_others_reaches_the_terminal(
    cli: Callable[..., Outcome], run: Path, args: tuple[str, ...]
) -> None:
    done = cli(*(text.replace("{run}", str(run)) for text in args))
    printed = done.out + done.err
    assert printed.strip()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", printed), printed
    assert "evil" in printed or "fake row" in printed
    assert "\nfake row" not in printed
