"""The file with what members put out at their validations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lightkit.ensemble.validations as subject
from lightkit.ensemble.validations import Validation, ValidationOutputs, of_member, read_validations, write_validations
from lightkit.trainer.timetable import Timetable

TABLE = Timetable(epoch_samples=20, batch_size=5, epochs=3)
LOSS = torch.zeros(())


def validate(kept: ValidationOutputs, step: int, *parts: torch.Tensor) -> None:
    kept.reset()
    for part in parts:
        kept.update(part, None, LOSS, len(part))
    kept.validated(step, step / 4)


def test_batches_of_a_validation_become_one_record(tmp_path: Path) -> None:
    kept, outputs = ValidationOutputs(tmp_path / "file", TABLE), torch.randn(7, 3)
    validate(kept, 4, outputs[:5].bfloat16(), outputs[5:].bfloat16())
    validate(kept, 8, outputs[:5], outputs[5:])
    first, second = read_validations(tmp_path / "file")
    assert (first.step, first.epoch, second.step) == (4, 1.0, 8)
    assert first.outputs.equal(outputs.bfloat16().float())
    assert second.outputs.equal(outputs)


def test_what_is_torn_or_repeated_does_not_count(tmp_path: Path) -> None:
    path, kept = tmp_path / "file", ValidationOutputs(tmp_path / "file", TABLE)
    for step in (4, 8, 4):
        validate(kept, step, torch.full((2, 2), float(step)))
    validate(kept, 8, torch.ones(2, 2))
    whole = path.read_bytes()
    assert [float(record.outputs[0, 0]) for record in read_validations(path)] == [4.0, 1.0]
    for cut in range(1, 40):
        path.write_bytes(whole[:-cut])
        assert [float(record.outputs[0, 0]) for record in read_validations(path)] == [4.0, 8.0]
    kept.start(4)
    assert [record.step for record in read_validations(path)] == [4]
    kept.start(0)
    assert not path.exists()


def test_members_that_train_at_once_get_their_own(tmp_path: Path) -> None:
    names, path = ["a", "b"], tmp_path / "file"
    kept = ValidationOutputs(path, TABLE, names=lambda: names)
    outputs = torch.randn(2, 7, 3)
    validate(kept, 4, outputs[:, :5], outputs[:, 5:])
    names = ["b"]
    validate(kept, 8, outputs[:1])
    records = read_validations(path)
    assert [record.outputs.shape for record in of_member(records, "a")] == [(7, 3)]
    first, second = of_member(records, "b")
    assert first.outputs.equal(outputs[1])
    assert second.outputs.equal(outputs[0])
    write_validations(tmp_path / "b", [first, second])
    assert [record.step for record in read_validations(tmp_path / "b")] == [4, 8]


def test_nothing_is_kept_where_it_would_be_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    kept = ValidationOutputs(tmp_path / "file", TABLE, tell=told.append)
    monkeypatch.setattr(subject, "MOST_BYTES", 3 * 4 * 6)
    validate(kept, 4, torch.zeros(3, 2))
    assert len(read_validations(tmp_path / "file")) == 1
    validate(kept, 8, torch.zeros(3, 2), torch.zeros(1, 2))
    validate(kept, 12, torch.zeros(3, 2))
    assert not (tmp_path / "file").exists()
    assert len(told) == 1


def test_without_outputs_there_is_no_file(tmp_path: Path) -> None:
    kept = ValidationOutputs(tmp_path / "file", TABLE)
    kept.update(None, None, LOSS, 3)
    kept.validated(4, 1.0)
    write_validations(tmp_path / "other", list[Validation]())
    assert not list(tmp_path.iterdir())
