"""The pixels of an image as Pillow gives them: decoded, cut to the middle square, scaled, in [0, 1].

PyTorch scales levels in the same way, up to rounding, and several times faster, where the cut is at whole pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

if TYPE_CHECKING:
    from PIL.Image import Image


Change = Callable[[Tensor], Tensor] | None
"""What changes the levels of a picture, `(channels, height, width)` uint8 (float32 where it is grey of 16 bits)."""


def image_to_tensor(image: Image, *, size: int | None, channels: int, change: Change = None) -> Tensor:
    """Convert a Pillow image to `(channels, size, size)` in [0, 1].

    Args:
        image: The image.
        size: Pixels a side; None keeps its own.
        channels: 3 for colour, 1 for grey.
        change: Changes its levels once they are cut and scaled, or whole where `size` is None; None leaves them.
    """
    from PIL import Image

    is_deep = image.mode.startswith("I")  # grey of 16 bits, which Pillow would cut off above 255
    if is_deep:
        image = Image.fromarray(np.asarray(image).astype(np.float32))
    mode = image.mode if is_deep else "RGB" if channels == 3 else "L"
    # PyTorch cannot cut at half a pixel, and does not know pixels beyond the cut that are for more than one line.
    exact = size is None or (min(image.size) >= size > 1 and sum(image.size) % 2 == 0)
    if exact and image.mode == mode == "RGB":
        decoded = _decoded(image)
        levels = (decoded if size is None else _scaled(decoded, size)).numpy()
    else:
        if size is not None:
            # Palettes and 1-bit images cannot be interpolated.
            image = middle(image if is_deep or image.mode in ("RGB", "L") else image.convert("RGB"), size)
        levels = np.asarray(image if image.mode == mode else image.convert(mode))
        levels = levels.transpose(2, 0, 1) if levels.ndim == 3 else levels[None]
    if change is not None:
        levels = change(torch.from_numpy(np.require(levels, requirements="W"))).numpy()
    pixels = np.empty((channels, *levels.shape[1:]), np.float32)
    return torch.from_numpy(np.divide(levels, np.float32(65535 if is_deep else 255), out=pixels, dtype=np.float32))


def _decoded(image: Any) -> Tensor:
    """Return the levels of an image in red, green and blue, `(3, H, W)` uint8.

    The decoder in torchvision gives the pixels of Pillow's, and is faster. Where a version has none, Pillow decodes.
    """
    if image.format == "JPEG" and image.tile and not image.decoderconfig:
        with suppress(
            ImportError, AttributeError, RuntimeError
        ):  # of files that are damaged, Pillow says what is wrong
            import_module("torchvision.io")  # takes long the first time
            image.fp.seek(0)
            content = torch.frombuffer(bytearray(image.fp.read()), dtype=torch.uint8)
            return torch.ops.image.decode_jpeg(content, 0, False)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def _scaled(levels: Tensor, size: int) -> Tensor:
    """Cut the middle square out of levels `(3, H, W)` and scale it as `middle` does, up to rounding.

    Pillow mixes pixels from beyond the cut into the first and the last line, so these are made anew.
    """
    height, width = levels.shape[1:]
    side, beyond, is_wide = min(height, width), abs(height - width) // 2, width > height
    top, left = (0, beyond) if is_wide else (beyond, 0)
    shrink = partial(interpolate, mode="bilinear", antialias=True)
    square = shrink(levels[None, :, top : top + side, left : left + side], (size, size))[0]
    if beyond:
        levels, lines = (levels, square) if is_wide else (levels.mT, square.mT)
        places, weights = _at_the_cut(side, beyond, size)
        mixed = (levels.index_select(2, places).float() @ weights + 0.5).to(torch.uint8)
        lines[..., :: size - 1] = shrink(mixed[None], (size, 2))[0]
    return square


@cache
def _at_the_cut(side: int, beyond: int, size: int) -> tuple[Tensor, Tensor]:
    """Return the places of the pixels that the first and the last line are mixed from, `(K,)`, and weights `(K, 2)`."""
    scale = side / size
    near = torch.arange(max(-beyond, math.floor(0.5 - scale / 2)), math.floor(0.5 + 1.5 * scale))
    weights = (1 - (near + 0.5 - scale / 2).abs() / scale).clamp_min(0)[:, None]
    return torch.cat([beyond + near, beyond + side - 1 - near]), torch.block_diag(*[weights / weights.sum()] * 2)


def middle(image: Image, size: int, *, resample: int = 2) -> Image:
    """Cut the middle square out of a Pillow image, and scale it."""
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return image.resize((size, size), resample=resample, box=(left, top, left + side, top + side))
