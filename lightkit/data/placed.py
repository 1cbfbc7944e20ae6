"""What lies in pictures, as masks or boxes, and has to move with them.

Shapes in this file: B samples, C channels, H × W pixels, N boxes of a picture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.common.failures import DEBUG, in_short, is_dead_worker, is_out_of_memory, user_frame

PLACED = ("segmentation", "detection")
"""Kinds of target that lie in pictures."""
SIDES = ("left", "top", "right", "bottom")
"""Of a box, in the order in which it has them."""
_SMALLEST = 192
"""Pixels below which a picture is enlarged so that what lies in it can be seen."""
_SURE = 0.5
"""Score from which on a box counts as found where it is drawn."""


def is_dense(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Tell whether targets have a value for each place of inputs `(C, ...)`, such as for each pixel of a picture.

    Args:
        shape: Shape of one input.
        target: Shape of one target.
    """
    return len(target) > 0 and tuple(target) == tuple(shape[1:])


def lies_within(x: Any, y: Any) -> bool:
    """Tell whether the targets of a batch lie in its pictures: as masks `(B, H, W)`, or as boxes in mappings."""
    if isinstance(y, Tensor):
        return y.ndim == 3 and not y.is_floating_point() and is_dense(x.shape[1:], y.shape[1:])
    each = y[0] if isinstance(y, (list, tuple)) and len(y) > 0 else None
    return isinstance(each, Mapping) and {"boxes", "labels"} <= each.keys()


def box_fault(target: Mapping[str, Tensor], classes: int, size: Sequence[float] = (inf, inf)) -> str:
    """Say what is wrong with the boxes of a picture; empty where nothing is.

    Args:
        target: `boxes` `(N, 4)`, left, top, right, bottom, and `labels` `(N,)`.
        classes: How many there are, the background among them.
        size: Height and width of the picture, as far as they are known.
    """
    boxes, labels = target["boxes"], target["labels"]
    whole = boxes.isfinite().all(1) & (boxes[:, 2:] > boxes[:, :2]).all(1)
    flat, wrong = boxes[~whole], labels[(labels < 1) | (labels >= classes)]
    away = boxes[(boxes[:, 2:] <= 0).any(1) | (boxes[:, :2] >= boxes.new_tensor([size[1], size[0]])).any(1)]
    if len(flat):
        return f"a box without an area, or an endless one: {flat[0].tolist()}"
    if len(away):
        return f"a box that lies outside of the picture: {away[0].tolist()}"
    return f"a label that is no class (these are 1 to {classes - 1})" if len(wrong) else ""


def marked(image: Tensor, target: Any) -> tuple[Tensor, Any]:
    """Mark what lies in a picture in the way of torchvision: a mask, or boxes in a mapping."""
    from torchvision.tv_tensors import BoundingBoxes, Image, Mask  # takes long to import

    if isinstance(target, Tensor):
        return Image(image), Mask(target)
    boxes = BoundingBoxes(target["boxes"], format="XYXY", canvas_size=tuple(image.shape[-2:]))
    return Image(image), {**target, "boxes": boxes}


def unmarked(image: Tensor, target: Any) -> tuple[Tensor, Any]:
    """Return picture and target as plain tensors, without boxes that are less than a pixel wide or high."""
    if isinstance(target, Tensor):
        return plain(image), plain(target)
    left = (target["boxes"][:, 2:] - target["boxes"][:, :2] >= 1).all(1)
    return plain(image), {**target, **{name: plain(target[name][left]) for name in ("boxes", "labels")}}


def plain(tensor: Tensor) -> Tensor:
    """Return a tensor without a meaning, contiguous as in a batch, on which the last bits may depend."""
    return tensor.as_subclass(Tensor).contiguous()


def changed_by(transform: Callable[[Any], Any], sample: Any, key: str) -> Any:
    """Apply a transform to a sample; the result is contiguous as in a batch, on which its last bits may depend.

    Args:
        transform: Takes an input, or a pair of a picture and what lies in it.
        sample: The input, or the pair as a tuple.
        key: Configuration key of the transform, for errors.

    Raises:
        UserError: The transform raises, or gives something else.
    """
    name, paired = type(transform).__name__, isinstance(sample, tuple)
    try:
        changed: Any = transform(sample)
    except Exception as error:
        if isinstance(error, UserError) or is_out_of_memory(error) or is_dead_worker(error):
            raise
        x, pairs = (
            (sample[0], "torchvision.transforms.v2 takes pairs of picture and target") if paired else (sample, "")
        )
        what = f"{name} failed on a sample {tuple(x.shape)} {str(x.dtype)[6:]}: {in_short(error)}"
        raise UserError(what, key=key, origin=user_frame(error), fix=pairs or DEBUG) from error
    if paired and isinstance(changed, (tuple, list)) and len(changed) == 2:
        return tuple(changed)
    if paired or not isinstance(changed, Tensor):
        what = f"{name} gives no {'pair of picture and target' if paired else 'tensor'}"
        raise UserError(what, key=key, received=type(changed).__name__)
    return plain(changed)


def found_in(output: Any) -> Any:
    """Return what a model found in a picture: of outputs `(C, H, W)` the classes; of boxes those it is sure of."""
    if isinstance(output, Tensor):
        return output.argmax(0) if output.ndim == 3 else output
    sure = output["scores"] >= _SURE if "scores" in output else slice(None)
    return {name: output[name][sure] for name in ("boxes", "labels")}


def overlaid(image: Tensor, target: Any, names: Sequence[str]) -> Tensor:
    """Draw what lies in a picture over it, `(3, H, W)` uint8; small pictures are enlarged.

    Args:
        image: `(3, H, W)` uint8.
        target: A mask `(H, W)`, a mapping of `boxes` and `labels`, or None.
        names: Those of the classes; the first is not drawn.
    """
    from torchvision.utils import draw_bounding_boxes, draw_segmentation_masks  # takes long to import

    from lightkit.common.drawing import COLOURS

    scale = max(1, _SMALLEST // max(image.shape[1:]))
    image = image.repeat_interleave(scale, 1).repeat_interleave(scale, 2)
    if isinstance(target, Tensor):
        for number in filter(None, target.unique().tolist()):
            mask = (target == number).repeat_interleave(scale, 0).repeat_interleave(scale, 1)
            image = draw_segmentation_masks(image, mask, alpha=0.6, colors=COLOURS[(number - 1) % len(COLOURS)])
    elif target is not None and len(target["boxes"]):
        numbers, boxes = target["labels"].tolist(), target["boxes"] * scale
        colours = [COLOURS[(number - 1) % len(COLOURS)] for number in numbers]
        return draw_bounding_boxes(image, boxes, [names[number] for number in numbers], colours, width=2)
    return image
