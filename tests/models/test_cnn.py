from __future__ import annotations

import pytest
import torch

from lightkit.models import CNN


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (3, 13, 7), (2, 1, 1), (1, 1, 9)])
@pytest.mark.parametrize("pool", ["max", "avg", "stride"])
@pytest.mark.parametrize("head", ["avg", "max", "flatten"])
def test_any_image_size(shape, pool, head):
    model = CNN(shape, 5, channels=(4, 6, 8, 8), pool=pool, head=head, dropout=0.1)
    assert model(torch.randn(2, *shape)).shape == (2, 5)


def test_depth_and_channels_set_the_number_of_parameters():
    model = CNN((3, 32, 32), 4, channels=(24, 48, 80), depth=2)
    assert sum(p.numel() for p in model.parameters()) == 3 * 9 * 24 + 24 * 9 * 24 + 24 * 9 * 48 + 48 * 9 * 48 + (
        48 * 9 * 80 + 80 * 9 * 80 + 2 * 2 * (24 + 48 + 80) + 80 * 4 + 4
    )
    assert model.stages[1].conv1.weight.shape == (48, 48, 3, 3)
