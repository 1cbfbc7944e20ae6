"""Inputs of validation and test that the training split has too."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from lightkit.data import DataInfo, TensorData
from lightkit.data.images import ImageFolder
from lightkit.data.tables import digits
from lightkit.data.text import Text
from tests.doctor.data.planted import Examine, Rows, bad, table

EXACT = "overlap of splits"


def test_nothing_is_found_in_a_healthy_table(examine: Examine) -> None:
    found = examine(table(), "overlap")
    assert not bad(found)
    assert {finding.check for finding in found if finding.status == "ok"} == {EXACT, "near duplicates", "groups"}


def test_rows_that_are_there_twice_are_counted(examine: Examine) -> None:
    once = table()
    twice = TensorData(torch.cat([once.x, once.x[:100]]), torch.cat([once.y, once.y[:100]]))
    found = bad(examine(twice, "overlap"), EXACT)
    assert [finding.numbers["split"] for finding in found] == ["val", "test"]
    assert all(finding.status == "error" and finding.numbers["share"] > 0.2 for finding in found)
    assert "bit for bit" in found[0].measured


def test_few_repeated_rows_are_a_warning_and_one_of_many_a_note(examine: Examine) -> None:
    base = table(2000)
    splits = {"train": torch.arange(1000), "test": torch.arange(1000, 2000)}
    for repeated, status in ((50, "warning"), (5, "note"), (0, "ok")):
        x = base.x.clone()
        x[1000 : 1000 + repeated] = x[:repeated]
        found = examine(TensorData(x, base.y, splits=splits), "overlap", split={"val": 0})
        assert next(finding.status for finding in found if finding.check == EXACT) == status


def test_coarse_rows_that_are_equal_by_chance_raise_no_alarm(examine: Examine) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(2, (600, 6), generator=generator).float()
    found = examine(TensorData(x, torch.randint(2, (600,), generator=generator)), "overlap")
    assert not bad(found)
    assert "by chance" in next(finding.measured for finding in found if finding.status == "note")


@pytest.mark.parametrize("change", ["noise", "brightness", "rounding"])
def test_images_that_are_almost_the_same_are_found(change: str, examine: Examine) -> None:
    pictures = digits()
    generator = torch.Generator().manual_seed(2)
    copies = pictures.x[:300]
    if change == "noise":
        copies = copies + 0.01 * torch.randn(copies.shape, generator=generator)
    elif change == "brightness":
        copies = copies * 0.8 + 0.1
    else:
        copies = (copies * 200).round() / 200 + 1e-4
    both = TensorData(torch.cat([pictures.x, copies]), torch.cat([pictures.y, pictures.y[:300]]))
    found = bad(examine(both, "overlap", split={"by": "stratified"}), "near duplicates")
    assert [finding.numbers["split"] for finding in found] == ["val", "test"]
    assert all(finding.numbers["share"] > 0.15 for finding in found)
    row, twin = found[0].numbers["example"]
    assert abs(row - twin) == len(pictures)


def test_rows_of_a_table_that_are_almost_the_same_are_found_whatever_the_unit(examine: Examine) -> None:
    base = table(500)
    generator = torch.Generator().manual_seed(3)
    units = torch.tensor([1.0, 1e-3, 1e5, 1.0, 10.0, 1.0])
    copies = base.x[:100] + 1e-3 * torch.randn(100, 6, generator=generator)
    both = TensorData(torch.cat([base.x, copies]) * units, torch.cat([base.y, base.y[:100]]))
    assert len(bad(examine(both, "overlap"), "near duplicates")) == 2


def test_files_with_the_same_content_are_found_under_any_name(tmp_path: Path, examine: Examine) -> None:
    generator = torch.Generator().manual_seed(4)
    for split, count in (("train", 30), ("test", 10)):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = torch.randint(256, (12, 12, 3), generator=generator, dtype=torch.uint8).numpy()
                Image.fromarray(pixels).save(tmp_path / split / name / f"{number}_{split}.png")
    for number in range(5):
        copied = (tmp_path / "train" / "cat" / f"{number}_train.png").read_bytes()
        (tmp_path / "test" / "dog" / f"other{number}.png").write_bytes(copied)
    found = bad(examine(ImageFolder(str(tmp_path), size=8), "overlap", split={"by": "file", "val": 0}), EXACT)
    assert [finding.numbers["twins"] for finding in found if finding.numbers["split"] == "test"] == [5]


def test_rows_beside_each_other_in_a_random_split_are_found(examine: Examine) -> None:
    generator = torch.Generator().manual_seed(5)
    steps = torch.randn(600, 8, generator=generator)
    series = steps.cumsum(0)  # each row is a small step from the one before
    data = TensorData(series, torch.randint(2, (600,), generator=generator))
    found = bad(examine(data, "overlap"), "groups")
    assert found
    assert "data.split.by=ordered" in found[0].fix
    assert not bad(examine(data, "overlap", split={"by": "ordered"}), "groups")


@pytest.mark.parametrize("named", ["column", "files"])
def test_groups_on_both_sides_of_a_split_are_found(named: str, tmp_path: Path, examine: Examine) -> None:
    generator = torch.Generator().manual_seed(6)
    patients = torch.arange(40).repeat_interleave(10)
    x, y = torch.randn(400, 5, generator=generator), torch.randint(2, (400,), generator=generator)
    data: Any
    if named == "column":
        numbered = torch.cat([x, patients[:, None].float()], 1)
        data = TensorData(numbered, y, feature_names=["a", "b", "c", "d", "e", "patient_id"])
    else:
        files = [
            tmp_path / f"p{patient:03d}_slice{row:03d}{'b' * (row % 2)}.png"
            for row, patient in enumerate(patients.tolist())
        ]
        data = Rows([(row, int(label)) for row, label in zip(x, y)], files=files, targets=y.tolist())
    found = bad(examine(data, "overlap"), "groups")
    assert found
    assert found[0].numbers["groups"] == 40
    if named == "column":
        assert "data.split.groups=patient_id" in found[0].fix
        assert not bad(examine(data, "overlap", split={"groups": "patient_id"}), "groups")


def test_groups_that_are_kept_together_are_fine(examine: Examine) -> None:
    patients = torch.arange(40).repeat_interleave(10)
    base = table(400)
    splits = {"train": torch.arange(300), "test": torch.arange(300, 400)}
    rows = Rows([base[row] for row in range(400)], groups=patients, targets=base.y.tolist(), splits=splits)
    found = examine(rows, "overlap", split={"by": "file", "val": 0})
    assert not bad(found, "groups")
    rows = Rows([base[row] for row in range(400)], groups=patients, targets=base.y.tolist())
    found = examine(rows, "overlap")
    assert not bad(found, "groups")
    assert "none of 40 groups" in next(finding.measured for finding in found if finding.check == "groups")


def test_samples_that_are_no_pairs_are_skipped(examine: Examine) -> None:
    found = examine(Rows([{"x": torch.zeros(3)}] * 40, info=DataInfo("custom", (), 0)), "overlap")
    assert {finding.status for finding in found} == {"skipped"}


SPLIT = {"by": "file", "val": 0.1, "test": 0.1}


def written(files: int, seed: int = 0) -> dict[str, str]:
    """Files of made-up words, none of which repeats another."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(400)]
    return {f"{number}.txt": " ".join(draw.choices(words, k=400)) for number in range(files)}


