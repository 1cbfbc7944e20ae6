"""What the loss is given: proofs that targets reach the network, right and wrong answers, padding."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from lightkit.doctor.baselines import check as compare
from lightkit.doctor.training import outputs
from lightkit.doctor.training.loss import check_answers as check
from tests.doctor.test_baselines import examined_run

CODE = '''
import torch
import torch.nn.functional as F
from torch import nn
from lightkit.data import DataInfo
from lightkit.data.tables import digits, wine
from lightkit.trainer.tasks import StepOutput, Supervised


class Told(Supervised):
    """Hands the targets to the network, as another column."""

    def step(self, model, batch, criterion):
        x, y = batch
        return super().step(model, (x.index_copy(1, torch.tensor([0]), y[:, None].float()), y), criterion)


class Rebuilt(Supervised):
    """Gives the input back; its samples have labels, which it hands to the network as a condition."""

    def step(self, model, batch, criterion):
        x, y = batch
        out = model(x + y[:, None].float())
        return StepOutput(criterion(out, x), out, x)


class Own(Supervised):
    """The same with a loss of its own."""

    def step(self, model, batch, criterion):
        out = model(batch[0])
        return StepOutput(F.mse_loss(out, batch[0]), out, batch[0])


class Words:
    """Sequences of 20 tokens: the most likely one depends on the position, and the next one on the token before."""

    info = DataInfo("language_modeling", (20,), 12, vocab_size=12, context_length=20)

    def __init__(self, padded=False, marked=False):
        draw = torch.Generator().manual_seed(0)
        self.x = torch.randint(1, 12, (200, 20), generator=draw)
        self.y = (self.x + torch.arange(20) // 5) % 11 + 1
        if padded:
            ends = torch.randint(4, 20, (200, 1), generator=draw)
            outside = torch.arange(20) >= ends
            self.x, self.y = self.x.masked_fill(outside, 0), self.y.masked_fill(outside, -100 if marked else 0)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return self.x[row], self.y[row]


class Places(Words):
    """What comes is told by the position more than by the token."""

    def __init__(self):
        super().__init__()
        places = torch.arange(20)
        self.y = torch.where(places < 4, self.y, places % 11 + 1)


class Decoder(nn.Module):
    """Gives outputs for the tokens of positions."""

    def __init__(self, vocab_size=12):
        super().__init__()
        self.embed, self.places = nn.Embedding(vocab_size, 16), nn.Parameter(torch.randn(20, 16))
        self.head = nn.Linear(16, vocab_size)

    def forward(self, x):
        return self.head(self.embed(x) + self.places)


class Forced(Supervised):
    """Gives the decoder what it should have said at the position before."""

    now = False

    def step(self, model, batch, criterion):
        x, y = batch
        before = y if self.now else F.pad(y[:, :-1], (1, 0))
        out = model(torch.where(torch.arange(20) % 2 == 0, x, before.clamp(min=0)))
        return StepOutput(criterion(out, y), out, y)


class ForcedNow(Forced):
    """Gives it what it is to say now."""

    now = True


def unequal():
    data = wine()
    data.y = (data.y == 0).long() * (torch.arange(len(data)) % 5 == 0)
    return data


class Negative(nn.CrossEntropyLoss):
    """Lies below 0, as that of a density does."""

    def forward(self, out, y):
        return super().forward(out, y) - 5


class Turned(nn.CrossEntropyLoss):
    """The sign is wrong."""

    def forward(self, out, y):
        return -super().forward(out, y)
'''
WINE = ["data=wine", "model=mlp", "model.hidden=[16]", "optim.lr=0.01"]
WORDS = [
    "data=custom",
    "model=custom",
    "model._target_=mine.Decoder",
    "metrics=none",
    "metrics.monitor=val/loss",
    "optim.lr=0.01",
]
PLAIN = ["loss=token_cross_entropy"]
REBUILD = ["model=mlp", "model.hidden=[16]", "model.num_classes=13", "loss=mse", "metrics=none"]
HEALTHY = {
    "class weights": [*WINE, "loss.weight=[1,20,0.1]"],
    "smoothed labels": [*WINE, "loss.label_smoothing=0.3"],
    "a loss below 0": [*WINE, "loss=custom", "loss._target_=mine.Negative"],
    "nearly all alike": [
        *WINE[1:],
        "loss=cross_entropy",
        "metrics=multiclass",
        "data=custom",
        "data.dataset._target_=mine.unequal",
    ],
    "an autoencoder with labels": ["data=wine", *REBUILD, "trainer.task._target_=mine.Rebuilt"],
    "an autoencoder with a loss of its own": ["data=wine", *REBUILD, "trainer.task._target_=mine.Own"],
    "positions that tell": [*WORDS, *PLAIN, "data.dataset._target_=mine.Places"],
    "what was said before": [*WORDS, *PLAIN, "data.dataset._target_=mine.Words", "trainer.task._target_=mine.Forced"],
    "padding that does not count": [
        *WORDS,
        *PLAIN,
        "data.dataset._target_=mine.Words",
        "+data.dataset.padded=true",
        "+data.dataset.marked=true",
    ],
}
FAULTS = {
    "targets as a column": ([*WINE, "trainer.task._target_=mine.Told"], "shuffled labels"),
    "what is to be said now": (
        [*WORDS, *PLAIN, "data.dataset._target_=mine.Words", "trainer.task._target_=mine.ForcedNow"],
        "shuffled labels",
    ),
    "a wrong sign": ([*WINE, "loss=custom", "loss._target_=mine.Turned"], "sign of the loss"),
    "padding that counts": (
        [*WORDS, *PLAIN, "data.dataset._target_=mine.Words", "+data.dataset.padded=true"],
        "padding",
    ),
}


@pytest.fixture(autouse=True)
def code(project: Path) -> None:
    (project / "mine.py").write_text(CODE)


def said(overrides: Iterable[str]) -> list[tuple[str, str, str]]:
    with examined_run(*overrides) as run:
        return [(each.check, each.status, each.measured) for each in (*outputs.check(run), *check(run), *compare(run))]


@pytest.mark.parametrize("name", HEALTHY)
def test_nobody_healthy_is_accused(name: str) -> None:
    found = said(HEALTHY[name])
    assert not [each for each in found if each[1] in ("error", "warning")], found


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_has_its_proof(name: str) -> None:
    overrides, check_name = FAULTS[name]
    found = said(overrides)
    assert [each[0] for each in found if each[1] in ("error", "warning")] == [check_name], found
