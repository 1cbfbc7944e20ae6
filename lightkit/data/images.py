"""Images in folders, one folder a class; files that cannot be read are found before training starts.

The head of each file is parsed and its end is looked at. Up to some number of files their checksums are compared, too.
A file whose end is missing is decoded as a whole. Pixels of other files are decoded when they are trained on.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from lightkit.common.argument_checks import check_range
from lightkit.common.errors import UserError
from lightkit.common.failures import in_short
from lightkit.common.hub import installed
from lightkit.data.class_folders import SUFFIXES, class_files, find_splits, image_files
from lightkit.data.pixels import Change, image_to_tensor
from lightkit.data.reader import Faults, NewRows, Reader, called
from lightkit.data.tensors import DataInfo, fingerprint

_ON_ERROR = ("error", "skip")


class ImageFiles:
    """Base of data sets whose rows are image files."""

    draws = False

    def _list(self, folder: Path, found: Mapping[str, Sequence[Path]], *facts: Any, split: bool) -> str:
        """Take the files of each split, below a folder; returns a fingerprint of them and of what else counts."""
        self.sources = self.files = [file for own in found.values() for file in own]
        pieces = torch.arange(len(self.files)).split([len(own) for own in found.values()])
        self.splits = dict(zip(found, pieces, strict=True)) if split else {}
        listing = [(below(folder, file), file.stat().st_size) for file in self.files]
        self.row_names = [name for name, _ in listing]
        return fingerprint([*facts, listing])

    def __len__(self) -> int:
        return len(self.files)


class ImageFolder(ImageFiles):
    """Image files below `root`, the class of each named by its folder; read one by one.

    With folders `train` and `val` or `test` in `root`, or other names of these (`lightkit.data.row_sets.SPLIT_NAMES`),
    these are the splits and hold the class folders. Images are scaled so that their shorter side is `size`, cut to the
    middle square, and come as `(channels, size, size)` in [0, 1]. Files and folders whose name begins with a dot are
    left out.

    Args:
        root: The folder.
        size: Pixels a side.
        channels: 3 for colour, 1 for grey.
        split_folders: Name of the folder of each split, where their names do not tell; `{}` says that all folders are
            classes.
        test_root: Folder of the test images, with a folder for each class, in place of those below `root`.
        on_error: What to do about files that cannot be read: `error`, or `skip` leaves them out.
        draft: Decode JPEG files of at least twice the size at a half, a quarter or an eighth of it, which is faster
            and changes pixels a little.
        like: The data set of the training images, for a further set: the classes are its own.

    Raises:
        UserError: There is no such folder, no class folder, a class without images, files that cannot be read, or
            folders of which it cannot be said whether they are splits or classes.
    """

    def __init__(
        self,
        root: str,
        size: int = 64,
        channels: int = 3,
        *,
        split_folders: Mapping[str, str] | None = None,
        test_root: str | None = None,
        on_error: str = "error",
        draft: bool = False,
        like: Any = None,
    ) -> None:
        check_image_size(size, channels)
        if on_error not in _ON_ERROR:
            raise UserError("unknown", argument="on_error", received=on_error, choices=_ON_ERROR)
        folder, test = existing(root), None if test_root is None else existing(test_root, "test_root")
        parts = find_splits(folder, split_folders)
        parts |= {} if test is None else {"test": test}
        self.size, self.channels, self.reader = size, channels, ImageReader(size, channels, draft)
        known = () if like is None else like.info.class_names
        self.classes, found = class_files(parts, {} if test is None else {"test": "test_root"}, known)
        found = self._readable(found, folder, on_error)
        self._numbers = [number for own in found.values() for _, number in own]
        self.targets = torch.tensor(self._numbers)
        files = {split: [file for file, _ in own] for split, own in found.items()}
        mark = self._list(folder, files, size, channels, *["draft"] * draft, split=parts != {"train": folder})
        self.info = DataInfo("multiclass", (channels, size, size), len(self.classes), self.classes, fingerprint=mark)

    def _readable(
        self, found: dict[str, list[tuple[Path, int]]], folder: Path, on_error: str
    ) -> dict[str, list[tuple[Path, int]]]:
        """Return the files of each split that can be read, and note the others.

        Raises:
            UserError: Some cannot be read and shall not be left out, or all of a class.
        """
        files = [file for own in found.values() for file, _ in own]
        faults = unreadable(files)
        if on_error == "error":
            refuse_unreadable(faults, len(files), choice="data.dataset.on_error=skip leaves them out")
        kept = {split: [pair for pair in own if pair[0] not in faults] for split, own in found.items()}
        for number in sorted({number for _, number in found["train"]}):
            if not any(number == own for _, own in kept["train"]):
                what = f"no image of class {self.classes[number]!r} can be read"
                raise UserError(what, argument="root", received=str(folder), family="data-unreadable")
        self.left_out = {below(folder, file): fault for file, fault in faults.items()}
        told = f"{len(faults):,} of {len(files):,} image files are left out, they cannot be read: "
        self.notes = (told + listed(faults),) if faults else ()
        return kept

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.reader.image(self.files[row]), self._numbers[row]

    def read_whole(self, row: int, change: Change) -> tuple[Tensor, int]:
        """Read a sample whose picture is changed in place of being cut and scaled, see `image_to_tensor`."""
        return read_image(self.files[row], size=None, channels=self.channels, change=change), self._numbers[row]


def existing(root: str, argument: str = "root") -> Path:
    """Return the path of a folder.

    Raises:
        UserError: There is none.
    """
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise UserError("there is no such folder", argument=argument, received=str(folder), family="data-not-found")
    return folder


def below(folder: Path, file: Path) -> str:
    """Name a file as seen from a folder; one that is elsewhere by its whole path."""
    return (file.relative_to(folder) if file.is_relative_to(folder) else file).as_posix()


def check_image_size(size: int, channels: int) -> None:
    """Refuse sizes that no image can have."""
    check_range("size", size, low=1, what="too small")
    if channels not in (1, 3):
        raise UserError("not a number of channels", argument="channels", expected="1 or 3", received=channels)


def read_image(
    file: Path | IO[bytes], *, size: int | None, channels: int, draft: bool = False, change: Change = None
) -> Tensor:
    """Read an image file as `(channels, size, size)` in [0, 1].

    Args:
        file: The file.
        size: Pixels a side; None keeps its own.
        channels: 3 for colour, 1 for grey.
        draft: Decode JPEG files of at least twice the size at a half, a quarter or an eighth of it.
        change: Changes its levels, see `image_to_tensor`.

    Raises:
        UserError: The file is damaged or no image, the change fails, or Pillow is not installed.
    """
    need_pillow()
    from PIL import Image

    try:
        with Image.open(file) as image:
            if draft and size is not None and min(image.size) >= 2 * size:
                image.draft(None, (size, size))
            return image_to_tensor(image, size=size, channels=channels, change=change)
    except UserError:
        raise
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        what, fix, family = f"the image cannot be read: {error}", "replace or delete the file", "data-unreadable"
        raise UserError(what, argument="root", received=str(file), fix=fix, family=family) from error


MOST_VERIFIED = 20_000
"""Files up to which the checksums are compared, for which they are read as a whole."""
_THREADS = 8
_ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND", "GIF": b";"}
"""What stands at the end of a whole file."""
_END_BYTES = 4096
_SHOWN = 10


def unreadable(files: Sequence[Path]) -> dict[Path, str]:
    """Return the image files that cannot be read, and why, in the order of the files.

    Raises:
        UserError: Pillow is not installed.
    """
    need_pillow()
    with suppress(ImportError):  # here, and not in each worker process anew
        import_module("torchvision.io")
    look = partial(_fault, verify=len(files) <= MOST_VERIFIED)
    with ThreadPoolExecutor(_THREADS) as threads:
        found = threads.map(look, files)
        return {file: fault for file, fault in zip(files, found, strict=True) if fault}


def refuse_unreadable(faults: dict[Path, str], count: int, *, choice: str, cannot: str = "cannot be read") -> None:
    """Raise the error of files that cannot be read, all in one.

    Args:
        faults: Why each of them cannot be read.
        count: All files.
        choice: What leaves them out.
        cannot: What is wrong with them in a word.

    Raises:
        UserError: There are some.
    """
    if not faults:
        return
    first = next(iter(faults))
    what = f"the image {cannot}: {faults[first]}"
    if len(faults) > 1:
        what = f"{len(faults):,} of {count:,} image files {cannot}: {listed(faults)}"
    fix = f"replace or delete {'the file' if len(faults) == 1 else 'these files'}, or {choice}"
    raise UserError(what, argument="root", received=str(first), fix=fix, family="data-unreadable")


def listed(faults: dict[Path, str]) -> str:
    """Name the first few files with what is wrong with them."""
    shown = "; ".join(f"{file} ({fault})" for file, fault in [*faults.items()][:_SHOWN])
    return shown + (f"; and {len(faults) - _SHOWN:,} more" if len(faults) > _SHOWN else "")


def need_pillow() -> None:
    """Refuse to read images without Pillow.

    Raises:
        UserError: It is not installed.
    """
    installed("PIL.Image", "pip install pillow", "reading images needs Pillow", argument="")


def _fault(file: Path, *, verify: bool) -> str:
    """Say why a file cannot be read, comparing checksums where wanted; empty where nothing is found."""
    from PIL import Image

    try:
        if not file.stat().st_size:
            return "the file is empty"
        with warnings.catch_warnings():  # of large images, which are told when they are read
            warnings.simplefilter("ignore")
            with Image.open(file) as image:
                end = _ENDS.get(image.format or "")
                if verify:
                    image.verify()
            if end is not None and end not in _end_of(file):
                with Image.open(file) as image:
                    image.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        return in_short(error)
    return ""


def _end_of(file: Path) -> bytes:
    with file.open("rb") as stream:
        stream.seek(-min(_END_BYTES, file.stat().st_size), os.SEEK_END)
        return stream.read()


@dataclass(frozen=True)
class ImageReader(Reader):
    """Reads image files as `lightkit.data.images.ImageFolder` does: scaled, cut to the middle square, in [0, 1].

    Args:
        size: Pixels a side; None keeps sizes, and so reads one image at a time.
        channels: 3 for colour, 1 for grey.
        draft: Decode large JPEG files at a reduced scale.
    """

    size: Any
    channels: int
    draft: bool = False
    kind = "images"

    def read(self, given: Any, most: int, faults: Faults) -> Iterator[NewRows]:
        """Yield the images of a folder and the folders in it, or one image; see `Reader.read`."""
        files, root = self._files(given)
        for first in range(0, len(files), most):
            tried = {number: self._read(files[number]) for number in range(first, min(first + most, len(files)))}
            wrong = [(str(files[number]), found) for number, found in tried.items() if isinstance(found, str)]
            if wrong and not faults.skip:  # all that are wrong are told at once
                rest = ((str(file), self._read(file)) for file in files[first + most :])
                wrong += [(name, found) for name, found in rest if isinstance(found, str)]
            faults.take(wrong)
            images = {number: found for number, found in tried.items() if isinstance(found, Tensor)}
            if images:
                names = [files[number].relative_to(root).as_posix() for number in images]
                yield NewRows([*images], torch.stack([*images.values()]), {"file": names})

    def image(self, file: Path) -> Tensor:
        """Read an image, see `read_image`."""
        return read_image(file, size=self.size, channels=self.channels, draft=self.draft)

    def _read(self, file: Path) -> Tensor | str:
        """Return an image, or why it cannot be read."""
        try:
            return self.image(file)
        except UserError as error:
            return error.what

    def _files(self, given: Any) -> tuple[list[Path], Path]:
        path = Path(given).expanduser() if isinstance(given, (str, Path)) else Path()
        named = isinstance(given, (str, Path)) and str(given) != "-"
        if named and path.is_file() and path.suffix.lower() in SUFFIXES:
            return [path], path.parent
        files = image_files(path) if named and path.is_dir() else []
        if not files:
            what = "there are no images in the folder" if named and path.is_dir() else "this run predicts from images"
            what = what if not named or path.exists() else "there is no such file or folder"
            expected = f"a folder of images, or an image: {', '.join(sorted(SUFFIXES))}"
            raise UserError(what, argument="", expected=expected, received=called(given), family="data-not-found")
        return files, path