def test_different_files_are_fine(examine: Examine) -> None:
    found = examine(Text(texts=written(30), context_length=64), "overlap", split=SPLIT)
    assert [finding.status for finding in found] == ["ok", "ok"]
    assert found[0].numbers["repeated"] == 0


@pytest.mark.parametrize("header", ["", "A licence that differs.\n"])
def test_files_under_two_names_are_found(header: str, examine: Examine) -> None:
    files = written(20)
    files |= {f"copy of {name}": header + text for name, text in files.items()}
    found = bad(examine(Text(texts=files, context_length=64), "overlap", split=SPLIT))
    assert found
    assert found[0].numbers["share"] > 0.2


def test_padding_is_no_text_that_is_known(examine: Examine) -> None:
    draw = random.Random(1)
    files = {f"{number}.txt": "".join(draw.choices("abcdefgh ", k=20)) + " " * 300 for number in range(30)}
    assert not bad(examine(Text(texts=files, context_length=64), "overlap", split=SPLIT))


def test_padded_sentences_with_labels_are_compared_whole(examine: Examine) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.zeros(400, 64, dtype=torch.int64)
    x[:, :10] = torch.randint(1, 500, (400, 10), generator=generator)
    y = torch.randint(2, (400,), generator=generator)
    assert not bad(examine(TensorData(x, y), "overlap"))
    both = TensorData(torch.cat([x, x[:100]]), torch.cat([y, y[:100]]))
    assert len(bad(examine(both, "overlap"), "overlap of splits")) == 2
