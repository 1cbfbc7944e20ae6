"""Networks, a data set and a metric with one mistake each, as people make them."""

from __future__ import annotations

import itertools
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import Metric


class Plain(nn.Module):
    """A small network without a mistake; the others change one thing."""

    def __init__(self, in_features: int, num_classes: int, width: int = 64) -> None:
        super().__init__()
        self.hidden = nn.Linear(in_features, width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.hidden(x.flatten(1))))


class LoudHead(Plain):
    """The output layer begins far too large."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, num_classes)
        with torch.no_grad():
            self.head.weight.mul_(200)


class Softmaxed(Plain):
    """Applies the softmax that cross entropy applies again."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).softmax(1)


class Sigmoided(Plain):
    """Applies the sigmoid that the loss applies again."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sigmoid()


class CutOff(Plain):
    """The gradient does not reach the first layer."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.hidden(x.flatten(1)).detach()))


class Forgotten(Plain):
    """A layer that forward does not use."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, num_classes)
        self.second = nn.Linear(64, 64)


class AlwaysDropping(Plain):
    """Dropout goes on in evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(F.relu(self.hidden(x.flatten(1))), 0.5))


class AmongNeighbours(Plain):
    """Norms a sample by the batch that it comes in, also in evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x.flatten(1))
        return self.head(F.relu((hidden - hidden.mean(0)) / (hidden.std(0, correction=0) + 1e-5)))


class Dead(Plain):
    """No unit is ever on."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, num_classes)
        nn.init.constant_(self.hidden.bias, -1000.0)


class Exploding(nn.Module):
    """Each layer gives ten times what it gets."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(in_features, 64), *(nn.Linear(64, 64) for _ in range(6))])
        self.head = nn.Linear(64, num_classes)
        with torch.no_grad():
            for layer in self.layers:
                layer.weight.mul_(20)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x / 1e9)


class Vanishing(nn.Module):
    """Many sigmoids in a row."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        sizes = [in_features, *[32] * 20]
        layers = [nn.Sequential(nn.Linear(a, b), nn.Sigmoid()) for a, b in itertools.pairwise(sizes)]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(32, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x.flatten(1)))


class Forgetful(Plain):
    """Keeps a running scale that no checkpoint has."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, num_classes)
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.scale *= 1.5
        return super().forward(x) * self.scale


class Counting(Plain):
    """Changes a buffer whenever it is called."""

    seen: Tensor

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, num_classes)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return super().forward(x)


class NotANumber(Plain):
    """Takes the root of what may be negative."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(x.flatten(1)).sqrt())


class Listed(Plain):
    """Keeps layers in a plain list."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, num_classes)
        self.more = [nn.Linear(64, 64), nn.ReLU()]

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.hidden(x.flatten(1)))
        for layer in self.more:
            hidden = layer(hidden)
        return self.head(hidden)


class Choosing(Plain):
    """Gives classes in place of logits."""

    def forward(self, x: Tensor) -> Tensor:
        return F.one_hot(super().forward(x).argmax(1), self.head.out_features).float()


class AddingInPlace(Plain):
    """Changes what the backward pass needs."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x.flatten(1)).sigmoid()
        hidden += 1
        return self.head(hidden)


class Normed(Plain):
    """Norms a batch, so that one of a single sample cannot be trained."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, num_classes)
        self.hidden = nn.Sequential(nn.Linear(in_features, 64), nn.BatchNorm1d(64))


class Frozen(Plain):
    """Trains its last layer only."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, num_classes)
        self.hidden.requires_grad_(False)


class Overwriting(Plain):
    """Writes to its input."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(2.0))


class MadeInForward(Plain):
    """Makes a norm anew at each call."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x.flatten(1))
        return self.head(F.relu(nn.LayerNorm(hidden.shape[1])(hidden)))


