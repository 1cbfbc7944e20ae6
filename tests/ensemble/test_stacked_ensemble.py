"""Networks that take the predictions of others, as one module."""

from __future__ import annotations

import torch
from torch import nn

from lightkit.ensemble.stacking import Inputs, StackedEnsemble


def test_a_meta_model_sees_what_its_bases_predict() -> None:
    torch.manual_seed(0)
    bases = [nn.Linear(4, 3) for _ in range(3)]
    meta = nn.Linear(3 + 3 + 4, 3)
    inputs = Inputs([["a"], ["b0", "b1"]], True, [0.0] * 6 + [1.0] * 4, [1.0] * 6 + [2.0] * 4)
    made = StackedEnsemble(
        [*bases, meta],
        task="multiclass",
        weights=[0, 0, 0, 1],
        names=["a", "b0", "b1", "meta"],
        inputs={"meta": inputs},
    ).eval()
    x = torch.randn(5, 4)
    one, two, three = (base(x).softmax(1) for base in bases)
    expected = meta(torch.cat([one, (two + three) / 2, (x - 1) / 2], 1))
    torch.testing.assert_close(made(x).softmax(1), expected.softmax(1))


def test_members_of_two_layers_may_count_together() -> None:
    first, second = nn.Linear(4, 1), nn.Linear(1, 1)
    inputs = Inputs([["first"]], False, [0.5], [2.0])
    made = StackedEnsemble(
        [first, second], task="regression", weights=[0.25, 0.75], names=["first", "second"], inputs={"second": inputs}
    )
    x = torch.randn(5, 4)
    torch.testing.assert_close(made(x), 0.25 * first(x) + 0.75 * second((first(x) - 0.5) / 2))
    assert "scaling1" in dict(made.named_buffers())
    assert len(list(made.parameters())) == 4
