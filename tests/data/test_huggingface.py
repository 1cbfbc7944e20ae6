"""Data sets of Hugging Face: texts, tokens for language models and images, from folders and files made here."""

from __future__ import annotations

import json
import os
import re
import runpy
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lightkit.cli import main
from lightkit.common.errors import UserError
from lightkit.data import build_data
from lightkit.data.huggingface import huggingface
from lightkit.data.row_facts import row_column
from lightkit.data.sources import as_source
from lightkit.data.tensors import TASKS
from tests.conftest import Outcome
from tests.hub import LABEL, overrides, save_reviews, save_tokenizer, sentences

datasets = pytest.importorskip("datasets")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

Cli = Callable[..., Outcome]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with data sets and tokenizers, and a cache of its own."""
    folder = tmp_path_factory.mktemp("hub")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
        save_reviews(folder / "reviews")
        save_tokenizer(folder / "words")
        save_tokenizer(folder / "plain", plain=True)
        rows = [{"text": text, "label": ["bad", "good"][good], "stars": good * 2.0} for text, good in sentences(40)]
        (folder / "reviews.jsonl").write_text("\n".join(map(json.dumps, rows)))
        yield folder


@pytest.fixture
def hub(made: Path, project: Path) -> Path:
    """The same beside a project."""
    for name in ("reviews", "words", "plain", "reviews.jsonl"):
        (project / name).symlink_to(made / name)
    return project


def reviews(**options: Any) -> Any:
    return huggingface(**{"path": "reviews", "text": "text", "target": "label", "tokenizer": "words"} | options)


def test_texts_have_the_published_splits_classes_and_lengths(hub: Path) -> None:
    data = reviews()
    assert data.splits == {"train": range(64), "val": range(64, 80), "test": range(80, 96)}
    assert (data.info.task, data.info.class_names) == ("multiclass", ("bad", "good"))
    x, y = data[3]
    text, good = sentences(96)[3]
    assert (len(x["input_ids"]), int(y)) == (len(text.split()) + 2, good)
    assert data.lengths[3] == len(x["input_ids"])
    assert data.reader.loaded.decode(x["input_ids"]) == f"[CLS] {text} [SEP]"
    batch, _ = data.collate_fn([data[0], data[3]])
    assert batch["attention_mask"].sum(1).tolist() == data.lengths[[0, 3]].tolist()
    assert reviews(max_length=4).lengths.max() == 4
    assert reviews().info.fingerprint == data.info.fingerprint != reviews(max_length=4).info.fingerprint


def test_files_numbers_and_names_of_classes(hub: Path) -> None:
    data = reviews(path="reviews.jsonl")
    assert (data.splits, data.info.class_names) == ({}, ("bad", "good"))
    assert reviews(path="reviews.jsonl", target="stars").info.task == "regression"
    (hub / "pairs.csv").write_text("a,b,n\ngood cat,bad dog,10\nfine,poor,3\n")
    pairs = reviews(path="pairs.csv", text=["a", "b"], target="n")
    assert pairs.info.class_names == ("3", "10")
    assert pairs.reader.loaded.decode(pairs[0][0]["input_ids"]) == "[CLS] good cat [SEP] bad dog [SEP]"


def test_splits_that_cannot_be_used_are_left_out_and_told(hub: Path) -> None:
    plain = {"text": ["good"] * 3, "label": ["a", "b", "a"]}
    unlabelled = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["a", "b"])})
    parts = {
        "train": datasets.Dataset.from_dict({"text": ["good"] * 3, "label": [0, 1, 0]}, features=unlabelled),
        "validation": datasets.Dataset.from_dict({"text": ["good"]}),
        "test": datasets.Dataset.from_dict({"text": ["good"], "label": [-1]}, features=unlabelled),
        "unsupervised": datasets.Dataset.from_dict(plain),
    }
    datasets.DatasetDict(parts).save_to_disk("odd")
    data = reviews(path="odd")
    assert (data.splits, len(data)) == ({}, 3)
    assert [note.partition(": ")[2] for note in data.notes] == [
        "it has no column label",
        "its rows have no targets (-1)",
        "its name is none of train, val and test, or there is one of this name already",
    ]
    datasets.DatasetDict({"test": parts["train"]}).save_to_disk("none")
    with pytest.raises(UserError, match="no split to train on"):
        reviews(path="none")


def test_tokens_for_language_models(hub: Path) -> None:
    data = reviews(target=None, tokenizer="plain", max_length=16)
    x, y = data[1]
    assert torch.equal(x[1:], y[:-1])
    text, _ = sentences(96)[0]
    assert data.info.decode is not None
    assert data.info.decode(data[0][0].tolist()).startswith(f"{text} <end>")
    assert (data.info.task, data.info.vocab_size, data.info.more["objective"]) == ("language_modeling", 14, "causal_lm")
    with pytest.raises(UserError, match="the val split is shorter than one sample"):
        reviews(target=None, tokenizer="plain", max_length=200)
    with pytest.raises(UserError, match=r"(?s)cannot be loaded.*mask"):
        reviews(target=None, tokenizer="plain", max_length=16, task="masked_lm")


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_hidden_depends_on_the_place_in_the_epoch_alone(hub: Path, workers: int) -> None:
    data = reviews(target=None, task="masked_lm", max_length=16)
    train = build_data(dataset=data, split={"by": "random"}, batch_size=8, num_workers=workers).train
    whole, rest = list(train.epoch(1)), list(train.epoch(1, start=16))
    for (x, y), (x2, y2) in zip(whole[2:], rest, strict=True):
        assert torch.equal(x, x2)
        assert torch.equal(y, y2)
    x, y = (torch.cat(parts) for parts in zip(*whole))
    chosen = y != -100
    assert 0.1 < chosen.float().mean() < 0.2
    assert 0.65 < (x[chosen] == 4).float().mean() < 0.95
    assert torch.equal(x[~chosen], clean(data, train.order(1))[~chosen])
    train.close()


def clean(data: Any, rows: Tensor) -> Tensor:
    return torch.stack([data._tokens[start : start + 16].long() for start in data._starts[rows].tolist()])


def tagged(**rows: list[Any]) -> None:
    """Words and whether each is a noun, with the tokenizer's numbers of pieces."""
    kind = datasets.List(datasets.ClassLabel(names=["noun", "other"]))
    features = datasets.Features({"words": datasets.List(datasets.Value("string")), "tags": kind})
    datasets.Dataset.from_dict(rows, features=features).save_to_disk("tagged")


