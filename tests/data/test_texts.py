"""Texts with classes or tags: the words of the training rows, padding in each batch, new texts, and what is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import lightkit
from lightkit.common.errors import UserError
from lightkit.data import build_data
from lightkit.data.texts import Texts
from tests.conftest import Cli

ROWS = [("a good film", "for"), ("a bad film , a bad plot", "against"), ("good", "for"), ("bad plot", "against")] * 10


def written(path: Path, rows: list[tuple[Any, Any]] = ROWS) -> str:
    path.write_text("".join(json.dumps({"text": text, "target": target}) + "\n" for text, target in rows))
    return str(path)


def tagged(path: Path) -> str:
    lines = [json.dumps({"text": text.split(), "target": [word[0] for word in text.split()]}) for text, _ in ROWS]
    path.write_text("\n".join(lines))
    return str(path)


def test_the_words_are_those_of_the_training_rows(tmp_path: Path) -> None:
    rows = [*ROWS, ("unheard of", "for")]
    texts = Texts(written(tmp_path / "t.jsonl", rows))
    fitted = texts.fitted(torch.arange(len(rows) - 1))
    assert fitted.info.vocabulary[:4] == ("<padding>", "<unknown>", "a", "bad")
    assert "unheard" not in fitted.info.vocabulary
    x, y = fitted.take(torch.tensor([len(rows) - 1, 2]))
    assert (x.tolist(), y.tolist()) == ([[1, 1], [fitted.info.vocabulary.index("good"), 0]], [1, 1])
    assert fitted.lengths.tolist()[:4] == [3, 7, 1, 2]
    assert Texts(written(tmp_path / "t.jsonl"), max_vocabulary=3).fitted(torch.arange(8)).info.vocab_size == 5
    kept = texts.fitted(torch.arange(3), ("<padding>", "<unknown>", "film"))
    assert kept.take(torch.tensor([0]))[0].tolist() == [[1, 1, 2]], "a run that goes on keeps its words"


def test_a_batch_is_as_long_as_its_longest_text(tmp_path: Path) -> None:
    data = build_data(dataset=Texts(written(tmp_path / "t.jsonl")), split={"by": "ordered"}, batch_size=2)
    assert {x.shape[1] for x, _ in data.val.epoch(0)} == {2, 7}
    tags = Texts(tagged(tmp_path / "tags.jsonl"), tags=True).fitted(torch.arange(8))
    _x, y = tags.take(torch.tensor([2, 3]))
    assert y.tolist() == [[tags.info.class_names.index("g"), -100], [tags.info.class_names.index(t) for t in "bp"]]


FEW = ("logger.tensorboard.enabled=false", "data.num_workers=0")


def test_new_texts_are_predicted_by_the_words_of_the_run(cli: Cli, project: Path) -> None:
    run = ["train", "data=texts", "trainer.epochs=8", "model.dim=16", "model.depth=1", "optim.lr=0.01", *FEW]
    run += ["metrics.figures=[]"]
    done = cli(*run, f"data.dataset.path={written(project / 't.jsonl')}", "hydra.run.dir=run")
    assert done.code == 0, done.err
    shown = cli("show", "worst", "run")
    assert shown.code == 0, shown.err
    page = (project / "run/show/worst-test.html").read_text()
    assert set(re.findall("<pre>(.*?)</pre>", page)) <= {text for text, _ in ROWS}, "words are apart, without padding"
    (project / "t.jsonl").unlink()
    (project / "new.csv").write_text("id,text\n7,good good film\n8,bad unheard plot\n")
    printed = cli("predict", "run", "--input", "new.csv", "--output", "-").out
    assert [line.split(",")[::2] for line in printed.split()[1:]] == [["0", "for"], ["1", "against"]]
    model = lightkit.load("run")
    assert model.predict(["Good film", "BAD"]).tolist() == ["for", "against"]
    with pytest.raises(UserError, match="row 1: column 'text' has no value"):
        model.predict(["good", ""])


def test_tags_are_as_many_as_words(cli: Cli, project: Path) -> None:
    run = ["train", "data=texts", "metrics=tagging", "trainer.epochs=8", "model.dim=16", "model.depth=1"]
    run += [f"data.dataset.path={tagged(project / 'tags.jsonl')}", "data.dataset.tags=true", "optim.lr=0.01"]
    done = cli(*run, "hydra.run.dir=run", *FEW)
    assert done.code == 0, done.err
    assert (project / "run/figures/test/confusion.png").exists()
    model = lightkit.load("run")
    assert [len(tags) for tags in model.predict(["a good film", ["bad"]])] == [3, 1]
    assert cli("predict", "run", "--output", "rows.csv").code == 0
    assert "['a', " in (project / "rows.csv").read_text()


def test_lists_of_numbers_are_tags(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(
        '{"text": ["a", "[b"], "target": [1, 20]}\n{"text": "[\'c d", "target": "20 1"}\n'
    )
    texts = Texts(str(tmp_path / "t.jsonl"), tags=True)
    assert texts.info.class_names == ("1", "20")
    assert texts.known.names[2:] == ["a", "[b", "['c", "d"]


def test_a_folder_for_each_class(tmp_path: Path) -> None:
    for number, (text, target) in enumerate(ROWS):
        (tmp_path / target).mkdir(exist_ok=True)
        (tmp_path / target / f"{number}.txt").write_text(text)
    texts = Texts(str(tmp_path))
    assert (len(texts), texts.info.class_names) == (40, ("against", "for"))
    (tmp_path / "for" / "empty.txt").write_text(" ")
    with pytest.raises(UserError, match=r"for/empty\.txt: the text has no words"):
        Texts(str(tmp_path))


WRONG: dict[str, Any] = {
    "empty": ([*ROWS, ("  ", "for")], {}, "t.jsonl, line 41: the text has no words"),
    "tags": ([("a b", "X Y"), ("c d", "X Y Z")], {"tags": True}, "t.jsonl, line 2: 2 words, 3 tags"),
    "no class": ([*ROWS, ("a b", "")], {}, "t.jsonl, line 41: the class is missing"),
    "null for a class": ([*ROWS, ("a b", None)], {}, "t.jsonl, line 41: the class is missing"),
    "no items": ([(["a"], ["X"]), ([], [])], {"tags": True}, "t.jsonl, line 2: the text has no words"),
    "null among tags": ([(["a", "b"], ["X", None])], {"tags": True}, "t.jsonl, line 1: 2 words, 1 tags"),
    "no column": (ROWS, {"text": "body"}, "no such column"),
    "one class": (ROWS[:1], {}, "holds one class only"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_texts_is_named(tmp_path: Path, case: str) -> None:
    rows, options, text = WRONG[case]
    path = written(tmp_path / "t.jsonl", rows)
    with pytest.raises(UserError, match=text):
        build_data(dataset=Texts(path, **options), split={"val": 0, "test": 0})


def test_words_are_not_mixed(cli: Cli, project: Path) -> None:
    (project / "t.csv").write_text("text,target\n" + "good cat,yes\nbad dog,no\n" * 20)
    done = cli("train", "data=texts", "data.dataset.path=t.csv", "model=transformer", "data.mixup.alpha=0.2")
    assert done.code == 2
    assert "of words cannot be mixed" in done.err
