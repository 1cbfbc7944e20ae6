"""Names of folders that stand in a file: each is a folder below that of the file, whoever has written it."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection
from pathlib import Path, PureWindowsPath
from typing import Any

from lightkit.common.errors import UserError

_MOST_BYTES = 240
"""Of a file system's 255, so that a file beside the folder can have its name and an ending."""
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of characters that control, format or separate, and of halves of pairs."""


def name_problem(name: object) -> str | None:
    """Say why something cannot be the name of a folder in another one; None where it can be.

    Args:
        name: The name, as it stands in a file.
    """
    if not isinstance(name, str) or not name:
        return "the name of a folder is a text, and not empty"
    plain = unicodedata.normalize("NFKC", name)  # some signs only look like a slash or a dot
    if any(sign in text for text in (name, plain) for sign in "/\\") or PureWindowsPath(name).drive:
        return "the name of a folder leads nowhere else: it has no slash and no drive"
    if plain.startswith("."):
        return "the name of a folder does not begin with a dot"
    if any(unicodedata.category(sign) in _UNSEEN for sign in name) or name != name.strip():
        return "the name of a folder has no control characters, and no spaces around it"
    if len(name.encode()) > _MOST_BYTES:
        return f"too long for the name of a folder: at most {_MOST_BYTES} bytes"
    return None


def same_name(name: str) -> str:
    """Return what two names have in common that are the same for some file systems: `A` and `a`."""
    return unicodedata.normalize("NFC", name).casefold()


def folder_below(
    home: Path, name: object, *, key: str, expected: str, taken: Collection[str] = (), nested: bool = False
) -> Path:
    """Return the folder of a name that stands in a file, below the folder of that file.

    Args:
        home: The folder that it has to be in.
        name: The name.
        key: Where it stands, for the message.
        expected: What it is the name of.
        taken: Names in `home` that belong to something else.
        nested: Whether it may be a path of several names.

    Raises:
        UserError: It is no such name, is taken, or leads to another place by a link.
    """
    facts: dict[str, Any] = {
        "expected": expected,
        "fix": "leave it alone, unless you know who made it; then write another name there",
        "family": "file",
    }
    parts = name.split("/") if nested and isinstance(name, str) else [name]
    problem = next(filter(None, map(name_problem, parts)), None)
    if problem is None and same_name(str(parts[0])) in map(same_name, taken):
        problem = "this name belongs to a file or folder of lightkit's own"
    if problem is not None:
        raise UserError(problem, key=key, received=name, **facts)
    folder = home
    for part in map(str, parts):
        folder = folder / part
        if folder.is_symlink():
            facts["fix"] = "put what it leads to in its place, if you know who made the link"
            raise UserError("this is a link, which may lead anywhere", key=str(folder), received=name, **facts)
        if folder.exists() and not folder.is_dir():
            raise UserError("this is no folder", key=str(folder), received=name, **facts)
    return folder


SPLIT_NAMES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
"""The names that each split is known by, in upper or lower case."""
KNOWN = tuple(name for names in SPLIT_NAMES.values() for name in names)
"""All of them."""


def split_named(name: object) -> str | None:
    """Return the split (`train`, `val`, `test`) that a name stands for; None where it stands for none."""
    plain = name.strip().lower() if isinstance(name, str) else ""
    return next((split for split, names in SPLIT_NAMES.items() if plain in names), None)
