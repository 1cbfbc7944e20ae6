"""Pretrained weights that packages of models fetch: the file must be what its name says, and none runs code.

`torch.hub` opens a file that lies in its cache without comparing it with the checksum in its name, and as a pickle of
any objects. Whoever can put a file there, or answer for a server, would choose what runs.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from lightkit.common.errors import UNREADABLE, UserError

_LIBRARIES = ("peft", "timm", "torchmetrics", "torchvision")
_BETWEEN = ("contextlib", "functools", "torch", "typing_extensions", "warnings")
"""Packages that open a file for whoever called them."""
_CHECKSUM = re.compile(r"[-_]([0-9a-f]{8,64})\.\w+$")
"""The first digits of the SHA-256 in a name such as `resnet18-f37072fd.pth`."""
_MARK = "checks_downloads"


@contextmanager
def checked_downloads() -> Iterator[None]:
    """Check that what libraries fetch or find in torch's cache is what its name says and opens as tensors.

    Calls of other code, such as the user's own, pass as they are.

    Raises:
        UserError: Inside of the block: a file is not what its name says, or holds code (exit code 5).
    """
    import torch

    if hasattr(torch.load, _MARK):
        yield
        return
    hub: Any = torch.hub
    with ExitStack() as stack:
        for owner, name, wrap in (
            (torch, "load", _plain_load),
            (hub, "download_url_to_file", _checked_download),
            (hub, "_is_legacy_zip_format", _checked_file),  # sees every file of the cache before it is opened
        ):
            real = getattr(owner, name, None)
            if real is not None:
                stack.callback(setattr, owner, name, real)
                setattr(owner, name, wrap(real))
        if "timm.models" in sys.modules:
            sys.modules["timm.models"].set_pretrained_check_hash(True)  # for what timm fetches by itself
        yield


def _plain_load(load: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(f: Any, *args: Any, **options: Any) -> Any:
        if not _for_library(sys._getframe(1)):
            return load(f, *args, **options)
        try:
            return load(f, *args, **options | {"weights_only": True})
        except pickle.UnpicklingError as error:
            what = "the pretrained file holds more than tensors, which would run code; it was not opened"
            raise UserError(what, key=_shown(f), fix=_again(f), exit_code=UNREADABLE) from error

    setattr(wrapped, _MARK, True)
    return wrapped


def _checked_download(download: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(url: str, dst: str, hash_prefix: str | None = None, progress: bool = True) -> Any:
        if hash_prefix is None and _for_library(sys._getframe(1)):
            hash_prefix = _checksum_in(dst)
        return download(url, dst, hash_prefix, progress=progress)

    return wrapped


def _checked_file(inspect: Callable[[str], bool]) -> Callable[[str], bool]:
    def wrapped(filename: str) -> bool:
        expected = _checksum_in(filename) if _for_library(sys._getframe(1)) else None
        if expected is None:
            return inspect(filename)
        digest = hashlib.sha256()
        with Path(filename).open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
        found = digest.hexdigest()[: len(expected)]
        if found != expected:
            raise UserError(
                "the pretrained file is not the one that was published; it was not opened",
                key=_shown(filename),
                expected=f"a SHA-256 that begins with {expected}, as the name says",
                received=found,
                fix=_again(filename),
                exit_code=UNREADABLE,
            )
        return inspect(filename)

    return wrapped


def _checksum_in(file: str) -> str | None:
    found = _CHECKSUM.search(Path(file).name)
    return found[1] if found else None


def _for_library(frame: FrameType | None) -> bool:
    """Tell whether a call comes from one of the libraries, by way of torch or not."""
    while frame is not None:
        top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if top not in _BETWEEN:
            return top in _LIBRARIES
        frame = frame.f_back
    return False


def _shown(file: Any) -> str | None:
    return os.fspath(file) if isinstance(file, (str, os.PathLike)) else None


def _again(file: Any) -> str | None:
    shown = _shown(file)
    return f"delete {shown}, so that it is fetched again" if shown else None
