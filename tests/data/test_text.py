"""Windows of text: order, cuts, vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.data import build_data
from lightkit.data.text import ASCII, UNKNOWN, Text


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_text("abcdefghij" * 80 + "é" * 100 + "x" * 100, encoding="utf-8")
    return path


def test_targets_are_the_next_characters(file: Path) -> None:
    text = Text(str(file), context_length=16, val=0.1, test=0.1)
    for rows in (torch.arange(len(text)), torch.arange(len(text)).flip(0)):
        x, y = text.take(rows)
        assert x.shape == y.shape == (len(text), 16)
        assert (x.dtype, x.is_contiguous(), y.is_contiguous()) == (torch.int64, True, True)
        assert torch.equal(x[:, 1:], y[:, :-1])
    assert text.decode(text.take(torch.tensor([0]))[0][0]) == "abcdefghijabcdef"


def test_parts_do_not_overlap_and_vocabulary_is_of_training(file: Path) -> None:
    text = Text(str(file), context_length=16, val=0.1, test=0.1)
    assert text.vocabulary == (UNKNOWN, *"abcdefghij")
    spans = [set((text._starts[rows][:, None] + torch.arange(17)).flatten().tolist()) for rows in text.splits.values()]
    assert not spans[0] & spans[1]
    assert not spans[1] & spans[2]
    assert text.take(text.splits["val"])[0].max() == 0, "characters unknown to training are one token"
    assert text.encode("aé").tolist() == [1, 0]
    assert (text.info.vocab_size, text.info.num_classes, text.info.context_length) == (11, 11, 16)


def test_stride_min_count_and_limit(file: Path) -> None:
    plain, dense = Text(str(file), context_length=16), Text(str(file), context_length=16, stride=4)
    assert len(dense.splits["train"]) > 3 * len(plain.splits["train"])
    assert len(dense.splits["test"]) == len(plain.splits["test"])
    file.write_text("aab" * 100 + "z" + "ab" * 50)
    assert "z" not in Text(str(file), context_length=8, min_count=2).vocabulary
    assert len(Text(str(file), context_length=8, max_chars=90).tokens) == 90


def test_folder_is_read_in_an_order_of_its_names(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        for number in range(30) if folder == "one" else reversed(range(30)):
            path = tmp_path / folder / "sub" / f"{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"<{number}>" * 20)
    one, two = (Text(str(tmp_path / folder), "**/*.txt", 8) for folder in ("one", "two"))
    assert torch.equal(one.tokens, two.tokens)
    assert one.info.fingerprint == two.info.fingerprint
    for rows in one.splits.values():
        first = one.tokens[one._starts[rows[0]]]
        assert one.vocabulary[int(first)] == "<", "cut inside a file"


def test_texts_that_share_a_model_have_one_vocabulary(file: Path) -> None:
    one, two = (
        Text(context_length=8, vocabulary="ascii", texts={"a": text * 20})
        for text in ("only lower case", "2 + 2\t= é\n")
    )
    assert one.vocabulary == two.vocabulary == (UNKNOWN, *ASCII)
    assert one.encode("Az\n\t ~é\r").tolist() == two.encode("Az\n\t ~é\r").tolist() == [36, 93, 2, 1, 3, 97, 0, 0]
    assert two.decode(two.encode("2 + 2\t= é")) == f"2 + 2\t= {UNKNOWN}"
    assert Text(str(file), context_length=8, vocabulary="cabé").vocabulary == (UNKNOWN, *"abcé")


def test_texts_can_be_given_in_place_of_files(tmp_path: Path) -> None:
    texts = {f"sub/{number}.txt": f"<{number}>" * 20 for number in range(30)}
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    read, given = Text(str(tmp_path), "**/*.txt", 8), Text(context_length=8, texts=texts)
    assert torch.equal(read.tokens, given.tokens)
    assert read.info == given.info
    short = [Text(str(tmp_path), "**/*.txt", 8, max_chars=2000), Text(context_length=8, texts=texts, max_chars=2000)]
    assert short[0].info == short[1].info


def test_default_is_the_standard_library() -> None:
    text = Text(max_chars=300_000)
    data = build_data(dataset=text, split={"by": "file", "val": 0.1, "test": 0.1})
    x, _ = next(data.train.epoch(0))
    assert x.shape == (64, 128)
    assert (x > 0).all()
    assert "import" in text.decode(text.tokens)
    with pytest.raises(UserError, match="cut in order, not into folds"):
        build_data(dataset=text, split={"by": "fold"})


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"path": "/no/such"}, "path: there is no such file or folder"),
        ({"pattern": "*.none"}, "pattern: no file in"),
        ({"context_length": 0}, "context_length: too small"),
        ({"stride": 0}, "stride: too small"),
        ({"max_chars": 0}, "max_chars: too small"),
        ({"val": 0.5, "test": 0.5}, "no text is left to train on"),
        ({"context_length": 100}, "the val part is shorter than one window"),
        ({"min_count": 10_000}, "no character is that frequent"),
        ({"vocabulary": ""}, "vocabulary: no character is in it"),
        ({"vocabulary": "ascii", "min_count": 2}, "min_count: a given vocabulary does not depend on"),
        ({"texts": {"a": ""}}, "texts: there is no text"),
    ],
)
def test_bad_input(file: Path, settings: dict[str, Any], text: str) -> None:
    path = str(file.parent if "pattern" in settings else file)
    with pytest.raises(UserError, match=text):
        Text(**{"path": path, **settings})


def test_binary_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(range(256)) * 10)
    with pytest.raises(UserError, match=r"path: a file holds NUL bytes[\s\S]*a\.bin"):
        Text(str(tmp_path / "a.bin"))


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(UserError, match="there is no text"):
        Text(str(tmp_path / "a.txt"))
