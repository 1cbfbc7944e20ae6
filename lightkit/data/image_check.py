"""Image files that cannot be read, found before training starts.

The head of each file is parsed and its end is looked at. Up to some number of files their checksums are compared, too.
A file whose end is missing is decoded as a whole. Pixels of other files are decoded when they are trained on.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from lightkit.common.errors import UserError
from lightkit.common.failures import in_short

MOST_VERIFIED = 20_000
"""Files up to which the checksums are compared, for which they are read as a whole."""
_THREADS = 8
_ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND", "GIF": b";"}
"""What stands at the end of a whole file."""
_END_BYTES = 4096
_SHOWN = 10


def unreadable(files: Sequence[Path]) -> dict[Path, str]:
    """Return the image files that cannot be read, and why, in the order of the files.

    Args:
        files: The files.

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
    """Say why a file cannot be read; empty where nothing is found.

    Args:
        file: The file.
        verify: Whether checksums are compared.
    """
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
