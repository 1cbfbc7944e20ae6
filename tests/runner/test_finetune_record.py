"""The record of a fine-tuning, in the log and in the folder of its run."""

from __future__ import annotations

from pathlib import Path

from lightkit.config import compose
from lightkit.runner import Runner
from tests.finetune.whole import SHORT, notes

WINE = ("data=wine", "model=custom", "trust=[tests]")


def test_a_run_says_and_keeps_what_it_takes_for_the_output_layer(tmp_path: Path) -> None:
    cfg = compose([*WINE, *SHORT, "model._target_=tests.finetune.strange.Unusual", "finetune=head"]).cfg
    Runner(cfg, tmp_path).run()
    assert "output layer: zz (found by a forward pass); another one: finetune.head.name=" in (
        tmp_path / "run.log"
    ).read_text(encoding="utf-8")
    assert notes(tmp_path)["head"] == {"name": "zz", "found": "computed", "why": "", "beside": []}