@pytest.mark.skipif("tagging" not in TASKS, reason="there are no such targets")
def test_each_word_has_a_class(hub: Path) -> None:
    tagged(words=[["the", "cat-dog", "runs"], ["dog"]] * 20, tags=[[1, 0, 1], [0]] * 20)
    options = {"path": "tagged", "text": "words", "target": "tags"}
    data = reviews(**options)
    assert (data.info.task, data.info.class_names) == ("tagging", ("noun", "other"))
    x, y = data[0]
    assert data.reader.loaded.convert_ids_to_tokens(x["input_ids"]) == [
        "[CLS]", "the", "cat", "[UNK]", "dog", "runs", "[SEP]"
    ]  # fmt: skip
    assert y.tolist() == [-100, 1, 0, -100, -100, 1, -100]
    assert data.collate_fn([data[0], data[1]])[1][1].tolist() == [-100, 0, -100, -100, -100, -100, -100]
    assert reviews(**options, max_length=4)[0][1].tolist() == [-100, 1, 0, -100]
    tagged(words=[["the"], ["the", "cat"]], tags=[[1], [1]])
    with pytest.raises(UserError, match="tagged, row 1 of train: not one class for each word"):
        reviews(**options)
    rows = [{"words": ["the", "cat"], "tags": tags} for tags in ([5, -100], [3, 5])]
    (hub / "tags.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = reviews(**options | {"path": "tags.jsonl"})  # what counts for nothing is no class
    assert (data.info.class_names, data[0][1].tolist()) == (("3", "5"), [-100, 1, -100, -100])
    rows[1]["tags"] = [3, None]
    (hub / "none.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(UserError, match="none.jsonl, row 1 of train: not one class for each word"):
        reviews(**options | {"path": "none.jsonl"})
    tagged(words=[["the"], ["cat"]], tags=[[1], [0]])
    wrong = datasets.load_from_disk("tagged")
    table = datasets.Dataset.from_dict({"words": [["the"], ["cat"]], "tags": [[1], [7]]}).data
    datasets.Dataset(table, info=wrong.info).save_to_disk("wrong")
    with pytest.raises(UserError, match="wrong, row 1 of train: not one class for each word"):
        reviews(**options | {"path": "wrong"})


def test_images(hub: Path) -> None:
    import numpy as np

    pixels = np.random.default_rng(0).integers(0, 255, (6, 20, 16, 3), dtype=np.uint8)
    from PIL import Image

    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    kinds["site"] = datasets.Value("string")
    columns = {"image": [Image.fromarray(each) for each in pixels], "label": [0, 1] * 3, "site": [*"abcdef"]}
    datasets.Dataset.from_dict(columns, features=kinds).save_to_disk("pictures")
    data = huggingface("pictures", image="image", target="label", size=8)
    assert (data.info.input_shape, data.info.num_classes) == ((3, 8, 8), 2)
    assert (data[1][0].shape, int(data[1][1])) == ((3, 8, 8), 1)
    assert row_column(as_source(data), "site", None, key="--by").tolist() == [*"abcdef"]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"text": "review"}, r"text: reviews has no such column\n.*'review'\n.*choices: *text, label"),
    ({"target": "stars"}, "target: reviews has no such column"),
    ({"path": "nobody/reviews"}, r"(?s)path: cannot be loaded.*HF_HUB_OFFLINE is set"),
    ({"tokenizer": "nobody/words"}, r"(?s)tokenizer: cannot be loaded.*HF_HUB_OFFLINE is set"),
    ({"tokenizer": None}, r"(?s)texts need a tokenizer.*model.name=NAME"),
    ({"path": "empty.csv"}, "empty.csv, row 1 of train: there is no text"),
    ({"path": "untold.csv"}, "untold.csv, row 2 of train: there is no target"),
    ({"path": "broken.jsonl"}, "path: cannot be loaded: DatasetGenerationError: .*: ArrowInvalid: JSON parse"),
    ({"image": "text"}, "one of texts and images is needed"),
    ({"task": "translation"}, "no such task"),
]


