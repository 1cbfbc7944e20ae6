"""Windows of text: order, cuts, vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lightkit.data import build_data
from lightkit.data.text import ASCII, UNKNOWN, Text
from tests.refused import refused


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


def test_parts_do_not_overlap_and_vocabulary_is_of_training(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    letters = [chr(number) for number in range(0x4E00, 0x4E00 + 1000)]  # each of them once
    file.write_text("".join(letters), encoding="utf-8")
    text = Text(str(file), context_length=16, val=0.1, test=0.1, vocabulary="".join(letters))
    spans = [{*torch.cat(text.take(rows)).flatten().tolist()} for rows in text.splits.values()]
    assert not spans[0] & spans[1]
    assert not spans[1] & spans[2]
    file.write_text("abcdefghij" * 80 + "é" * 100 + "x" * 100, encoding="utf-8")
    text = Text(str(file), context_length=16, val=0.1, test=0.1)
    assert text.vocabulary == (UNKNOWN, *"abcdefghij")
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


def test_folder_is_read_in_an_order_of_its_names_or_given_in_place_of_files(tmp_path: Path) -> None:
    texts = {f"sub/{number}.txt": f"<{number}>" * 20 for number in range(30)}
    for folder, names in (("one", [*texts]), ("two", [*reversed(texts)])):
        (tmp_path / folder / "sub").mkdir(parents=True)
        for name in names:
            (tmp_path / folder / name).write_text(texts[name])
    one, two = (Text(str(tmp_path / folder), "**/*.txt", 8) for folder in ("one", "two"))
    given = Text(context_length=8, texts=texts)
    assert torch.equal(one.tokens, two.tokens)
    assert torch.equal(one.tokens, given.tokens)
    assert one.info == two.info == given.info
    for rows in one.splits.values():
        first = one.take(rows[:1])[0][0, 0]
        assert one.vocabulary[int(first)] == "<", "cut inside a file"
    short = Text(str(tmp_path / "one"), "**/*.txt", 8, max_chars=2000)
    assert short.info == Text(context_length=8, texts=texts, max_chars=2000).info


def test_texts_that_share_a_model_have_one_vocabulary(file: Path) -> None:
    one, two = (
        Text(context_length=8, vocabulary="ascii", texts={"a": text * 20})
        for text in ("only lower case", "2 + 2\t= é\n")
    )
    assert one.vocabulary == two.vocabulary == (UNKNOWN, *ASCII)
    assert one.encode("Az\n\t ~é\r").tolist() == two.encode("Az\n\t ~é\r").tolist() == [36, 93, 2, 1, 3, 97, 0, 0]
    assert two.decode(two.encode("2 + 2\t= é")) == f"2 + 2\t= {UNKNOWN}"
    assert Text(str(file), context_length=8, vocabulary="cabé").vocabulary == (UNKNOWN, *"abcé")


def test_default_is_the_standard_library() -> None:
    text = Text(max_chars=300_000)
    x, _ = next(build_data(dataset=text, split={"by": "file", "val": 0.1, "test": 0.1}).train.epoch(0))
    assert x.shape == (64, 128)
    assert (x > 0).all()
    assert "import" in text.decode(text.tokens)
    refused(lambda: build_data(dataset=text, split={"by": "fold"}), "cut in order, not into folds")