class Twins(Plain):
    """Two parameters on one memory."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, num_classes)
        self.middle = nn.Linear(64, 64)
        self.other = nn.Linear(64, 64)
        self.other.weight = nn.Parameter(self.middle.weight.data.t())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.other(F.relu(self.middle(F.relu(self.hidden(x.flatten(1))))))))


class Tied(Twins):
    """The same, tied as one parameter."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, num_classes)
        self.other.weight = self.middle.weight


class Constant(Plain):
    """Multiplies by a plain tensor."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, num_classes)
        self.scale = torch.full((64,), 2.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.hidden(x.flatten(1))) * self.scale)


class Buffered(Constant):
    """The same with a buffer, and what is kept of the last batch without its graph."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, num_classes)
        del self.scale
        self.register_buffer("scale", torch.full((64,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = super().forward(x).detach()
        return super().forward(x)


class FrozenNorm(Plain):
    """A norm that does not train among layers that do."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, num_classes)
        self.norm = nn.LayerNorm(in_features)
        self.norm.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x.flatten(1)))


class Remembering(Plain):
    """Uses a mean of earlier batches with the graph that it was computed by."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, num_classes)
        self.mean = 0.0

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.hidden(x.flatten(1)))
        self.mean = 0.9 * self.mean + 0.1 * hidden.mean(0)
        return self.head(hidden - self.mean)


class FailingInEvaluation(Plain):
    """Goes through training, and fails at the first validation."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and torch.is_grad_enabled() is False and len(x) > 2:
            raise KeyError("no such mode")
        return super().forward(x)


class HalfHeld(torch.optim.Adam):
    """Holds the last group's last tensor only."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__([p for group in params for p in group["params"]][-1:], lr)


class AddingUp(nn.CrossEntropyLoss):
    """Returns the sum of all losses so far."""

    total: Any = 0.0

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        self.total = self.total + super().forward(input, target).detach()
        return super().forward(input, target) + self.total


class Summed(nn.Module):
    """Adds up over the rows of a batch."""

    def forward(self, preds: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(preds, target, reduction="sum")


class TargetChanging(nn.Module):
    """Writes to the targets."""

    def forward(self, preds: Tensor, target: Tensor) -> Tensor:
        target[target > 8] = 8
        return F.cross_entropy(preds, target)


class Bounded(nn.Module):
    """A regression that ends in a function.

    Args:
        in_features: Numbers of an input.
        last: Name of the function.
    """

    def __init__(self, in_features: int, last: str) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(in_features, 16), nn.ReLU(), nn.Linear(16, 1))
        self.last = getattr(torch, last)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(x).squeeze(1))


class Columns:
    """Numbers to predict.

    Args:
        column: They come as `(1,)`.
    """

    draws = False

    def __init__(self, column: bool = False) -> None:
        self.x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
        self.y = self.x @ torch.tensor([1.0, 2.0, -1.0, 0.5])
        self.column = column

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.x[row], self.y[row : row + 1] if self.column else self.y[row]


class Peeking(nn.Module):
    """A language model that reads a text in both directions."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, 16)
        self.read = nn.GRU(16, 16, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, vocab_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.read(self.embedding(x))[0])


class MeanOfBatches(Metric):
    """Accuracy as a mean over batches, however many samples they have."""

    higher_is_better = True

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.add_state("total", torch.zeros(()), "sum")
        self.add_state("batches", torch.zeros(()), "sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        self.total += (preds.argmax(1) == target).float().mean()
        self.batches += 1

    def compute(self) -> Tensor:
        return self.total / self.batches


class Denying:
    """Draws random numbers, and says that it does not."""

    draws = False

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.targets = torch.arange(200) % 2
        self.x = torch.randn(200, 4, generator=generator) + self.targets[:, None]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.x[row] + torch.randn(4), int(self.targets[row])


class Slow:
    """Samples that take their time."""

    classes = ("no", "yes")

    def __init__(self, seconds: float = 0.004, rows: int = 160) -> None:
        self.targets = [row % 2 for row in range(rows)]
        self.seconds = seconds

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        time.sleep(self.seconds)
        return torch.full((4,), float(self.targets[row])), self.targets[row]
