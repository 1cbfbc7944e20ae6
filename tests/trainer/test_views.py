"""Views of the same sample are drawn together in training; evaluations see samples as they are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError
from lightkit.losses import SupervisedContrastive
from lightkit.trainer import TwoViews
from tests.conftest import Cli

X, LABELS = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 0, 1, 1, 2, 2])


def test_labels_count_in_evaluations_only() -> None:
    model, loss = nn.Linear(4, 3), SupervisedContrastive()
    step = TwoViews().step(model, (tuple(X), LABELS), loss)
    assert torch.equal(step.loss, loss(model(torch.cat([*X])), torch.arange(6).repeat(2)))
    assert step.preds is None, "metrics have nothing to say of views"
    plain = TwoViews().step(model.eval(), (X[0], LABELS), loss)
    assert torch.equal(plain.loss, loss(model(X[0]), LABELS))
    assert torch.equal(plain.preds, model(X[0]))


def test_training_without_views_says_what_makes_them() -> None:
    with pytest.raises(UserError, match=r"(?s)data.augment.*transforms.Views"):
        TwoViews().step(nn.Linear(4, 3), (X[0], LABELS), SupervisedContrastive())


def test_embeddings_are_no_classes(cli: Cli) -> None:
    run = ("data=wine", "loss=nt_xent", "metrics=retrieval", "trainer.task._target_=lightkit.trainer.TwoViews")
    noise = "{_target_: lightkit.data.transforms.GaussianNoise, deviation: 0.2}"
    views = f"data.augment=[{{_target_: lightkit.data.transforms.Views, augment: [{noise}]}}]"
    done = cli("train", *run, views, "model.num_classes=5", "trainer.epochs=1", "hydra.run.dir=run")
    assert done.code == 0, done.err
    printed = cli("predict", "run", "--output", "-").out.splitlines()
    assert (printed[0], printed[1].count(",")) == ("row,target,prediction", 6)
    together = cli(
        "train", *run, views, "model.num_classes=5", "trainer.epochs=1", "ensemble=voting", "ensemble.size=2"
    )
    assert together.code == 0, "views are no pairs of tensors, so members train one after the other"
