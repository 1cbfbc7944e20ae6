"""What checks look at is the run itself, which stays as it is; and how findings are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lightkit.common.doors import import_path
from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.doctor.checks import CHECKS, examined
from lightkit.doctor.finding import STATUSES, Finding, closing, line
from lightkit.doctor.training.probing import train_step, training_batches
from tests.doctor.strangers.cases import Case


def test_each_check_gets_the_same_model_whatever_the_one_before_did(project: Path) -> None:
    before = sorted(project.rglob("*"))
    with examined(compose(["data=wine", "data.split.limit=10", "model.dropout=0.1"]).cfg, 60) as run:
        first = run.learner()
        weights = [each.detach().clone() for each in first.model.parameters()]
        batches = [*training_batches(first, 3, min(8, first.data.train.num_samples))]
        assert len(batches) == 3, "small data are read again"
        for number, batch in enumerate(batches):
            train_step(first, batch, key=number)
        second = run.learner()
        assert all(torch.equal(one, other) for one, other in zip(weights, second.model.parameters(), strict=True))
        assert not any(torch.equal(a, b) for a, b in zip(weights, first.model.parameters(), strict=True) if a.ndim > 1)
        for name in ("splits", "features", "checkpoint"):
            assert [*import_path(dict(CHECKS)[name])(run)]
    assert not run.folder.exists()
    assert sorted(path for path in project.rglob("*") if "__pycache__" not in path.parts) == before


def test_several_processes_are_examined_as_one(project: Path) -> None:
    with examined(compose(["data=wine", "device=ddp", "device.compile=default"]).cfg, 60) as run:
        assert (run.cfg.device.parallel, run.cfg.device.nproc, run.cfg.device.compile) == ("none", 1, "none")
        assert run.full_cfg.device.parallel == "ddp"


def test_a_run_that_would_be_refused_is_refused(project: Path) -> None:
    refused = examined(compose(["data=wine", "model.in_features=5"]).cfg, 60)
    with pytest.raises(UserError, match="a first batch fails"), refused:
        pass


@pytest.mark.thorough(first=0)
def test_slow_rows_are_few(project: Path) -> None:
    slow = """
import time

class Slow(TensorDataset):
    def __getitem__(self, row):
        time.sleep(0.02)
        return super().__getitem__(row)

def data(): return Slow(*blobs(160))
"""
    with examined(compose(Case("", slow, "model.hidden=[4]").write(project)).cfg, 60) as run:
        assert run.seconds_per_row > 0.02
        assert run.rows(128, seconds=0.4) <= 20
        assert run.rows(128, seconds=0.0, least=3) == 3
        assert run.rows(2) == 2


LONG = "the outputs for 127 rows differ by 31 % from one time to the next, and so on " * 3
FINDINGS = [
    Finding("evaluation", "error", LONG, "why it matters", "model", "do this"),
    Finding("speed", "warning", "input-bound", "slow", "data.num_workers", "data.num_workers=4"),
    Finding("disk", "note", "tight", numbers={"free": 3.5}),
    Finding("gradients", "ok", "fine"),
    Finding("causality", "skipped", "no text"),
    Finding("causality", "skipped", "no text"),
]


def test_a_line_says_how_bad_it_is_and_keeps_its_column() -> None:
    first, *more = line(FINDINGS[0], 80).splitlines()

    assert first.startswith("ERROR   evaluation          the outputs")
    assert more
    assert all(len(each) <= 80 and each.startswith(" " * 28) for each in more)
    # A long name does not touch what was measured.
    assert line(Finding("leaking features of all", "ok", "fine")) == "ok      leaking features of all fine"
    assert [each.is_bad for each in FINDINGS[:4]] == [True, True, False, False]
    assert {each.status for each in FINDINGS} == {*STATUSES}
    assert json.loads(json.dumps(FINDINGS[2].to_json()))["numbers"] == {"free": 3.5}


def test_what_is_worst_stands_last_and_a_key_that_the_fix_names_is_not_repeated() -> None:
    text = "\n".join(closing(FINDINGS, 12.3, 100))

    assert text.index("warning: speed") < text.index("ERROR: evaluation")
    assert "fix:      data.num_workers=4" in text
    assert "key:      data.num_workers" not in text
    assert "key:      model" in text
    assert "note: disk" not in text  # there is nothing to do about it
    assert "skipped causality (--json says why)" in text
    assert text.splitlines()[-1] == "1 error, 1 warning, 1 note, 1 ok, 2 skipped in 12 s"
    assert [*closing([], 0.2)] == ["nothing was looked at in 0 s"]
