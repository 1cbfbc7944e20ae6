"""Masks and boxes that move with their pictures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2

from lightkit.common.randomness import SampleRandom
from lightkit.data import build_data
from lightkit.data.collates import listed
from lightkit.data.placed import box_fault, overlaid
from lightkit.data.prepare import Prepare, as_transforms
from lightkit.data.tensors import DataInfo
from tests.refused import refused

MOVING = [v2.RandomHorizontalFlip(), v2.RandomAffine(30, translate=(0.2, 0.2))]


class Squares:
    """Dark pictures with a bright square."""

    draws = False
    info = DataInfo("detection", (), 2, ("background", "square"), fingerprint="squares")
    collate_fn = staticmethod(listed)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, row: int) -> tuple[Tensor, Any]:
        image, box = torch.zeros(3, 32, 32 + row), [4 + row, 6, 16 + row, 18]
        image[:, box[1] : box[3], box[0] : box[2]] = 1
        return image, {"boxes": torch.tensor([box]).float(), "labels": torch.tensor([1])}


def prepared(x: Any, y: Any, *, first: int = 0) -> Any:
    return Prepare(augment=as_transforms(MOVING))((x, y), epoch=1, first=first)


def test_a_mask_moves_with_its_picture_whatever_the_batch() -> None:
    masks = torch.zeros(6, 32, 32, dtype=torch.int64)
    masks[:, 5:20, 8:18] = 1
    images = masks[:, None].float().expand(-1, 3, -1, -1)
    moved, found = prepared(images, masks)
    assert not torch.equal(found, masks)
    assert ((moved[:, 0] > 0.5) == (found == 1)).float().mean() > 0.99
    again, same = prepared(images[4:], masks[4:], first=4)
    assert torch.equal(again, moved[4:])
    assert torch.equal(same, found[4:])
    assert (type(moved), found.dtype) == (Tensor, torch.int64)


def test_boxes_move_with_their_pictures_of_unlike_sizes() -> None:
    data = build_data(dataset=Squares(), split={"val": 0.0, "test": 0.0}, batch_size=5, augment=MOVING)
    seen = 0
    for images, targets in data.train.epoch(0):
        for image, target in zip(images, targets):
            for left, top, right, bottom in target["boxes"].tolist():
                rows, columns = (image[0] > 0.5).nonzero().T
                assert left - 1.5 <= columns.min() <= columns.max() <= right + 1.5
                assert top - 1.5 <= rows.min() <= rows.max() <= bottom + 1.5
                seen += 1
    assert seen > 8


def test_a_box_of_which_nothing_is_left_is_dropped_with_its_label() -> None:
    away = as_transforms([v2.Lambda(lambda pair: pair), v2.RandomAffine((90, 90), translate=None), v2.CenterCrop(8)])
    targets = [
        {"boxes": torch.tensor([[0.0, 0.0, 3.0, 3.0], [14.0, 14.0, 18.0, 18.0]]), "labels": torch.tensor([1, 2])}
    ]
    _, found = away[0]([torch.zeros(3, 32, 32)], SampleRandom(0, torch.tensor([0])), targets)  # type: ignore[call-arg]
    assert found[0]["labels"].tolist() == [2]


@pytest.mark.parametrize(
    ("transform", "text"),
    [
        ("lightkit.data.transforms.RandomFlip", "RandomFlip changes pictures, and not the masks"),
        (lambda pair: pair[0], "gives no pair of picture and target"),
        (lambda image: image.flip(-1), "torchvision.transforms.v2 takes pairs"),
    ],
)
def test_a_transform_that_leaves_masks_where_they_are_is_refused(transform: Any, text: str) -> None:
    from lightkit.data.transforms import RandomFlip

    own = RandomFlip() if isinstance(transform, str) else transform
    change = Prepare(augment=as_transforms([own]))
    x, y = torch.zeros(2, 3, 8, 8), torch.zeros(2, 8, 8, dtype=torch.int64)
    refused(lambda: change((x, y), epoch=0, first=0), text)


def test_whole_numbers_for_each_pixel_are_classes() -> None:
    rows = torch.utils.data.TensorDataset(torch.zeros(4, 3, 8, 8), torch.arange(4 * 64).reshape(4, 8, 8) % 3)
    data = build_data(dataset=rows, split={"val": 0.0, "test": 0.0})
    assert (data.info.task, data.info.num_classes) == ("segmentation", 3)

    class Read:
        ignore_index = 9

        def __len__(self) -> int:
            return 4

        def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
            return torch.zeros(3, 8, 8), torch.full((8, 8), 9 if row == 2 else row)

    found = build_data(dataset=Read(), split={"val": 0.0, "test": 0.0}).info
    assert (found.task, found.num_classes, found.ignore_index) == ("segmentation", 4, 9)


def test_wrong_boxes_of_ones_own_data_set_are_named_by_row() -> None:
    class Wrong(Squares):
        def __getitem__(self, row: int) -> tuple[Tensor, Any]:
            image, target = super().__getitem__(row)
            return image, {**target, "labels": target["labels"] * (2 if row == 7 else 1)}

    data = build_data(dataset=Wrong(), split={"by": "ordered", "val": 0.0, "test": 0.0}, batch_size=4)
    refused(lambda: list(data.train.epoch(0)), "row 7 has a label that is no class (these are 1 to 1)")
    assert "without an area" in box_fault({"boxes": torch.ones(1, 4), "labels": torch.ones(1)}, 2)


def test_what_lies_in_a_picture_is_drawn_over_it() -> None:
    image, mask = torch.zeros(3, 16, 16, dtype=torch.uint8), torch.zeros(16, 16, dtype=torch.int64)
    mask[4:8] = 1
    drawn = overlaid(image, mask, ["ground", "thing"])
    assert (drawn.sum(0) > 0).float().mean() == 0.25
    assert not overlaid(image, mask * 0, ["ground"]).any()
    boxes = {"boxes": torch.tensor([[2.0, 2.0, 9.0, 9.0]]), "labels": torch.tensor([1])}
    assert overlaid(image, boxes, ["ground", "thing"]).any()
