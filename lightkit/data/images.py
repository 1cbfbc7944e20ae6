"""Images in folders, one folder a class; files that cannot be read are found before training starts.

The head of each file is parsed and its end is looked at. Up to some number of files their checksums are compared, too.
A file whose end is missing is decoded as a whole. Pixels of other files are decoded when they are trained on.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightkit.common.argument_checks import check_range
from lightkit.common.errors import Problems, UserError
from lightkit.common.failures import in_short
from lightkit.data.info import DataInfo, fingerprint
from lightkit.data.row_sets import KNOWN, SPLIT_NAMES, split_named

if TYPE_CHECKING:
    from PIL.Image import Image


_ON_ERROR = ("error", "skip")


class ImageFolder:
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

    Raises:
        UserError: There is no such folder, no class folder, a class without images, files that cannot be read, or
            folders of which it cannot be said whether they are splits or classes.
    """

    draws = False

    def __init__(
        self,
        root: str,
        size: int = 64,
        channels: int = 3,
        *,
        split_folders: Mapping[str, str] | None = None,
        test_root: str | None = None,
        on_error: str = "error",
    ) -> None:
        check_image_size(size, channels)
        if on_error not in _ON_ERROR:
            raise UserError("unknown", argument="on_error", received=on_error, choices=_ON_ERROR)
        folder, test = Path(root).expanduser(), None if test_root is None else Path(test_root).expanduser()
        for argument, place in (("root", folder), ("test_root", test)):
            if place is not None and not place.is_dir():
                what = "there is no such folder"
                raise UserError(what, argument=argument, received=str(place), family="data-not-found")
        parts = find_splits(folder, split_folders)
        parts |= {} if test is None else {"test": test}
        self.size, self.channels = size, channels
        self.classes, found = class_files(parts, {} if test is None else {"test": "test_root"})
        found = self._readable(found, folder, on_error)
        pairs = [pair for own in found.values() for pair in own]
        self.files, self._numbers = [file for file, _ in pairs], [number for _, number in pairs]
        self.targets = torch.tensor(self._numbers)
        pieces = torch.arange(len(self.files)).split([len(own) for own in found.values()])
        self.splits = {} if parts == {"train": folder} else dict(zip(found, pieces, strict=True))
        listing = [(_below(folder, file), file.stat().st_size) for file in self.files]
        self.row_names = [name for name, _ in listing]
        mark = fingerprint([size, channels, listing])
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
        for number, name in enumerate(self.classes):
            if not any(number == own for _, own in kept["train"]):
                what = f"no image of class {name!r} can be read"
                raise UserError(what, argument="root", received=str(folder), family="data-unreadable")
        self.left_out = {_below(folder, file): fault for file, fault in faults.items()}
        told = f"{len(faults):,} of {len(files):,} image files are left out, they cannot be read: "
        self.notes = (told + listed(faults),) if faults else ()
        return kept

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return read_image(self.files[row], size=self.size, channels=self.channels), self._numbers[row]


def _below(folder: Path, file: Path) -> str:
    """Name a file as seen from a folder; one that is elsewhere by its whole path."""
    return (file.relative_to(folder) if file.is_relative_to(folder) else file).as_posix()


def check_image_size(size: int, channels: int) -> None:
    """Refuse sizes that no image can have."""
    check_range("size", size, low=1, what="too small")
    if channels not in (1, 3):
        raise UserError("not a number of channels", argument="channels", expected="1 or 3", received=channels)


def read_image(file: Path, *, size: int, channels: int) -> Tensor:
    """Read an image file as `(channels, size, size)` in [0, 1].

    Raises:
        UserError: The file is damaged or no image, or Pillow is not installed.
    """
    need_pillow()
    from PIL import Image

    try:
        with Image.open(file) as image:
            return image_to_tensor(image, size=size, channels=channels)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(
            f"the image cannot be read: {error}",
            argument="root",
            received=str(file),
            fix="replace or delete the file",
            family="data-unreadable",
        ) from error


def image_to_tensor(image: Image, *, size: int | None, channels: int) -> Tensor:
    """Convert a Pillow image to `(channels, size, size)` in [0, 1]; `size` None keeps its own."""
    import numpy as np

    if size is not None:  # the middle square, scaled
        width, height = image.size
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        # Palettes and 1-bit images cannot be interpolated.
        image = image if image.mode in ("RGB", "L") else image.convert("RGB")
        image = image.resize((size, size), resample=2, box=(left, top, left + side, top + side))
    mode = "RGB" if channels == 3 else "L"
    levels = np.asarray(image if image.mode == mode else image.convert(mode))
    levels = levels.transpose(2, 0, 1) if channels == 3 else levels[None]
    pixels = np.empty(levels.shape, np.float32)
    return torch.from_numpy(np.divide(levels, np.float32(255), out=pixels, dtype=np.float32))


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
    look = partial(_fault, verify=len(files) <= MOST_VERIFIED)
    with ThreadPoolExecutor(_THREADS) as threads:
        found = threads.map(look, files)
        return {file: fault for file, fault in zip(files, found, strict=True) if fault}


