"""Data sets of many kinds of samples, a network and a task for all of them; tests copy this file into a project."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchvision import tv_tensors

from lightkit.data import DataInfo
from lightkit.trainer import StepOutput, Task

ROWS = 60


def image(row: int) -> Tensor:
    return torch.full((3, 4, 4), row / ROWS)


@dataclass(frozen=True)
class Item:
    image: Tensor
    label: int
    name: str
    weight: float = 1.0
    mask: Tensor | None = None
    computed: float = field(init=False, default=0.5)


class Named(NamedTuple):
    image: Tensor
    label: int


class Dicts:
    classes = ("a", "b")
    odd: dict[int, Any] = {}

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Any:
        return self.odd[row] if row in self.odd else self.sample(row)

    def sample(self, row: int) -> Any:
        nested = {"ones": torch.ones(2), "numbers": [1, 2.5]}
        return {"image": image(row), "label": row % 2, "name": f"n{row}", "nested": nested}


class Tuples(Dicts):
    def sample(self, row: int) -> Any:
        return image(row), row % 2, f"n{row}"


class Dataclasses(Dicts):
    def sample(self, row: int) -> Any:
        return Item(image(row), row % 2, f"n{row}")


class NamedTuples(Dicts):
    def sample(self, row: int) -> Any:
        return Named(image(row), row % 2)


class Targets(Dicts):
    def sample(self, row: int) -> Any:
        return image(row), {"label": row % 2, "boxes": torch.ones(1, 4)}


class TvTensors(Dicts):
    def sample(self, row: int) -> Any:
        mask = tv_tensors.Mask(torch.ones(4, 4))
        return {"image": tv_tensors.Image(image(row)), "mask": mask, "label": row % 2}


class Padded(Dicts):
    """Samples of unlike lengths, which become batches with masks and lengths."""

    def sample(self, row: int) -> Any:
        return {"tokens": torch.arange(1 + row % 3) + 1, "label": row % 2}

    def collate_fn(self, samples: list[Any]) -> Any:
        tokens = nn.utils.rnn.pad_sequence([sample["tokens"] for sample in samples], batch_first=True)
        label = torch.tensor([sample["label"] for sample in samples])
        return {"tokens": tokens, "mask": tokens > 0, "length": (tokens > 0).sum(1), "label": label}


class Told(Dataclasses):
    """Which says what its task compares outputs with."""

    info = DataInfo("multiclass", (), 2, ("a", "b"))


class Listed(Dicts):
    """Samples of unlike shapes for `data.collate`, as those of detectors."""

    def sample(self, row: int) -> Any:
        boxes = tv_tensors.BoundingBoxes(torch.ones(1 + row % 3, 4), format="XYXY", canvas_size=(4, 4))
        return image(row)[:, : 2 + row % 3], {"boxes": boxes, "label": row % 2}


class Odd(Dicts):
    """Of which one sample has no label."""

    odd = {33: {"image": image(33), "name": "n33", "nested": {"ones": torch.ones(2), "numbers": [1, 2.5]}}}


class Ranks(Dicts):
    odd = {33: {**Dicts().sample(33), "image": torch.ones(4, 4)}}


class Kind(Dicts):
    odd = {33: (image(33), 1)}


class Net(nn.Module):
    def __init__(self, num_classes: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Dropout(dropout), nn.Linear(3, num_classes))

    def forward(self, x: Tensor) -> Any:
        return self.layers(x)


def taken(batch: Any) -> tuple[Tensor, Tensor]:
    """Return features `(B, 3)` and labels of a batch of any of these kinds."""
    if isinstance(batch, dict) and "tokens" in batch:
        return ((batch["tokens"] * batch["mask"]).sum(1) / batch["length"])[:, None].repeat(1, 3), batch["label"]
    if isinstance(batch, dict):
        return batch["image"].mean((2, 3)), batch["label"]
    if isinstance(batch, (Item, Named)):
        assert not isinstance(batch, Item) or (len(batch.name) == len(batch.label) and batch.mask is None)
        return batch.image.mean((2, 3)), batch.label
    if isinstance(batch[0], list):
        found = [each.mean((1, 2)) for each in batch[0]], [each["label"] for each in batch[1]]
        return torch.stack(found[0]), torch.tensor(found[1])
    return batch[0].mean((2, 3)), batch[1] if len(batch) == 3 else batch[1]["label"]


class AnyKind(Task):
    def step(self, model: Any, batch: Any, criterion: Any) -> StepOutput:
        x, y = taken(batch)
        assert x.dtype != torch.float64
        outputs = model(x)
        return StepOutput(criterion(outputs, y), outputs, y)


class Labels:
    """Makes pairs of dicts."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __call__(self, samples: list[Any]) -> Any:
        return {"image": torch.stack([each["image"] for each in samples]), "label": numbers(samples, self.key)}


def numbers(samples: list[Any], key: str = "label") -> Tensor:
    return torch.tensor([each[key] for each in samples])
