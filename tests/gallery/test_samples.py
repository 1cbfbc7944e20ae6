from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.data import DataInfo, TensorData, build_data
from lightkit.data.images import ImageFolder
from lightkit.gallery.samples import Prediction, answer, read_samples, target_words, variants


def made(**options: Any) -> Any:
    x = torch.arange(30.0)[:, None].repeat(1, 2)
    split = {"by": "random", "val": 0.2, "test": 0.2}
    return build_data(dataset=TensorData(x, torch.arange(30) % 3), split=split, batch_size=4, **options)


def test_training_samples_are_those_of_the_epoch() -> None:
    data = made()
    samples, _ = read_samples(data, "train", 6, epoch=3)
    assert [sample.row for sample in samples] == data.train.order(3)[:6].tolist()
    assert [float(sample.x[0]) for sample in samples] == [float(sample.row) for sample in samples]
    assert [sample.target for sample in samples] == [str(sample.row % 3) for sample in samples]


def test_others_are_spread_evenly() -> None:
    data = made()
    samples, _ = read_samples(data, "val", 3)
    rows = data.rows["val"].tolist()
    assert [sample.row for sample in samples] == [rows[0], rows[round((len(rows) - 1) / 2)], rows[-1]]
    assert len(read_samples(data, "test", 1000)[0]) == len(data.rows["test"])


def test_a_split_that_is_not_there() -> None:
    x = torch.rand(9, 2)
    data = build_data(dataset=TensorData(x, torch.arange(9) % 3), split={"by": "random", "val": 0.0, "test": 0.0})
    with pytest.raises(UserError, match="no such split"):
        read_samples(data, "val", 3)


def test_mixed_targets_are_named_by_their_shares() -> None:
    data = made(mixup={"alpha": 1.0, "probability": 1.0})
    samples, _ = read_samples(data, "train", 8)
    assert any("+" in sample.target for sample in samples)


def test_weights_of_rows_are_no_part_of_samples() -> None:
    rows = TensorData(torch.rand(30, 2), torch.arange(30) % 3)
    rows.weights = torch.arange(30.0) + 1  # type: ignore[attr-defined]
    data = build_data(dataset=rows, split={"by": "random", "val": 0.2, "test": 0.2}, batch_size=4)
    assert data.train.weights is not None
    for split in ("train", "val"):
        samples, view = read_samples(data, split, 5)
        assert view.kind == "rows of a table"
        assert [sample.target for sample in samples] == [str(sample.row % 3) for sample in samples]


def test_the_same_row_in_several_epochs() -> None:
    data = made(augment=[lambda x: x + torch.rand(1)])
    samples, _ = read_samples(data, "train", 2)
    rows = variants(data, samples, 5)
    assert [[each.row for each in of_one] for of_one in rows] == [[sample.row] * 5 for sample in samples]
    assert len({float(each.x[0]) for each in rows[0]}) == 5
    assert all(0 <= float(each.x[0]) - each.row <= 1 for each in rows[0])


def test_files_are_named(tmp_path: Path) -> None:
    from PIL import Image

    for name, level in (("ant", 10), ("bee", 200)):
        (tmp_path / name).mkdir()
        for number in range(6):
            Image.new("RGB", (8, 8), (level, level, number)).save(tmp_path / name / f"{number}.png")
    data = build_data(dataset=ImageFolder(str(tmp_path), size=8), split={"by": "stratified", "val": 0.3, "test": 0.3})
    samples, view = read_samples(data, "val", 4)
    assert view.kind == "images"
    assert all(Path(sample.file).parent.name == sample.target for sample in samples)
    assert samples[0].plain() == {"row": samples[0].row, "target": samples[0].target, "file": samples[0].file}


def test_samples_that_are_no_pairs() -> None:
    class Odd:
        info = None

        def __len__(self) -> int:
            return 10

        def __getitem__(self, row: int) -> dict[str, Any]:
            return {"x": torch.full((2,), float(row)), "name": f"row {row}"}

    from lightkit.data import DataInfo

    Odd.info = DataInfo("custom", (), 0)  # type: ignore[assignment]
    data = build_data(dataset=Odd(), split={"by": "random"}, batch_size=4)
    samples, view = read_samples(data, "train", 3)
    assert view.kind == "values"
    assert samples[0].y is None


CLASSES = DataInfo("multiclass", (4,), 3, ("ant", "bee", "cat"))
BINARY = DataInfo("binary", (4,), 1, ("benign",))
LABELS = DataInfo("multilabel", (4,), 3, ("red", "round", "small"))
NUMBERS = DataInfo("regression", (4,), 1)
TEXT = DataInfo("language_modeling", (3,), 3, (), 3, 3, "", ("?", "a", "b"))


@pytest.mark.parametrize(
    ("target", "info", "words"),
    [
        (torch.tensor(2), CLASSES, "cat"),
        (torch.tensor([0.3, 0.7, 0.0]), CLASSES, "0.70 bee + 0.30 ant"),
        (torch.tensor([0.0, 1.0, 0.0]), CLASSES, "bee"),
        (torch.tensor(1.0), BINARY, "benign"),
        (torch.tensor(0.0), BINARY, "not benign"),
        (torch.tensor(0.25), BINARY, "0.25 benign"),
        (torch.tensor([1.0, 0.0, 1.0]), LABELS, "red, small"),
        (torch.zeros(3), LABELS, "none"),
        (torch.tensor(151.25), NUMBERS, "151.2"),
        (torch.arange(6.0), NUMBERS, "0, 1, 2, 3, …"),
        (torch.tensor(7), DataInfo("multiclass", (4,), 8), "7"),
        (torch.tensor([1, 2, 2]), TEXT, "1, 2, 2"),
    ],
)
def test_targets(target: Any, info: DataInfo, words: str) -> None:
    assert target_words(target, info) == words


@pytest.mark.parametrize(
    ("output", "target", "info", "found"),
    [
        (torch.tensor([0.0, 5.0, 0.0]), torch.tensor(1), CLASSES, Prediction("bee", 0.9867, True)),
        (torch.tensor([0.0, 5.0, 0.0]), torch.tensor(0), CLASSES, Prediction("bee", 0.9867, False)),
        (torch.tensor([0.0, 5.0, 0.0]), torch.tensor([0.5, 0.5, 0.0]), CLASSES, Prediction("bee", 0.9867, None)),
        (torch.tensor([-2.0]), torch.tensor(0.0), BINARY, Prediction("not benign", 0.8808, True)),
        (torch.tensor([2.0, -1.0, 3.0]), torch.tensor([1.0, 0.0, 1.0]), LABELS, Prediction("red, small", None, True)),
        (
            torch.tensor([2.0, 1.0, 3.0]),
            torch.tensor([1.0, 0.0, 1.0]),
            LABELS,
            Prediction("red, round, small", None, False),
        ),
        (torch.tensor([3.5]), torch.tensor(3.0), NUMBERS, Prediction("3.5")),
    ],
)
def test_answers(output: Any, target: Any, info: DataInfo, found: Prediction) -> None:
    said = answer(output, target, info, None)
    assert (said.text, said.is_right) == (found.text, found.is_right)
    assert said.confidence == (None if found.confidence is None else pytest.approx(found.confidence, abs=1e-4))


def test_a_text_is_answered_token_by_token() -> None:
    scores = torch.nn.functional.one_hot(torch.tensor([1, 2, 0]), 3).float()
    said = answer(scores, torch.tensor([1, 2, 2]), TEXT, lambda tokens: "".join(TEXT.vocabulary[t] for t in tokens))
    assert (said.text, said.pieces, said.is_right) == ("ab?", ("a", "b", "?"), None)
