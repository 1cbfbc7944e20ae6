"""Pixels of images beside those of Pillow."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.data import images, pixels

Image = pytest.importorskip("PIL.Image")


@pytest.mark.parametrize(("width", "height", "size"), [
    (48, 30, 24), (30, 48, 24), (33, 35, 32), (96, 24, 7), (24, 24, 24), (40, 31, 24), (9, 7, 16), (30, 10, 1),
])  # fmt: skip
def test_pixels_are_scaled_as_pillow_does_up_to_rounding(width: int, height: int, size: int) -> None:
    levels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image = pixels.image_to_tensor(Image.fromarray(levels), size=size, channels=3) * 255
    pillows = torch.from_numpy(np.array(pixels.middle(Image.fromarray(levels), size))).permute(2, 0, 1)
    assert float((image - pillows).abs().max()) < 1.01


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("without", [False, True])
def test_pixels_of_jpeg_files_are_those_of_pillow(
    tmp_path: Path, mode: str, without: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "0.jpg"
    for options in ({"quality": 60}, {"quality": 95, "subsampling": 0}, {"progressive": True}):
        levels = np.random.default_rng(0).integers(0, 256, (37, 50, 3), dtype=np.uint8)
        Image.fromarray(levels).convert(mode).save(file, **options)
        if without:
            monkeypatch.setitem(sys.modules, "torchvision.io", None)
        image = images.read_image(file, size=None, channels=3)
        pillows = torch.from_numpy(np.array(Image.open(file).convert("RGB")))
        assert torch.equal((image * 255).round().byte(), pillows.permute(2, 0, 1))
    file.write_bytes(file.read_bytes()[:900])
    with pytest.raises(UserError, match="image file is truncated"):
        images.read_image(file, size=None, channels=3)
