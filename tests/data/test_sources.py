"""What is found out about any data set, and what a data set in memory says of itself."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from lightkit.common.errors import UserError
from lightkit.data import DataInfo, TensorData, build_data
from lightkit.data.sources import as_source


class Rows:
    """Map-style data set of given samples."""

    def __init__(self, samples: list[Any], **attributes: Any) -> None:
        self.samples = samples
        vars(self).update(attributes)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> Any:
        return self.samples[row]


X = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("dataset", "task", "shape", "outputs"),
    [
        (Rows([(X, 0), (X, 2), (X, 1)]), "multiclass", (2, 3), 3),
        (Rows([(X, 0)] * 3, classes=["a", "b"]), "multiclass", (2, 3), 2),
        (Rows([(X, 0)] * 3, classes=4), "multiclass", (2, 3), 4),
        (Rows([{"x": X, "y": 0}] * 3, classes=["a", "b"]), "custom", (), 2),
        (Rows([(X, 0)] * 3, targets=[0, 4, 0]), "multiclass", (2, 3), 5),
        (Rows([(X.numpy(), np.int64(1))] * 3), "multiclass", (2, 3), 2),
        (Rows([(X, 0.5)] * 3), "regression", (2, 3), 1),
        (Rows([(X, torch.zeros(4))] * 3), "regression", (2, 3), 4),
        (Rows([(X, X.long())] * 3), "custom", (2, 3), 0),
        (Rows([{"a": X}] * 3), "custom", (), 0),
        (Rows([(X, 1.0)] * 3, info=DataInfo("binary", (2, 3), 1)), "binary", (2, 3), 1),
        (TensorDataset(torch.zeros(3, 2, 3), torch.tensor([0, 1, 2])), "multiclass", (2, 3), 3),
    ],
)
def test_facts_are_found_out(dataset: Any, task: str, shape: tuple[int, ...], outputs: int) -> None:
    source = as_source(dataset)
    assert (source.info.task, source.info.input_shape, source.info.num_classes) == (task, shape, outputs)
    assert isinstance(source, TensorData) == isinstance(dataset, TensorDataset)
    batch = next(build_data(dataset=dataset, split={"val": 0, "test": 0}).train.epoch(0))
    assert task != "regression" or batch[1].dtype == torch.float32


def test_facts_of_tensors_are_found_out() -> None:
    x, y = torch.zeros(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    assert TensorData(x, y).info.num_classes == 3
    assert TensorData(x, torch.zeros(6)).info.sizes()["task"] == "regression"
    assert TensorData(x, torch.zeros(6, 4)).info.num_classes == 4
    assert TensorData(x, y.to(torch.uint8)).y.dtype == torch.int64
    assert TensorData(torch.zeros(6, 3, 4, 5), y).info.sizes() == {
        "task": "multiclass", "num_classes": 3, "num_labels": 3, "input_shape": (3, 4, 5), "in_channels": 3,
        "in_features": 60,
    }  # fmt: skip
    mark, other = TensorData(x, y).info.fingerprint, x.clone()
    assert TensorData(other, y.clone()).info.fingerprint == mark != TensorData(x, y.flip(0)).info.fingerprint
    other[0, 0] = 1.0
    assert TensorData(other, y).info.fingerprint != mark


def test_bytes_come_out_as_shares() -> None:
    data = TensorData(torch.tensor([[0], [51], [255]], dtype=torch.uint8), torch.arange(3))
    assert torch.equal(data.take(torch.tensor([2, 1]))[0], torch.tensor([[1.0], [0.2]]))
    x, y = data[1]
    assert (x.tolist(), int(y)) == ([pytest.approx(0.2)], 1)


def test_a_first_sample_that_raises_is_named() -> None:
    class Broken(Rows):
        def __getitem__(self, row: int) -> Any:
            raise KeyError("no such key")

    text = r"sample 0 of the data set .*KeyError[\s\S]*at: .*test_sources\.py:\d+"
    with pytest.raises(UserError, match=text) as caught:
        as_source(Broken([(X, 0)]))
    assert isinstance(caught.value.__cause__, KeyError)


STREAMS = """\
import random
import torch
from torch.utils.data import IterableDataset, get_worker_info


class Known(IterableDataset):
    classes = ("a", "b", "c")

    def __len__(self):
        return 40

    def __iter__(self):
        assert get_worker_info() is None
        for row in range(40):
            yield torch.rand(4) + random.random(), row % 3