def refuse_unreadable(faults: dict[Path, str], count: int, *, choice: str) -> None:
    """Raise the error of files that cannot be read, all in one.

    Args:
        faults: Why each of them cannot be read.
        count: All files.
        choice: What leaves them out.

    Raises:
        UserError: There are some.
    """
    if not faults:
        return
    first = next(iter(faults))
    what = f"the image cannot be read: {faults[first]}"
    if len(faults) > 1:
        what = f"{len(faults):,} of {count:,} image files cannot be read: {listed(faults)}"
    raise UserError(
        what,
        argument="root",
        received=str(first),
        fix=f"replace or delete {'the file' if len(faults) == 1 else 'these files'}, or {choice}",
        family="data-unreadable",
    )


def listed(faults: dict[Path, str]) -> str:
    """Name the first few files with what is wrong with them."""
    shown = "; ".join(f"{file} ({fault})" for file, fault in [*faults.items()][:_SHOWN])
    return shown + (f"; and {len(faults) - _SHOWN:,} more" if len(faults) > _SHOWN else "")


def need_pillow() -> None:
    """Refuse to read images without Pillow.

    Raises:
        UserError: It is not installed.
    """
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise UserError(
            "reading images needs Pillow", argument="", fix="pip install pillow", family="package-missing"
        ) from error


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


SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
_ANSWER = "data.dataset.split_folders"
_ALL_CLASSES = f"{_ANSWER}={{}} where all of them are classes"


def find_splits(root: Path, chosen: Mapping[str, str] | None = None) -> dict[str, Path]:
    """Return the folders that hold the class folders of each split; that of train is `root` where it has no splits.

    Args:
        root: The folder.
        chosen: Name of the folder of each split; an empty mapping says that there are none. None goes by the names.

    Raises:
        UserError: It cannot be said which folders are splits and which are classes; the fix says how to tell.
    """
    if chosen is not None:
        return _chosen(root, chosen) or {"train": root}
    folders = _folders(root)
    named = [folder for folder in folders if split_named(folder.name)]
    others = [folder for folder in folders if folder not in named and _has_images(folder)]
    if not named:
        _refuse_alike(folders, root)
        return {"train": root}
    if others:
        raise _beside(named, others)
    found = _by_split({folder.name: folder.name for folder in named}, root, Problems())
    _refuse_alike(_folders(found["train"]), found["train"])
    return found


def class_files(
    folders: Mapping[str, Path], arguments: Mapping[str, str] | None = None
) -> tuple[tuple[str, ...], dict[str, list[tuple[Path, int]]]]:
    """Return the names of the classes, sorted, and the image files of each split with the numbers of their classes.

    Args:
        folders: The folder of each split; the class folders in that of train say which classes there are.
        arguments: The argument that gave the folder of a split, where that is not `root`.

    Raises:
        UserError: There is no class folder, one has no images, or a split has a class that train lacks; all in one
            report.
    """
    given = {split: (arguments or {}).get(split, "root") for split in folders}
    names = {split: _class_names(folder, given[split]) for split, folder in folders.items()}
    classes, problems = names["train"], Problems()
    numbers = {name: number for number, name in enumerate(classes)}
    found: dict[str, list[tuple[Path, int]]] = {split: [] for split in folders}
    for split, folder in folders.items():
        for name in names[split]:
            images, number = _images(folder / name), numbers.get(name)
            if number is None:
                what = f"{folder} has a class that the training part lacks"
                problems.append(UserError(what, argument=given[split], received=name, choices=classes))
            elif not images:
                facts: dict[str, Any] = {"received": str(folder / name), "expected": ", ".join(sorted(SUFFIXES))}
                what = "a class folder holds no images"
                problems.append(UserError(what, argument=given[split], family="data-not-found", **facts))
            else:
                found[split] += [(file, number) for file in images]
    problems.raise_any()
    return classes, found


def _chosen(root: Path, chosen: Mapping[str, str]) -> dict[str, Path]:
    problems = Problems()
    for split, name in chosen.items():
        if split_named(split) is None:
            problems.append(UserError("no such split", argument="split_folders", received=split, choices=KNOWN))
        elif not (root / name).is_dir():
            choices = [folder.name for folder in _folders(root)]
            what = f"{root} has no such folder"
            problems.append(UserError(what, argument="split_folders", received=name, choices=choices))
    return _by_split({split: name for split, name in chosen.items() if split_named(split)}, root, problems)


