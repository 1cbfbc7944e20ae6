"""Any image classification data set of torchvision, by the name of its class."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.common.hub import installed
from lightkit.data.images import ImageReader, check_image_size
from lightkit.data.pixels import image_to_tensor
from lightkit.data.tensors import DataInfo, TensorData, fingerprint

_SPLIT_NAMES = {"train": ("train",), "val": ("val", "valid"), "test": ("test",)}


def torchvision_dataset(
    name: str,
    root: str = "datasets",
    download: bool = False,
    *,
    size: int | None = None,
    channels: int = 3,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Load a data set of `torchvision.datasets` with the splits it brings.

    Sets that torchvision holds in memory (MNIST, CIFAR10, SVHN, ...) are served from there in whole batches; others are
    read image by image.

    Args:
        name: Class in `torchvision.datasets`, such as `CIFAR10`.
        root: Folder of the files.
        download: Fetch them if they are not there.
        size: Scale images to this many pixels a side, cutting the middle square; None keeps sets of one size as they
            are.
        channels: Channels of images read one by one, 3 or 1.
        options: Further arguments of the class.

    Raises:
        UserError: torchvision is not installed, has no such set, or its files are not there or cannot be fetched.
    """
    check_image_size(1 if size is None else size, channels)
    fix = "pip install 'lightkit[vision]'"
    datasets = installed("torchvision.datasets", fix, argument="name", received=name)
    if name not in datasets.__all__:
        raise UserError("torchvision has no such data set", argument="name", received=name, choices=datasets.__all__)
    make = getattr(datasets, name)
    parts = dict(_parts(make, root=root, download=download, options=dict(options or {})))
    arrays = [_in_memory(part) for part in parts.values()] if size is None else [None]
    held = [array for array in arrays if array is not None]
    if len(held) < len(arrays):
        return _Images(name, parts, size=size, channels=channels)
    x, y = (torch.cat(pieces) for pieces in zip(*held, strict=True))
    names = tuple(map(str, getattr(next(iter(parts.values())), "classes", ())))
    names = names or tuple(map(str, range(int(y.max()) + 1)))
    info = DataInfo("multiclass", tuple(x.shape[1:]), len(names), names)
    square = ImageReader(x.shape[2], x.shape[1]) if x.shape[2] == x.shape[3] else None
    return TensorData(x, y, info, splits=_pieces(parts), name=name, reader=square)


class _Images:
    """Parts of a torchvision data set one after the other, images as tensors."""

    def __init__(self, name: str, parts: Mapping[str, Any], *, size: int | None, channels: int) -> None:
        self.parts, self.size, self.channels = list(parts.values()), size, channels
        self.ends = np.cumsum([len(part) for part in self.parts])
        self.reader = None if size is None else ImageReader(size, channels)
        self.classes = tuple(map(str, getattr(self.parts[0], "classes", ())))
        self.splits = _pieces(parts)
        found = [_all_targets(part) for part in self.parts]
        if all(targets is not None for targets in found):
            self.targets = torch.cat([targets for targets in found if targets is not None])
        first, target = self[0]
        if not isinstance(target, int):
            fix = "wrap it in a data set class of your own: data=custom"
            raise UserError(f"{name} is no classification data set", argument="name", received=name, fix=fix)
        count = len(self.classes) or int(getattr(self.parts[0], "num_classes", 0))
        if count:
            names = self.classes or tuple(map(str, range(count)))
            mark = fingerprint([name, [len(part) for part in self.parts], size, channels])
            self.info = DataInfo("multiclass", tuple(first.shape), count, names, fingerprint=mark)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, row: int) -> tuple[Tensor, Any]:
        part = int(np.searchsorted(self.ends, row, side="right"))
        image, target = self.parts[part][row - (int(self.ends[part - 1]) if part else 0)]
        target = int(target) if isinstance(target, (int, np.integer, Tensor)) else target
        if isinstance(image, Tensor):
            return image, target
        return image_to_tensor(image, size=self.size, channels=self.channels), target