class Unknown(IterableDataset):
    classes = ("a", "b", "c")
    __iter__ = Known.__iter__


class Broken(Unknown):
    def __iter__(self):
        yield torch.rand(4), 0
        raise KeyError("shard")
"""
STREAM = ["data=custom", "data.batch_size=4", "logger.every_steps=1", "logger.tensorboard.enabled=false"]
STREAM += ["metrics=none", "metrics.monitor=val/loss"]
TWO = ["device=ddp", "device.name=cpu", "device.nproc=2"]


@pytest.mark.parametrize(
    ("kind", "more"),
    [("Known", ["trainer.epochs=1", *TWO]), ("Unknown", ["trainer.steps=9", "data.split.val=0.2"])],
)
def test_a_stream_without_an_index_counts_and_skips(
    cli: Callable[..., Any], process: Callable[..., Any], project: Path, kind: str, more: list[str]
) -> None:
    start = process if TWO[0] in more else cli
    (project / "streams.py").write_text(STREAMS)
    words = [*STREAM, f"data.dataset._target_=streams.{kind}", *more]
    whole = start("train", *words, f"hydra.run.dir={project}/whole")
    assert whole.code == 0, whole.err
    assert "a stream without an index: " in whole.out
    paused = start("train", *words, "trainer.stop_at=3 steps", f"hydra.run.dir={project}/cut")
    assert paused.code == 0, paused.err
    resumed = start("resume", f"{project}/cut", "trainer.stop_at=null", "data.num_workers=4")
    assert resumed.code == 0, resumed.err

    def losses(name: str) -> list[Any]:
        rows = map(json.loads, (project / name / "metrics.jsonl").read_text().splitlines())
        return [(row["step"], name, row[name]) for row in rows for name in row if name.endswith(("loss_step", "loss"))]

    assert losses("cut") == losses("whole")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("Unknown", "fix:      trainer.steps=1000, or trainer.epoch_steps with trainer.epochs; or a method __len__"),
        ("Broken", "sample 1 of the data set could not be read: KeyError: 'shard'"),
    ],
)
def test_what_a_stream_does_not_say_or_raises(cli: Callable[..., Any], project: Path, kind: str, text: str) -> None:
    (project / "streams.py").write_text(STREAMS)
    more = ["trainer.steps=5"] if kind == "Broken" else []
    done = cli("train", *STREAM, f"data.dataset._target_=streams.{kind}", *more)
    assert (done.code, text in done.err) == (2, True), done.err


@pytest.mark.parametrize("task", ["multiclass", "tagging", "language_modeling"])
@pytest.mark.parametrize("what", ["token", "target"])
def test_a_token_beyond_the_vocabulary_is_named_by_row(task: str, what: str) -> None:
    class Texts:
        info = DataInfo(task, (3,), 0 if task == "language_modeling" else 8, vocab_size=8)

        def __len__(self) -> int:
            return 7400

        def __getitem__(self, row: int) -> Any:
            x, y = torch.tensor([1, 2, 7]), torch.tensor([2, 1 if task == "multiclass" else -100, 0])
            {"token": x, "target": y}[what][2] = 8 if row == 7000 else 3
            return x, y[2] if task == "multiclass" else y

    data = build_data(dataset=Texts(), split={"by": "ordered", "val": 0, "test": 0}, batch_size=100)
    found = "label" if (task, what) == ("multiclass", "target") else what
    with pytest.raises(UserError, match=rf"the {found} of row 7000 is out of range[\s\S]*0 to 7[\s\S]*received:.*8"):
        [*data.evaluation("train").epoch(0, 6900)]  # type: ignore[union-attr]


def test_rows_of_a_stream_are_the_same_in_any_order_and_copy() -> None:
    class Draws(IterableDataset[Any]):
        def __iter__(self) -> Any:
            yield from ((torch.rand(2), number % 2) for number in range(6))

    source, drawn = as_source(Draws(), 8), [0, 3, 3, 1, 7, 5, 0]
    first = {row: source[row][0].tolist() for row in range(8)}
    copied = copy.copy(source.base)
    assert [source[row][0].tolist() for row in drawn] == [first[row] for row in drawn]
    assert [copied[row][0].tolist() for row in drawn] == [first[row] for row in drawn]
    assert len(source) == 8
