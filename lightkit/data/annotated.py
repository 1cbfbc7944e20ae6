"""Image files with what lies in them: a mask for each, or boxes in the format of COCO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.common.failures import in_short
from lightkit.common.reading import parse_object, read_file
from lightkit.data import images, pixels
from lightkit.data.class_folders import find_splits, image_files
from lightkit.data.collates import listed
from lightkit.data.placed import box_fault
from lightkit.data.tensors import DataInfo

_MOST_BYTES = 1 << 33


class SegmentationFolder(images.ImageFiles):
    """Image files in `root/images`, and a mask of the same name for each in `root/masks`; read one by one.

    With folders `train` and `val` or `test` in `root` (`lightkit.data.row_sets.SPLIT_NAMES`), these are the splits and
    hold the two folders. The middle square of both is scaled to `size`, masks without mixing levels. The pixels of a
    mask are numbers: grey levels, or places in a palette as in PASCAL VOC.

    Args:
        root: The folder.
        classes: Names of the classes, the first of which is that of pixels of 0, or the level of each by name, such as
            `{background: 0, road: 255}`.
        size: Pixels a side.
        channels: 3 for colour, 1 for grey.
        ignore_index: What pixels are in the masks that count for nothing, such as 255; None where all count.

    Raises:
        UserError: An image has no mask or the reverse, or files cannot be read; all in one report. A mask of another
            size, in colours, or with a pixel of no class, is told when it is read.
    """

    def __init__(
        self, root: str, classes: Any, size: int = 64, channels: int = 3, *, ignore_index: int | None = None
    ) -> None:
        images.check_image_size(size, channels)
        self.size, self.channels, self.reader = size, channels, images.ImageReader(size, channels)
        levels = dict(zip(classes, range(256))) if isinstance(classes, (list, tuple)) else classes
        whole = {own for own in levels.values() if isinstance(own, int)} if isinstance(levels, Mapping) else ()
        if not whole or len(whole) < len(classes):
            what, expected = "each class has a name and a level of its own", "[ground, road] or {ground: 0, road: 255}"
            raise UserError(what, argument="classes", expected=expected, received=classes)
        self._numbers = {level: number for number, level in enumerate(levels.values())}
        self._numbers |= {} if ignore_index is None else {ignore_index: ignore_index}
        folder, found, faults = images.existing(root), dict[str, dict[Path, Path]](), dict[Path, str]()
        for split, part in find_splits(folder).items():
            pictures, masks = (_by_name(part / name) for name in ("images", "masks"))
            lone = pictures.keys() ^ masks.keys()
            for kind, own in (("images", pictures), ("masks", masks)):
                twins = {*image_files(part / kind)} - {*own.values()}
                faults |= dict.fromkeys(twins, "another file beside it has its name with another ending")
            faults |= {(pictures | masks)[name]: "the other folder has no file of its name" for name in lone}
            found[split] = {file: masks[name] for name, file in pictures.items() if name in masks}
        self._masks = {image: mask for own in found.values() for image, mask in own.items()}
        files = [*faults, *self._masks, *self._masks.values()]
        faults |= images.unreadable(files)
        images.refuse_unreadable(faults, len(files), choice="leave out both", cannot="cannot be used")
        parts = {split: [*own] for split, own in found.items()}
        content = (size, channels, self._numbers, [*map(str, self._masks.values())])
        mark = self._list(
            folder, parts, *content, split=[*parts] != ["train"] or find_splits(folder) != {"train": folder}
        )
        self.sources = files
        names, facts = tuple(map(str, levels)), {"fingerprint": mark, "ignore_index": ignore_index}
        self.info = DataInfo("segmentation", (channels, size, size), len(names), names, **facts)  # type: ignore[arg-type]

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        from PIL import Image

        file, labels = self.files[row], torch.full((self.size, self.size), -1)
        with Image.open(self._masks[file]) as mask, Image.open(file) as image:
            levels = np.array(pixels.middle(mask, self.size, resample=0))
            if levels.ndim != 2 or mask.size != image.size:
                what, found = "not a mask of this image", f"{self._masks[file]}: {mask.mode}, {mask.size}"
                raise UserError(
                    what, argument="root", expected=f"grey levels or a palette, {image.size}", received=found
                )
            if (strange := ~np.isin(levels, [*self._numbers])).any():
                what, found = "a pixel of no class", f"{self._masks[file]}: {levels[strange][0]}"
                fix = "name its level there; data.dataset.ignore_index says which level counts for nothing"
                raise UserError(what, argument="classes", expected=str([*self._numbers]), received=found, fix=fix)
            for level, number in self._numbers.items():
                labels[torch.from_numpy(levels == level)] = number
            return pixels.image_to_tensor(image, size=self.size, channels=self.channels), labels


def _by_name(folder: Path) -> dict[Path, Path]:
    return {file.relative_to(folder).with_suffix(""): file for file in image_files(folder)}


class CocoBoxes(images.ImageFiles):
    """Pictures of any sizes with boxes, from a JSON file with `images`, `annotations` and `categories`.

    See https://cocodataset.org/#format-data. A sample is an image `(3, H, W)` in [0, 1] and a mapping: `boxes`
    `(N, 4)` float32, left, top, right, bottom in pixels, and `labels` `(N,)` int64 from 1 on, in the order of the
    categories' numbers. Class 0 is the background. Boxes of crowds (`iscrowd`) are left out.

    Args:
        root: Folder that the names of the images (`file_name`) are below.
        annotations: The JSON file; or one for each split, by name.

    Raises:
        UserError: A JSON file cannot be read or is not in the format; or an image is missing, cannot be read or is in
            two splits, or has a box without an area or of an unknown category, all in one report. A box outside of its
            image is told when it is read.
    """

    def __init__(self, root: str, annotations: str | Mapping[str, str]) -> None:
        given = {"train": annotations} if isinstance(annotations, str) else annotations
        folder, names = images.existing(root), dict[int, str]()
        parts = {split: _read(Path(path).expanduser(), folder, names) for split, path in given.items()}
        numbers = {category: number for number, category in enumerate(sorted(names), 1)}
        found = {file: boxes for own in parts.values() for file, boxes in own.items()}
        self._targets = {file: _target(boxes, numbers) for file, boxes in found.items()}
        faults = {file: box_fault(target, len(numbers) + 1) for file, target in self._targets.items()}
        for file, entries in found.items():
            if strange := [box[4] for box in entries if box[4] not in numbers]:
                faults[file] = f"category {strange[0]!r} is none of those in the JSON file"
        counts = Counter(file for own in parts.values() for file in own)
        faults |= {file: f"in {count} splits" for file, count in counts.items() if count > 1}
        faults = {file: fault for file, fault in (faults | images.unreadable([*found])).items() if fault}
        images.refuse_unreadable(faults, len(found), choice="mend the JSON file", cannot="cannot be used")
        classes = ("background", *(names[category] for category in numbers))
        files = {split: [*own] for split, own in parts.items()}
        mark = self._list(folder, files, classes, [*found.values()], split=not isinstance(annotations, str))
        self.reader = images.ImageReader(None, 3)
        self.info = DataInfo("detection", (), len(classes), classes, fingerprint=mark)

    def __getitem__(self, row: int) -> tuple[Tensor, dict[str, Tensor]]:
        return images.read_image(self.files[row], size=None, channels=3), self._targets[self.files[row]]

    collate_fn = staticmethod(listed)


def _read(path: Path, folder: Path, names: dict[int, str]) -> dict[Path, list[list[float]]]:
    """Read a JSON file, and add to the names of categories; returns boxes and category of each image."""
    place = ""
    try:
        content = parse_object(read_file(path, _MOST_BYTES))
        for entry in content["categories"]:
            if (known := names.setdefault(entry["id"], str(entry["name"]))) != str(entry["name"]):
                raise ValueError(f"category {entry['id']} is {known!r} and {entry['name']!r}")
        sorted(names)  # numbers beside texts have no order
        files = {image["id"]: folder / image["file_name"] for image in content["images"]}
        boxes: dict[Path, list[list[float]]] = {file: [] for file in files.values()}
        if len(boxes) < len(content["images"]):
            raise ValueError("two images have one id or one file_name")
        for number, entry in enumerate(content["annotations"], 1):
            place = f", annotation {number}"
            left, top, width, height = map(float, entry["bbox"])
            hash(entry["category_id"])  # a list is no category
            if not entry.get("iscrowd"):
                boxes[files[entry["image_id"]]].append([left, top, left + width, top + height, entry["category_id"]])
    except (OSError, LookupError, TypeError, ValueError) as error:
        what, family = f"not a file in the format of COCO: {in_short(error)}", "data-unreadable"
        raise UserError(what, argument="annotations", received=f"{path}{place}", family=family) from error
    return boxes


def _target(boxes: Sequence[Sequence[float]], numbers: Mapping[Any, int]) -> dict[str, Tensor]:
    corners = torch.tensor([box[:4] for box in boxes], dtype=torch.float32).reshape(-1, 4)
    return {"boxes": corners, "labels": torch.tensor([numbers.get(box[4], 0) for box in boxes], dtype=torch.int64)}