def _parts(make: Any, *, root: str, download: bool, options: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the splits that the arguments `train` or `split` of a data set offer, or all of it as `train`."""
    takes = inspect.signature(make).parameters
    options |= {name: value for name, value in (("root", root), ("download", download)) if name in takes}
    if "train" in takes and "train" not in options:
        for split, flag in (("train", True), ("test", False)):
            yield split, _load(make, options | {"train": flag})
        return
    if "split" not in takes or "split" in options:
        yield "train", _load(make, options)
        return
    yield "train", _load(make, options | {"split": "train"})
    for split in ("val", "test"):
        for word in _SPLIT_NAMES[split]:
            try:
                part = make(**options, split=word)
            except (ValueError, RuntimeError, OSError):
                # Not every set has this part, and some have it without labels or in another archive.
                continue
            yield split, part
            break


def _load(make: Any, options: dict[str, Any]) -> Any:
    try:
        with _no_empty_folders(Path(str(options.get("root", "")))):
            return make(**options)
    except TypeError as error:
        what, choices = f"{make.__name__} does not take these arguments: {error}", inspect.signature(make).parameters
        raise UserError(what, argument="options", received=sorted(options), choices=choices) from error
    except (RuntimeError, OSError, ValueError) as error:
        wanted = options.get("download", False)
        # The last line: above it torchvision lists every server it tried, and why it failed.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[-1].strip("<>") if lines else type(error).__name__
        what = f"{make.__name__} cannot be {'downloaded' if wanted else 'loaded'}: {reason}"
        fix = "check the network, or put the files there by hand" if wanted else "data.dataset.download=true"
        facts: dict[str, Any] = {"argument": "download" if wanted else "root", "received": str(options.get("root"))}
        raise UserError(what, fix=fix, family="data-not-found", **facts) from error


@contextmanager
def _no_empty_folders(root: Path) -> Iterator[None]:
    """Delete the folders that a failed load made for files that never came."""
    above = [folder for folder in (root, *root.parents) if not folder.exists()]
    before = set(root.iterdir()) if root.is_dir() else set()
    try:
        yield
    except Exception:
        new = set(root.iterdir()) - before if root.is_dir() else set()
        below = [Path(place) for folder in new if folder.is_dir() for place, _, _ in os.walk(folder, topdown=False)]
        for folder in (*below, *above):
            with suppress(OSError):  # it holds something, or was never made
                folder.rmdir()
        raise


def _in_memory(part: Any) -> tuple[Tensor, Tensor] | None:
    """Return images `(N, C, H, W)` uint8 and classes of a part that holds them in `data`; None for others."""
    data = getattr(part, "data", None)
    classes = _all_targets(part)
    if not isinstance(data, (np.ndarray, Tensor)) or classes is None or len(classes) != len(data):
        return None
    images = torch.as_tensor(data)
    if images.dtype != torch.uint8 or images.dim() not in (3, 4):
        return None
    if images.dim() == 3:
        return images[:, None], classes
    return (images.permute(0, 3, 1, 2).contiguous() if images.shape[-1] in (1, 3) else images), classes


def _all_targets(part: Any) -> Tensor | None:
    """Return the classes of a part that knows them without reading its images."""
    targets = getattr(part, "targets", getattr(part, "labels", None))
    if not isinstance(targets, (list, np.ndarray, Tensor)) or len(targets) != len(part):
        return None
    try:
        numbers = torch.as_tensor(targets)
    except (TypeError, ValueError):
        return None
    return None if numbers.is_floating_point() or numbers.dim() != 1 else numbers.to(torch.int64)


def _pieces(parts: Mapping[str, Any]) -> dict[str, Tensor]:
    rows = torch.arange(sum(len(part) for part in parts.values())).split([len(part) for part in parts.values()])
    return dict(zip(parts, rows, strict=True)) if len(parts) > 1 else {}
