"""The mark of a run that this project wrote: a signature of its configuration that nobody else can make.

The key is `lightkit/key` in the user's state folder (`$XDG_STATE_HOME`, `~/.local/state`), so it comes along in no
archive, nor can a mark be made without it. It counts only if nobody else can have written or read it. A mark also names
the project, for whose modules alone it speaks.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import shlex
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lightkit.common import run_files
from lightkit.common.disk import belongs_to_us, make_user_state, user_state
from lightkit.common.reading import UnreadableError, opened, parse_json
from lightkit.config.project import project_of, project_root

Provenance = Literal["ours", "changed", "foreign", "unsigned"]
_KEY_BYTES = 32
_MOST_MARKS, _MOST_BYTES = 100, 1 << 16
_ELSEWHERE = "XDG_STATE_HOME=FOLDER in the environment, a folder of yours that lasts"


def mark(run: Path, text: str) -> bool:
    """Sign a configuration that is about to be written into the folder of a run; those before it stay signed.

    Args:
        run: The folder.
        text: The configuration as YAML.

    Returns:
        Whether it is signed; nothing is where this user has no key that counts.
    """
    new = sign(text)
    if new is None:
        return False
    found = [*(item for item in _read_marks(run) if item != new), new]
    temporary = run / f"{run_files.MARK}.{os.getpid()}"
    with suppress(OSError):  # a full disk stops the run where it matters
        lines = (json.dumps(item._asdict()) for item in found[-_MOST_MARKS:])
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        temporary.replace(run / run_files.MARK)
    return True


def sign(text: str) -> Mark | None:
    """Return the mark of a configuration that this project writes; None where this user has no key that counts.

    Args:
        text: The configuration as YAML.
    """
    root = project_root()
    key, _ = _find_key(make=True)
    if key is None:
        return None
    project, inode = str(root or ""), _inode(root)
    return Mark(project, inode, _signature(key, project, inode, text))


def key_problem() -> KeyProblem | None:
    """Say why this user has no key that counts; None where there is one, or one can be made."""
    return _find_key(make=True)[1]


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
    key, _ = _find_key()
    if key is None or not _is_ours(run):
        return False
    pairs = [(item.mac, _signature(key, item.project, item.inode, text)) for item in _of_project(run, marks)]
    return any(hmac.compare_digest(theirs.encode(errors="replace"), right.encode()) for theirs, right in pairs)


def provenance(run: Path, text: str) -> Provenance:
    """Tell where the configuration in the folder of a run comes from, as far as its marks say.

    Args:
        run: The folder.
        text: The configuration as YAML.

    Returns:
        `ours` where this project wrote it; `changed` where the project signed another one, or with another key;
        `foreign` where another project signed it; `unsigned` where nobody did.
    """
    marks = _read_marks(run)
    if is_signed(run, text, marks):
        return "ours"
    if _of_project(run, marks):
        return "changed"
    return "foreign" if marks else "unsigned"


def _of_project(run: Path, marks: Iterable[Mark]) -> list[Mark]:
    """Return the marks that name the project we are in, or the one in which a run lies."""
    homes = [home for home in (project_root(), project_of(run)) if home is not None]
    names, inodes = {str(home) for home in homes} or {""}, {_inode(home) for home in homes}
    return [item for item in marks if item.project in names or item.inode in inodes]


class KeyProblem(NamedTuple):
    """Why no key counts."""

    what: str
    """What is wrong."""
    fix: str
    """What helps."""


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
    with suppress(OSError, ValueError):
        with opened(path) as file:
            lines = file.read(_MOST_BYTES).decode().splitlines()
        for line in lines[:_MOST_MARKS]:
            with suppress(UnreadableError):
                found += read_mark(parse_json(line))
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


def _is_ours(run: Path) -> bool:
    """Tell whether nobody else owns the folder of a run, or the one that it will be made in."""
    there = next((place for place in (run, *run.parents) if place.exists()), run)
    try:
        return belongs_to_us(there.stat())
    except OSError:
        return False


def _find_key(*, make: bool = False) -> tuple[bytes | None, KeyProblem | None]:
    """Return the user's key, and what is wrong where there is none that counts.

    Args:
        make: Make one where there is none.
    """
    state = user_state()
    if state is None:
        return None, KeyProblem("this user has no home to keep a key in", _ELSEWHERE)
    try:
        if make:
            _make_key(make_user_state(state))
        return _read_key(state), None
    except _Unsafe as error:
        return None, error.problem
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not make:
            return None, None
        return None, KeyProblem(f"no key can be kept in {state}: {error.strerror}", _ELSEWHERE)


def _make_key(state: Path) -> None:
    """Write a key where there is none. Of several processes the first one does; none sees half a key."""
    path, temporary = state / "key", state / f"key.{os.getpid()}.{secrets.token_hex(4)}"
    if os.path.lexists(path):
        return
    try:
        with os.fdopen(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without a second name for a file
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _read_key(state: Path) -> bytes:
    """Read the key; whoever may write its folder, or read it, could make marks.

    Raises:
        _Unsafe: It does not count.
        OSError: There is none, or it cannot be read.
    """
    path, folder = state / "key", state.stat()
    if not belongs_to_us(folder):
        raise _Unsafe(f"{state} belongs to another user", _ELSEWHERE)
    if _is_open(folder, stat.S_IWGRP | stat.S_IWOTH):
        raise _Unsafe(f"others may write to {state}", f"chmod 700 {shlex.quote(str(state))}")
    anew = f"rm {shlex.quote(str(path))}, and the next run makes another key"
    if path.is_symlink():
        raise _Unsafe(f"the key {path} is a link", anew)
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # it may be a pipe
    with os.fdopen(os.open(path, flags), "rb") as file:
        facts = os.fstat(file.fileno())
        if not belongs_to_us(facts):
            raise _Unsafe(f"the key {path} belongs to another user", anew)
        if _is_open(facts, stat.S_IRWXG | stat.S_IRWXO):
            raise _Unsafe(f"others may read or write the key {path}", anew)
        content = file.read(_KEY_BYTES + 1) if stat.S_ISREG(facts.st_mode) else b""
    if len(content) != _KEY_BYTES:
        raise _Unsafe(f"{path} is damaged, or no key", anew)
    return content


def _is_open(facts: os.stat_result, bits: int) -> bool:
    """Tell whether others have one of these rights; Windows does not tell by these bits."""
    return os.name != "nt" and bool(facts.st_mode & bits)


class _Unsafe(Exception):
    """A key that does not count."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.problem = KeyProblem(what, fix)