@pytest.mark.parametrize(("options", "told"), BAD)
def test_what_is_wrong_is_named(hub: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], told: str) -> None:
    import huggingface_hub.constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    (hub / "empty.csv").write_text("text,label\ngood,a\n ,b\n")
    (hub / "untold.csv").write_text("text,label\ngood,a\nbad,b\nbad,\n")
    (hub / "broken.jsonl").write_text('{"text": "good"\n{{{\n')
    with pytest.raises(UserError, match=told):
        reviews(**options)


def test_a_missing_package_is_told(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(UserError, match=r"(?s)datasets is not installed.*pip install 'lightkit\[hf\]'"):
        reviews()


def test_a_run_is_predicted_from_new_texts(hub: Path, cli: Cli) -> None:
    done = cli("train", *overrides(LABEL, "optim.lr=0.02", "trainer.epochs=6", "name=r"))
    assert done.code == 0, done.err
    (hub / "new.jsonl").write_text('{"text": "the good cat", "id": 7}\n{"text": "bad dog", "id": 8}\n')
    (hub / "new.csv").write_text("id,text\n7,the good cat\n8,bad dog\n9,\n")
    done = cli("predict", "r", "--input", "new.csv", "--output", "found.csv")
    assert "new.csv, line 4: there is no text" in done.err
    done = cli("predict", "r", "--input", "new.csv", "--skip-bad", "--output", "found.csv")
    assert [line.split(",")[:3] for line in (hub / "found.csv").read_text().splitlines()[1:]] == [
        ["0", "7", "good"],
        ["1", "8", "bad"],
    ]
    assert cli("predict", "r", "--input", "new.jsonl", "--output", "same.csv").code == 0
    assert (hub / "same.csv").read_text() == (hub / "found.csv").read_text()
    import lightkit

    model = lightkit.load("r")
    assert model.predict(["the good cat", "bad dog"]).tolist() == ["good", "bad"]
    one, two = model.predict_proba(["good"]), model.predict_proba(["good", "the bad dog sleeps fast"])
    assert torch.allclose(torch.tensor(one[0]), torch.tensor(two[0]), atol=1e-6)  # padding changes nothing
    texts = ["the good cat", "bad"]
    assert cli("export", "r", "out").code == 0
    left = transformers.AutoModelForSequenceClassification.from_pretrained("out").eval()
    outputs = left(**transformers.AutoTokenizer.from_pretrained("out")(texts, padding=True, return_tensors="pt"))
    found = torch.tensor(model.predict_proba(texts), dtype=torch.float32)
    assert torch.allclose(outputs.logits.softmax(-1), found, atol=1e-5)
    assert torch.allclose(runpy.run_path("out/predict.py")["predict"](texts), found, atol=1e-5)
    assert left.config.id2label == {0: "bad", 1: "good"}


@pytest.fixture(scope="module")
def tagging(made: Path) -> Path:
    """A project with a finished run that tags words: whether each is a noun."""
    (folder := made / "tagging").mkdir()
    (folder / "words").symlink_to(made / "words")
    texts = [text.split() for text, _ in sentences(60)]
    columns = ("data.dataset.text=words", "data.dataset.target=tags", "metrics=tagging", "optim.lr=0.05")
    with chdir(folder):
        tagged(words=texts, tags=[[int(word not in ("cat", "dog")) for word in words] for words in texts])
        assert main(["train", *overrides(*columns, "data.dataset.max_length=9", "name=t", data="tagged")]) == 0
    return folder


@pytest.fixture
def tags(tagging: Path, hub: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same as the working directory."""
    monkeypatch.chdir(tagging)
    return tagging


def test_each_word_of_new_texts_gets_a_tag(tags: Path, cli: Cli) -> None:
    (tags / "new.csv").write_text("id,words\n7,the cat runs\n8,\n9,the cat the cat the cat the cat the\n10,dog\n")
    done = cli("predict", "t", "--input", "new.csv", "--output", "found.jsonl")
    assert "2 rows cannot be read:\nnew.csv, line 3: there is no text\nnew.csv, line 4: 2 of its words" in done.err
    done = cli("predict", "t", "--input", "new.csv", "--skip-bad", "--output", "found.jsonl")
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in (tags / "found.jsonl").read_text().splitlines()]
    assert [(row["id"], row["prediction"]) for row in rows] == [("7", ["other", "noun", "other"]), ("10", ["noun"])]
    (tags / "new.jsonl").write_text('{"words": ["the", "cat-dog", "runs"]}\n{"words": ["a", null]}\n')
    done = cli("predict", "t", "--input", "new.jsonl", "--output", "found.jsonl")
    assert "new.jsonl, line 2: there is no text" in done.err
    import lightkit

    model = lightkit.load("t")
    given = [["the", "cat-dog", "runs"], ["dog"]]
    assert [len(found) for found in model.predict(given)] == [3, 1]
    assert model.predict(["the cat runs", "dog"]) == [["other", "noun", "other"], ["noun"]]
    assert model.outputs([["dog"]]) == [["noun"]]
    with pytest.raises(UserError, match="row 1: there is no text"):
        model.predict([["dog"], ["the", " "]])
    with pytest.raises(UserError, match="no target of this run"):
        model.evaluate(given, [["other", "noun", "other"], ["noun"]])
    done = cli("show", "worst", "t", "--count", "1")
    assert re.search(r"(?m)^ *\d+ +[\d.]+ +(noun|other)( (noun|other))* ", done.out), done.out
    [page] = tags.glob("outputs/**/show/worst-test.html")
    assert re.search(r"<pre>\[CLS\] \w+ .*\[SEP\]</pre>", page.read_text())


def test_tags_leave_as_a_folder_that_gives_probabilities(tags: Path, cli: Cli) -> None:
    for name in ("folder", "file.pt2"):
        done = cli("export", "t", name)
        assert done.code == 0, done.err
    found = runpy.run_path("folder/predict.py")["predict"](["the cat runs", "dog"])
    assert found.shape == (2, 2, 5)
    assert torch.allclose(found.sum(1), torch.ones(2, 5))
    assert found.argmax(1)[0, 1:4].tolist() == [1, 0, 1]
    tokens = torch.tensor([[2, 5, 7, 9, 3, 0, 0, 0, 0]])
    same = [runpy.run_path(path)["predict"](tokens) for path in ("folder/predict.py", "predict_file_pt2.py")]
    assert torch.allclose(*map(torch.as_tensor, same), atol=1e-5)


def test_an_empty_file_is_told_as_that(hub: Path) -> None:
    (hub / "none.jsonl").touch()
    with pytest.raises(UserError, match="path: the file is empty"):
        reviews(path="none.jsonl")


def losses(folder: Path) -> list[float]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row["train/loss"] for row in rows if "train/loss" in row]


@pytest.mark.thorough
def test_two_processes_share_padded_batches(hub: Path, cli: Cli, process: Cli) -> None:
    for start, name, more in ((cli, "one", ()), (process, "two", ("device=ddp", "device.name=cpu", "device.nproc=2"))):
        words = [word for word in overrides(LABEL, "trainer.epochs=1", "logger.every_steps=1") if word != "device=cpu"]
        done = start("train", *words, *more, f"hydra.run.dir={hub / name}")
        assert done.code == 0, done.err
    assert losses(hub / "two") == pytest.approx(losses(hub / "one"), rel=0.02)


def cached(made: Path, commit: str, rows: int) -> None:
    """Put a data set of the Hub into the cache, as a download does."""
    text = [text for text, _ in sentences(rows)]
    builder = f"{made}/cache/someone___reviews/default/0.0.0/{commit}"
    part = datasets.Dataset.from_dict({"text": text, "label": [number % 2 for number in range(rows)]})
    part.save_to_disk(made / "raw" / commit)
    Path(builder).mkdir(parents=True)
    [file] = (made / "raw" / commit).glob("*.arrow")
    (Path(builder) / "reviews-train.arrow").write_bytes(file.read_bytes())
    facts = {
        "features": part.features.to_dict(),
        "builder_name": "parquet",
        "dataset_name": "reviews",
        "config_name": "default",
        "version": {"version_str": "0.0.0", "major": 0, "minor": 0, "patch": 0},
        "splits": {"train": {"name": "train", "num_bytes": 1, "num_examples": rows, "dataset_name": "reviews"}},
        "download_checksums": {
            f"hf://datasets/someone/reviews@{commit}/train.parquet": {"num_bytes": 1, "checksum": None}
        },
        "download_size": 1,
        "dataset_size": 1,
        "size_in_bytes": 2,
    }
    (Path(builder) / "dataset_info.json").write_text(json.dumps(facts))


def test_a_run_keeps_the_commit_of_its_data_set(
    hub: Path, made: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    cached(made, "a" * 40, 40)
    data = reviews(path="someone/reviews")
    assert (len(data), data.pinned) == (40, {"revision": "a" * 40})
    done = cli("train", *overrides(LABEL, "name=r", "trainer.epochs=1", data="someone/reviews"))
    assert done.code == 0, done.err
    [facts] = (hub / "outputs").glob("**/environment.json")
    assert json.loads(facts.read_text())["pinned"] == {"revision": "a" * 40}
    cached(made, "b" * 40, 50)
    os.utime(made / "cache/someone___reviews/default/0.0.0" / ("b" * 40), (2e9, 2e9))
    assert len(reviews(path="someone/reviews")) == 50
    for options in ({"pinned": {"revision": "a" * 40}}, {"revision": "a" * 40}):
        assert len(reviews(path="someone/reviews", **options)) == 40
    for command in (("eval", "r"), ("resume", "r", "trainer.epochs=2")):
        done = cli(*command)
        assert done.code == 0, done.err
    with pytest.raises(UserError, match=r"(?s)the cache has another commit.*expected: *c{40}.*received: *'b{40}"):
        reviews(path="someone/reviews", revision="c" * 40)
