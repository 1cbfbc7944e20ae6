"""The mark of a run that this project wrote: a signature of its configuration that nobody else can make.

The key is `lightkit/key` in the user's state folder (`$XDG_STATE_HOME`, `~/.local/state`), so it comes along in no
archive, nor can a mark be made without it. Where that folder cannot be written, such as in a read-only home, the key is
`outputs/.key` of the project together with the number and the time that the file system gave this very file: a file
that was unpacked there has others. A mark also names the project, for whose modules alone it speaks.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from lightkit.common import run_files
from lightkit.common.state import user_state
from lightkit.config.project import project_of, project_root

_KEY_BYTES = 32
_MOST_MARKS, _MOST_BYTES = 100, 1 << 16
_PATIENCE_SECONDS = 1.0


def mark(run: Path, text: str) -> None:
    """Sign a configuration that is about to be written into the folder of a run; those before it stay signed.

    Nothing is signed where no key can be kept.

    Args:
        run: The folder.
        text: The configuration as YAML.
    """
    new = sign(text)
    if new is None:
        return
    found = [*(item for item in _read_marks(run) if item != new), new]
    temporary = run / f"{run_files.MARK}.{os.getpid()}"
    with suppress(OSError):  # a full disk stops the run where it matters
        lines = (json.dumps(item._asdict()) for item in found[-_MOST_MARKS:])
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        temporary.replace(run / run_files.MARK)


def sign(text: str) -> Mark | None:
    """Return the mark of a configuration that this project writes; None where no key can be kept.

    Args:
        text: The configuration as YAML.
    """
    root = project_root()
    key = _key_of_user(make=True) or _key_of_project(root, make=True)
    if key is None:
        return None
    project, inode = str(root or ""), _inode(root)
    return Mark(project, inode, _signature(key, project, inode, text))


def is_marked(run: Path, text: str) -> bool:
    """Tell whether this project wrote a configuration into the folder of a run, as far as that can be proved.

    It holds for the project we are in, and for the one in which the run lies: also where their folders were renamed.

    Args:
        run: The folder; it may have been moved since.
        text: The configuration as YAML.
    """
    return is_signed(run, text, _read_marks(run))


def is_signed(run: Path, text: str, marks: Iterable[Mark]) -> bool:
    """Tell whether one of these marks proves that this project wrote a configuration; see `is_marked`.

    Args:
        run: Folder of the run.
        text: The configuration as YAML.
        marks: Marks that were kept elsewhere.
    """
    root = project_root()
    homes = [home for home in (root, project_of(run)) if home is not None]
    names, inodes = {str(home) for home in homes} or {""}, {_inode(home) for home in homes}
    keys = [key for key in (_key_of_user(), *map(_key_of_project, homes)) if key is not None]
    ours = (item for item in marks if item.project in names or item.inode in inodes)
    pairs = [(item.mac, _signature(key, item.project, item.inode, text)) for item in ours for key in keys]
    return any(hmac.compare_digest(theirs.encode(errors="replace"), right.encode()) for theirs, right in pairs)


class Mark(NamedTuple):
    """One line of the file."""

    project: str
    """Folder of the project; empty where there was none."""
    inode: int
    """Its number in the file system, which a folder keeps when it is renamed."""
    mac: str
    """The signature."""


def _read_marks(run: Path) -> list[Mark]:
    """Read the marks in a folder, whoever wrote them."""
    path, found = run / run_files.MARK, list[Mark]()
    with suppress(OSError, UnicodeDecodeError):
        if not path.is_file():
            return []
        with path.open(encoding="utf-8") as file:
            lines = file.read(_MOST_BYTES).splitlines()
        for line in lines[:_MOST_MARKS]:
            with suppress(ValueError, TypeError, RecursionError):
                found += read_mark(json.loads(line))
    return found


def read_mark(content: Any) -> list[Mark]:
    """Read a mark from what JSON gave; nothing where it is none."""
    with suppress(TypeError):
        item = Mark(**content)
        if [type(value) for value in item] == [str, int, str]:
            return [item]
    return []


def _signature(key: bytes, project: str, inode: int, text: str) -> str:
    lines = text.rstrip("\n").split("\n")
    while lines and lines[0].startswith("#"):  # comments above it are in the file only
        del lines[0]
    signed = json.dumps([project, inode, "\n".join(lines)])
    return hmac.new(key, signed.encode(), hashlib.sha256).hexdigest()


def _inode(folder: Path | None) -> int:
    try:
        return folder.stat().st_ino if folder is not None else 0
    except OSError:
        return 0


def _key_of_user(*, make: bool = False) -> bytes | None:
    """Return the key in the user's state folder; None where there is none, or none can be made."""
    state = user_state()
    found = _read_key(state / "key", make=make) if state is not None else None
    return found[0] if found else None


def _key_of_project(root: Path | None, *, make: bool = False) -> bytes | None:
    """Return the key of a project, bound to the file that holds it."""
    found = _read_key(root / run_files.OUTPUTS / ".key", make=make) if root is not None else None
    if found is None:
        return None
    content, facts = found
    return hashlib.sha256(content + f"{facts.st_ino} {facts.st_ctime_ns}".encode()).digest()


def _read_key(path: Path, *, make: bool) -> tuple[bytes, os.stat_result] | None:
    if make:
        with suppress(OSError):  # it is there, or the folder cannot be written
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            try:
                os.write(handle, secrets.token_bytes(_KEY_BYTES))
            finally:
                os.close(handle)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    with suppress(OSError):
        while True:
            with path.open("rb") as file:
                content, facts = file.read(_KEY_BYTES + 1), os.fstat(file.fileno())
            if len(content) == _KEY_BYTES:
                return content, facts
            if time.monotonic() > deadline:  # not another process that is just writing it: a disk that was full
                return None
            time.sleep(0.01)
    return None
