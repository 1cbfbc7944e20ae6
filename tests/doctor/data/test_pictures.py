"""Pictures: channels in the wrong place, channels that say nothing, bytes that overflowed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from lightkit.data import TensorData
from lightkit.doctor.data.features import check_pictures as check
from tests.doctor.data.planted import Examine, bad
from tests.doctor.test_baselines import examined_run

CODE = '''
import torch
from torch import nn
from lightkit.data import TensorData
from tests.doctor.data.test_pictures import smooth


def data():
    x = smooth(120).movedim(1, 3)
    return TensorData(x, (x[:, :8].mean((1, 2, 3)) > x[:, 8:].mean((1, 2, 3))).long())


class Plain(nn.Module):
    """Takes the pictures as they come."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Conv2d(16, 8, 3, padding=1), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.first(x).mean((2, 3)))


class Turned(Plain):
    """Puts the channels first by itself."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x):
        return super().forward(x.movedim(3, 1))
'''


def smooth(rows: int = 200, channels: int = 3) -> Tensor:
    """Pictures of 16 x 16 pixels without sharp edges, 0 to 255, with some noise."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(rows, channels, 4, 4, generator=generator)
    wide = torch.nn.functional.interpolate(coarse, (16, 16), mode="bicubic")
    return (128 + 60 * wide + 2 * torch.randn(wide.shape, generator=generator)).clamp(0, 255)


def drawn(x: Tensor) -> TensorData:
    return TensorData(x, torch.arange(len(x)) % 3)


def page(noise: float) -> Tensor:
    """Black strokes on white paper, as it was scanned."""
    generator = torch.Generator().manual_seed(0)
    strokes = torch.rand(200, 1, 16, 16, generator=generator) < 0.3
    ink = torch.where(strokes, 8.0, 247.0)
    return (ink + noise * torch.randn(ink.shape, generator=generator)).clamp(0, 255)


@pytest.mark.parametrize("change", ["brighter", "steeper", "shifted"])
def test_bytes_that_overflowed_are_told(change: str, examine: Examine) -> None:
    x = {"brighter": smooth() + 90, "steeper": smooth() * 1.7, "shifted": smooth() - 128}[change]
    (found,) = bad(examine(drawn(x.round() % 256), "pictures", normalize="image"))
    assert found.check == "overflow"
    assert "float" in found.fix


@pytest.mark.parametrize("kind", ["smooth", "page", "scanned", "noise", "bright", "binary"])
def test_edges_are_no_overflow(kind: str, examine: Examine) -> None:
    x = {
        "smooth": smooth(),
        "page": page(0.0),
        "scanned": page(4.0),
        "noise": 255 * torch.rand(200, 1, 16, 16, generator=torch.Generator().manual_seed(1)),
        "bright": (smooth() + 90).clamp(0, 255),
        "binary": (smooth(channels=1) > 128).float(),
    }[kind]
    assert not bad(examine(drawn(x), "pictures"))


def test_a_channel_that_says_nothing_is_named(examine: Examine) -> None:
    x = smooth()
    x[:, 1] = 7
    (found,) = bad(examine(drawn(x), "pictures", normalize="image"))
    assert (found.check, found.numbers["channels"]) == ("constant channel", [1])


@pytest.mark.parametrize("kind", ["places", "grey", "one"])
def test_channels_that_are_as_usual_are_no_fault(kind: str, examine: Examine) -> None:
    x = smooth(channels=1)
    x = {
        "grey": x.repeat(1, 3, 1, 1),
        "one": x,
        "places": torch.cat([smooth(), torch.arange(16.0).expand(200, 1, 16, 16)], 1),
    }[kind]
    assert not bad(examine(drawn(x), "pictures"))


@pytest.mark.parametrize(("network", "told"), [("Plain", ["layout"]), ("Turned", [])])
def test_rows_taken_for_channels_are_told_where_the_network_does_so(
    network: str, told: list[str], project: Path
) -> None:
    (project / "mine.py").write_text(CODE)
    custom = ["data=custom", "data.dataset._target_=mine.data", "loss=cross_entropy", "metrics=multiclass"]
    with examined_run(*custom, "model=custom", f"model._target_=mine.{network}") as run:
        assert [each.check for each in bad([*check(run)])] == told
