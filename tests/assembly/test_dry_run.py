"""A first batch before the run: what would fail is refused, what would train passes, and nothing is left behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightkit.assembly.dry_run import rehearse
from lightkit.common.errors import UserError
from lightkit.data import Data, DataInfo, TensorData, build_data
from lightkit.device import Engine
from lightkit.trainer.tasks import Criterion, StepOutput, Supervised, Task
from tests.conftest import Cli

LOSS = nn.CrossEntropyLoss()


class Samples:
    """24 samples of three classes; says how often it was read and keeps what it opened."""

    info = DataInfo("multiclass", (4,), 3, ("a", "b", "c"))
    file: str | None = None

    def __init__(self, **changes: Any) -> None:
        self.changes = changes

    def __len__(self) -> int:
        return 24

    def __getitem__(self, row: int) -> Any:
        self.file = "open"
        if "error" in self.changes:
            raise self.changes["error"]
        return self.changes.get("x", torch.full((4,), float(row))), row % 3


class Pairs(Samples):
    info = DataInfo("custom", (), 0)

    def __getitem__(self, row: int) -> Any:
        return {"left": torch.randn(4), "right": torch.randn(4), "same": torch.tensor(row % 2)}


class Siamese(Task):
    def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
        return StepOutput(criterion(model(batch["left"]) - model(batch["right"]), batch["same"]))


def table() -> TensorData:
    y = torch.arange(24) % 3
    return TensorData(torch.randn(24, 4), y, DataInfo("multiclass", (4,), 3, ("a", "b", "c")))


def split(dataset: Any, **options: Any) -> Data:
    return build_data(dataset=dataset, split={"val": 0.0, "test": 0.0}, **{"batch_size": 8, **options})


def rehearsed(model: nn.Module, dataset: Any = None, *, task: Task | None = None, **options: Any) -> None:
    data = split(table() if dataset is None else dataset, **options)
    rehearse(data, model, task or Supervised(), LOSS, Engine("cpu"))


class Flat(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flatten()


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (nn.Linear(4, 2), r"(?s)^model: the output .*Target 2 is out of bounds.*num_classes=3.*\(2, 2\).*\(2,\) int64"),
        (Flat(4, 1), r"(?s)^model: the output does not go with the targets.*output \(2,\) float32"),
        (
            nn.Linear(5, 3),
            r"(?s)^model: a first batch fails: RuntimeError.*cannot be multiplied.*input \(2, 4\) float32",
        ),
    ],
)
def test_a_model_that_does_not_fit_is_refused(model: nn.Module, text: str) -> None:
    with pytest.raises(UserError, match=text) as caught:
        rehearsed(model)
    assert isinstance(caught.value.__cause__, (IndexError, RuntimeError))


def test_a_size_that_contradicts_the_data_is_named() -> None:
    parts = split(table()), nn.Linear(7, 3), Supervised(), nn.CrossEntropyLoss(), Engine("cpu")
    with pytest.raises(UserError, match="(?s)^model.in_features: this contradicts the data") as caught:
        rehearse(*parts, {"_target_": "torch.nn.Linear", "in_features": 7, "num_classes": 3})
    assert (caught.value.received, caught.value.expected) == (7, "in_features=4, as the data has it")
    assert caught.value.fix == "leave model.in_features out: the model gets it from the data"
    assert isinstance(caught.value.__cause__, RuntimeError)
    rehearse(split(table()), nn.Linear(4, 3), *parts[2:], {"in_features": 7})  # what trains passes


def test_a_loss_of_each_sample_is_refused() -> None:
    data, loss = split(table()), nn.CrossEntropyLoss(reduction="none")
    with pytest.raises(
        UserError, match=r"(?s)^loss: the loss of a batch is not one number.*received: '\(2,\) float32'"
    ):
        rehearse(data, nn.Linear(4, 3), Supervised(), loss, Engine("cpu"))


def binary() -> TensorData:
    info = DataInfo("binary", (4,), 1, ("yes",))
    return TensorData(torch.randn(24, 4), (torch.arange(24) % 2).float(), info)


@pytest.mark.parametrize(
    ("data", "model", "loss", "text"),
    [
        (table, nn.Linear(4, 3), nn.CrossEntropyLoss(torch.ones(4)), r"loss\.weight: .*\n.*expected: 3 numbers"),
        (table, nn.Linear(4, 3), nn.MultiMarginLoss(weight=torch.ones(2)), r"loss\.weight: .*\n.*expected: 3 numbers"),
        # As many as there are samples in the first batch, over which PyTorch would spread them.
        (binary, Flat(4, 1), nn.BCEWithLogitsLoss(pos_weight=torch.ones(2)), r"loss\.pos_weight: .*\n.*: 1 number,"),
        (table, nn.Linear(4, 2), nn.CrossEntropyLoss(torch.ones(3)), r"^model: "),
    ],
)
def test_weights_of_a_loss_that_fit_no_output_are_named(
    data: Callable[[], TensorData], model: nn.Module, loss: nn.Module, text: str
) -> None:
    with pytest.raises(UserError, match=text):
        rehearse(split(data()), model, Supervised(), loss, Engine("cpu"))


def test_weights_of_a_loss_that_fit_pass() -> None:
    for data, model, loss in (
        (table(), nn.Linear(4, 3), nn.CrossEntropyLoss(torch.ones(3))),
        (table(), nn.Linear(4, 5), nn.CrossEntropyLoss(torch.ones(5))),
        (binary(), Flat(4, 1), nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0))),
    ):
        rehearse(split(data), model, Supervised(), loss, Engine("cpu"))


def test_the_line_of_the_user_is_named() -> None:
    class Broken(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).view(-1, 7)

    with pytest.raises(UserError, match=r"at: .*test_dry_run\.py:\d+"):
        rehearsed(Broken(4, 3))


@pytest.mark.parametrize(
    ("give", "text"),
    [
        (lambda y: (y, y), r"(?s)^model: the model gives a tuple.*\(\(2, 3\) float32, .*fix: .*trainer\.task"),
        (lambda y: {"scores": y}, "the model gives a dict"),
        (lambda y: None, "the model gives no tensor"),
    ],
)
def test_a_model_that_gives_more_than_a_tensor(give: Callable[[Tensor], Any], text: str) -> None:
    class Several(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return give(super().forward(x))

    with pytest.raises(UserError, match=text):
        rehearsed(Several(4, 3))


def test_the_last_class_is_among_the_samples() -> None:
    for seed in range(3):
        with pytest.raises(UserError, match="Target 2 is out of bounds"):
            rehearsed(nn.Linear(4, 2), seed=seed)


def test_a_task_of_the_users_with_dict_batches_passes() -> None:
    rehearsed(nn.Linear(4, 2), Pairs(), task=Siamese())


def test_a_task_that_fails_is_named() -> None:
    class Wrong(Siamese):
        def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
            model(batch["left"])
            return StepOutput(batch["nothing"])

    with pytest.raises(UserError, match=r"^trainer\.task: [\s\S]*KeyError: 'nothing'"):
        rehearsed(nn.Linear(4, 2), Pairs(), task=Wrong())


class OnlyIn(nn.Linear):
    """A network that fails outside of training mode, or on small batches, or where there are no gradients."""

    def __init__(self, need: str) -> None:
        super().__init__(4, 3)
        self.need = need

    def forward(self, x: Tensor) -> Tensor:
        met = {"training": self.training, "batch": len(x) == 8, "gradients": torch.is_grad_enabled(), "copy": True}
        if not met[self.need]:
            raise RuntimeError(self.need)
        return super().forward(x)

    def __deepcopy__(self, memo: Any) -> OnlyIn:
        if self.need == "copy":
            raise TypeError("cannot be copied")
        other = OnlyIn(self.need)
        other.load_state_dict(self.state_dict())
        return other


def test_what_would_train_is_never_refused() -> None:
    for need in ("training", "batch", "gradients", "copy"):
        rehearsed(OnlyIn(need))
    rehearsed(nn.LazyLinear(3))


def test_nothing_is_left_behind() -> None:
    class Busy(nn.Module):
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 3)
            self.norm.eval()

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.head(self.norm(x)) + torch.rand(1) + random.random() + np.random.rand()

    model, dataset = Busy(), Samples()
    data, engine = split(dataset), Engine("cpu")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    states = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)
    rehearse(data, model, Supervised(), LOSS, engine)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert (model.calls, model.training, model.norm.training, dataset.file) == (0, True, False, None)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert states[2]["state"]["pos"] == np.random.get_state(legacy=False)["state"]["pos"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"error": KeyError("no such key")}, r"data\.dataset: sample \d+ .*KeyError.*[\s\S]*test_dry_run\.py:\d+"),
        ({"x": torch.full((4,), torch.nan)}, r"Samples: row \d+ of the inputs holds nan"),
    ],
)
def test_samples_that_cannot_be_used_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        rehearsed(nn.Linear(4, 3), Samples(**changes))


def test_a_transform_that_fails_is_refused() -> None:
    def broken(x: Tensor, _random: Any) -> Tensor:
        return x.view(7, 7)

    with pytest.raises(UserError, match=r"^data: a first training batch cannot be made: RuntimeError[\s\S]*at:"):
        rehearsed(nn.Linear(4, 3), augment=[broken])


def test_a_data_set_that_only_workers_can_read_passes() -> None:
    class InWorkers(Samples):
        def __getitem__(self, row: int) -> Any:
            if torch.utils.data.get_worker_info() is None:
                raise RuntimeError("not in a worker")
            return super().__getitem__(row)

    rehearsed(nn.Linear(4, 3), InWorkers(), num_workers=1)


def test_two_samples_of_one_class_are_no_word_about_metrics(
    cli: Cli, project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [f"{place % 7},{'ab'[place % 2]},train" for place in range(40)]
    rows += [f"{place % 7},b,{split}" for split in ("val", "test") for place in range(3)]
    rows += [f"{place % 7},a,{split}" for split in ("val", "test") for place in range(9)]
    (project / "t.csv").write_text("\n".join(["x,kind,part", *rows]))
    table = ["data=table", "data.dataset.path=t.csv", "data.dataset.target=kind", "data.dataset.split_column=part"]
    done = cli("train", *table, "data.split.by=file", "model=mlp", "trainer.epochs=1")
    assert done.code == 0, done.err
    assert "is not defined" not in caplog.text