def _by_split(names: Mapping[str, str], root: Path, problems: Problems) -> dict[str, Path]:
    """Return the folder of each split in the order train, val, test, by folders named as splits may be.

    Raises:
        UserError: There are problems, two names for one split, or none for train.
    """
    found = dict[str, Path]()
    for name, folder in names.items():
        split = split_named(name)
        assert split is not None, "others are refused before"
        if split in found:
            what, received = f"two folders for the {split} split", f"{found[split].name} and {folder}"
            fix = f"join them, or name one by {_ANSWER}"
            problems.append(UserError(what, argument="root", received=received, fix=fix, family="split"))
        found.setdefault(split, root / folder)
    if found and "train" not in found:
        what, received = "there is no folder to train on", ", ".join(folder.name for folder in found.values())
        expected = f"one named train in {root}, with a folder for each class"
        fix = f"'{_ANSWER}={{train: FOLDER, …}}' where it has another name"
        facts: dict[str, Any] = {"expected": expected, "received": received, "fix": fix, "family": "split"}
        problems.append(UserError(what, argument="root", **facts))
    problems.raise_any()
    return {split: found[split] for split in SPLIT_NAMES if split in found}


def _beside(named: Sequence[Path], others: Sequence[Path]) -> UserError:
    """Return the error of folders that may be classes or splits beside those that are named as splits."""
    splits = {str(split_named(folder.name)): folder.name for folder in named}
    chosen = ", ".join(f"{split}: {splits[split]}" for split in SPLIT_NAMES if split in splits)
    away = f"move the others elsewhere, or '{_ANSWER}={{{chosen}}}' leaves them out"
    return UserError(
        "there are folders with names of splits beside other folders with images: which are classes?",
        argument="root",
        received=", ".join(folder.name for folder in (*named, *others)),
        fix=f"{away if 'train' in splits else 'put the class folders into one named train'}; {_ALL_CLASSES}",
        family="split",
    )


def _refuse_alike(folders: Sequence[Path], root: Path) -> None:
    """Refuse folders that would be classes, but all hold the same folders: these are the classes, or may be."""
    inner = [{} if _images_directly(folder) else _inside(folder) for folder in folders]
    most = max(inner, key=len, default={})
    if len(folders) < 2 or len(most) < 2 or not all(own and own.keys() <= most.keys() for own in inner):
        return
    names = [folder.name for folder in folders]
    shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    same = ", ".join(sorted(most.values())[:3]) + (", …" if len(most) > 3 else "")
    first, second = sorted(names, key=lambda name: "train" not in name.lower())[:2]
    example = f"'{_ANSWER}={{train: {first}, {'test' if 'test' in second.lower() else 'val'}: {second}}}'"
    raise UserError(
        f"its folders ({shown}) all hold the same folders ({same}): are they splits, or classes?",
        argument="root",
        received=str(root),
        fix=f"name them train, val and test where they are splits, or say which is which, such as {example}; "
        f"{_ALL_CLASSES}",
        family="split",
    )


def _folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted by name, without hidden ones."""
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _inside(folder: Path) -> dict[str, str]:
    """Return the names of the folders with images in a folder, by their lower case."""
    return {own.name.casefold(): own.name for own in _folders(folder) if _has_images(own)}


def _is_image(name: str) -> bool:
    return not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES


def _images_directly(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(_is_image(entry.name) and entry.is_file() for entry in entries)


def _has_images(folder: Path) -> bool:
    return any(any(map(_is_image, files)) for place, _, files in os.walk(folder) if not _is_hidden(Path(place), folder))


def _is_hidden(path: Path, folder: Path) -> bool:
    """Tell whether something in a folder is hidden, or in something that is."""
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _images(folder: Path) -> list[Path]:
    """Return the image files in a folder and below it, sorted, without hidden ones."""
    found = (file for file in folder.rglob("*") if _is_image(file.name) and file.is_file())
    return sorted(file for file in found if not _is_hidden(file, folder))


def _class_names(folder: Path, argument: str) -> tuple[str, ...]:
    """Return the names of the class folders, sorted."""
    names = tuple(own.name for own in _folders(folder))
    if not names:
        raise UserError(
            "the folder holds no class folders",
            argument=argument,
            received=str(folder),
            expected="one folder a class with its images",
            fix=f"move the images to {folder / 'CLASS'}"
            + (", any class of training" if argument == "test_root" else ""),
            family="data-not-found",
        )
    return names
