from __future__ import annotations

import pytest
import torch

from lightkit.models import ResNet


@pytest.mark.thorough
@pytest.mark.parametrize("depth", [18, 34, 50])
def test_equals_torchvision(depth):
    models = pytest.importorskip("torchvision.models")
    theirs = models.get_model(f"resnet{depth}", num_classes=7).eval()
    ours = ResNet((3, 96, 96), 7, depth=depth).eval()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))


@pytest.mark.parametrize(("shape", "large"), [((3, 32, 32), False), ((3, 96, 96), True), ((3, 224, 64), False)])
def test_the_stem_follows_the_image_size(shape, large):
    model = ResNet(shape, 3, width=4)
    assert isinstance(model.maxpool, torch.nn.MaxPool2d) == large
    assert model.conv1.kernel_size == ((7, 7) if large else (3, 3))


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 33, 20), (2, 100, 97)])
@pytest.mark.parametrize("stem", ["auto", "cifar", "imagenet"])
def test_any_image_size(shape, stem):
    model = ResNet(shape, 3, width=4, stem=stem, depth=50, dropout=0.1)
    assert model(torch.randn(2, *shape)).shape == (2, 3)


def test_zero_init_starts_the_branches_at_nothing():
    model = ResNet((3, 8, 8), 3, width=4, zero_init=True).eval()
    x = torch.rand(2, 4, 8, 8)
    assert torch.equal(model.layer1(x), x)
