"""Functions in the forms that suit many models at once: they give what they give a model alone."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.func import vmap

from lightkit.ensemble.functions import cheap_cross_entropy


@pytest.mark.parametrize("shape", [(3, 8, 5), (2, 4, 3, 6, 6)])
@pytest.mark.parametrize("ignored", [False, True])
def test_cross_entropy_by_plain_operations_gives_the_same_bits(shape: tuple[int, ...], ignored: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, requires_grad=True)
    target = torch.randint(shape[2], (*shape[:2], *shape[3:]))
    target[:, 0] = -100 if ignored else target[:, 0]
    outcomes = []
    for context in (nullcontext(), cheap_cross_entropy()):
        with context:
            losses = vmap(lambda x, y: F.cross_entropy(x, y))(x, target)
        outcomes.append((losses, *torch.autograd.grad(losses.sum(), x)))
    assert all(torch.equal(one, other) for one, other in zip(*outcomes))


def test_cross_entropy_with_options_is_what_it_is_alone() -> None:
    torch.manual_seed(0)
    x, target = torch.randn(6, 3), torch.randint(3, (6,))
    every: list[dict[str, Any]] = [{"weight": torch.tensor([1.0, 2.0, 3.0])}, {"label_smoothing": 0.1}]
    every += [{"reduction": "sum"}, {"reduction": "none"}, {"ignore_index": 1}]
    for options in every:
        expected = F.cross_entropy(x, target, **options)
        with cheap_cross_entropy():
            assert torch.allclose(F.cross_entropy(x, target, **options), expected), options
        assert torch.equal(F.cross_entropy(x, target, **options), expected)
