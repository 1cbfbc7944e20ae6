"""Folders of image files: which of them are splits and which are classes, and the files of each class."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightkit.common.errors import Problems, UserError
from lightkit.data.row_sets import KNOWN, SPLIT_NAMES, split_named

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
    folders: Mapping[str, Path], arguments: Mapping[str, str] | None = None, known: tuple[str, ...] = ()
) -> tuple[tuple[str, ...], dict[str, list[tuple[Path, int]]]]:
    """Return the names of the classes, sorted, and the image files of each split with the numbers of their classes.

    Args:
        folders: The folder of each split; the class folders in that of train say which classes there are.
        arguments: The argument that gave the folder of a split, where that is not `root`.
        known: The names of the classes, where the training part is elsewhere.

    Raises:
        UserError: There is no class folder, one has no images, or a split has a class that train lacks; all in one
            report.
    """
    given = {split: (arguments or {}).get(split, "root") for split in folders}
    names = {split: _class_names(folder, given[split]) for split, folder in folders.items()}
    classes, problems = known or names["train"], Problems()
    numbers = {name: number for number, name in enumerate(classes)}
    found: dict[str, list[tuple[Path, int]]] = {split: [] for split in folders}
    for split, folder in folders.items():
        for name in names[split]:
            images, number = image_files(folder / name), numbers.get(name)
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
    what = "there are folders with names of splits beside other folders with images: which are classes?"
    fix = f"{away if 'train' in splits else 'put the class folders into one named train'}; {_ALL_CLASSES}"
    received = ", ".join(folder.name for folder in (*named, *others))
    return UserError(what, argument="root", received=received, fix=fix, family="split")


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
    what = f"its folders ({shown}) all hold the same folders ({same}): are they splits, or classes?"
    fix = f"name them train, val and test where they are splits, or say which is which, such as {example}"
    raise UserError(what, argument="root", received=str(root), fix=f"{fix}; {_ALL_CLASSES}", family="split")


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


def image_files(folder: Path) -> list[Path]:
    """Return the image files in a folder and below it, sorted, without hidden ones."""
    found = (file for file in folder.rglob("*") if _is_image(file.name) and file.is_file())
    return sorted(file for file in found if not _is_hidden(file, folder))


def _class_names(folder: Path, argument: str) -> tuple[str, ...]:
    """Return the names of the class folders, sorted."""
    names = tuple(own.name for own in _folders(folder))
    if not names:
        what, expected = "the folder holds no class folders", "one folder a class with its images"
        fix = f"move the images to {folder / 'CLASS'}" + ", any class of training" * (argument == "test_root")
        facts: dict[str, Any] = {"argument": argument, "received": str(folder), "family": "data-not-found"}
        raise UserError(what, expected=expected, fix=fix, **facts)
    return names
