"""The modules of the user that a run has imported: their checksums, and their source as it was, in the run's folder.

Also the variables and files that they name.

Equal files of several runs are one file on the disk, which all of their folders name (hard links to a store beside the
runs); a folder that is copied elsewhere takes its files along.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import sysconfig
from contextlib import suppress
from functools import cache, lru_cache
from operator import is_
from pathlib import Path
from typing import Any

from lightkit.common import run_files
from lightkit.common.failures import is_own
from lightkit.common.reading import UnreadableError, read_file
from lightkit.processes.files import write_whole

_DIGITS = 16
_PYTHON = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sysconfig.get_path("stdlib"))
"""Where most modules lie: to look at each of their paths takes long."""
LIMIT = 20 * 2**20
"""Bytes of source that a run keeps at most."""


_SEEN: dict[str, Any] = {"modules": {}, "files": {}}
"""The modules that were imported when their files were asked for last, and the files."""
_QUOTED = re.compile(r"""(["'])([\w./ -]{2,200})\1""")
_HARMLESS = re.compile(r"[\d.]{1,8}|.{0,4}")
"""Values of variables that are no secrets."""


def own_files() -> dict[str, Path]:
    """Return the file of each imported module that is neither installed nor lightkit's, by its name.

    A package that is installed may write modules of its own elsewhere, as `torch.compile` does.
    """
    # To go through all takes long. What libraries put among the modules may not be comparable.
    seen, modules = _SEEN["modules"], dict(sys.modules)
    if len(seen) != len(modules) or not all(map(is_, seen.values(), modules.values())):
        files = {name: file for name, it in modules.items() if isinstance(file := _file(it), str)}
        mine = {name: Path(files[name]) for name in sorted(filter(lambda name: _is_mine(files[name]), files))}
        tops = {name: name.partition(".")[0] for name, file in mine.items() if file.suffix == ".py"}
        found = {name: mine[name] for name, top in tops.items() if top in mine or top not in files}
        _SEEN.update(modules=modules, files=found)
    return dict(_SEEN["files"])


def _file(module: Any) -> Any:
    """Return the file of a module, without asking the module: some import all of their parts then."""
    with suppress(AttributeError):
        return object.__getattribute__(module, "__dict__").get("__file__")
    return None


@cache
def _is_mine(file: str) -> bool:
    return not file.startswith(_PYTHON) and is_own(file)


def own_modules() -> dict[str, str]:
    """Return the checksum of each such module by its name."""
    found = {}
    for name, file in own_files().items():
        with suppress(OSError):
            found[name] = _mark(file.read_bytes())
    return found


def named_by_code() -> dict[str, str]:
    """Return what these modules name in quotes: variables with their values, and files with their checksums.

    Of a value that may be a secret it is a part of the checksum. Files are looked for where the run was started, and
    beside the module that names them; those of more than 20 MiB are left out.
    """
    sources, found = [*own_files().values()], dict[str, str]()
    texts = [(own, own.read_text("utf-8", "replace")) for own in sources if own.is_file()]
    quoted = [(own, name) for own, text in texts for name in _quoted(text)]
    for name in {name for _, name in quoted if name in os.environ}:
        value = os.environ[name]
        found[name] = value if _HARMLESS.fullmatch(value) else f"checksum {_mark(value.encode())[:3]}"
    here, names = Path.cwd(), {(own.parent, name) for own, name in quoted}
    places = {name if name[0] == "/" else f"{folder}/{name}" for own, name in names for folder in (here, own)}
    for place in filter(os.path.isfile, places):
        with suppress(OSError, UnreadableError):
            found[os.path.relpath(place)] = f"checksum {_mark(read_file(Path(place), LIMIT))}"
    return dict(sorted(found.items()))


@lru_cache(4096)
def _quoted(text: str) -> set[str]:
    return {name for _, name in _QUOTED.findall(text)}


def _mark(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGITS]


def keep_code(folder: Path, store: Path | None) -> list[str]:
    """Keep the source of these modules in the folder of a run, as `code/package/module.py`.

    What an earlier part of the run has kept otherwise goes to `code/earlier/`, by its checksum.

    Args:
        folder: The run's.
        store: Folder of the files that runs have in common; None where the run is on its own.

    Returns:
        Names of the modules that are not kept, as all together would exceed `LIMIT`.

    Raises:
        OSError: The folder cannot be written.
    """
    size, left, home = 0, list[str](), folder / run_files.CODE
    for name, file in own_files().items():
        content = file.read_bytes() if file.is_file() else b""
        size += len(content)
        if size > LIMIT:
            left.append(name)
            continue
        kept = home / (name.replace(".", "/") + ("/__init__.py" if file.name == "__init__.py" else ".py"))
        if kept.is_file() and kept.read_bytes() != content:
            old = home / run_files.CODE_EARLIER / _mark(kept.read_bytes()) / kept.name
            old.parent.mkdir(parents=True, exist_ok=True)
            kept.replace(old)
        if not kept.is_file():
            _put(kept, content, store and store / hashlib.sha256(content).hexdigest())
    return left


def _put(kept: Path, content: bytes, shared: Path | None) -> None:
    """Make a file a second name of the shared one with the same content, or a file of its own where there is none."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    if shared is None:
        return write_whole(kept, content)
    try:
        shared.parent.mkdir(parents=True, exist_ok=True)
        if not shared.is_file() or shared.read_bytes() != content:
            write_whole(shared, content)
            shared.chmod(0o444)  # or an edit in one folder would be one in all
        os.link(shared, kept)
    except OSError:  # another disk, or one without such links
        write_whole(kept, content)


def kept_code(folder: Path) -> dict[str, str]:
    """Return the source that a run has kept, by the path of each file below its `code/`."""
    home = folder / run_files.CODE
    files = [file for file in sorted(home.rglob("*.py")) if file.is_file() and not file.is_symlink()]
    own = [file for file in files if file.relative_to(home).parts[0] != run_files.CODE_EARLIER]
    return {file.relative_to(home).as_posix(): file.read_text(encoding="utf-8", errors="replace") for file in own}


def earlier_code(folder: Path) -> list[str]:
    """Return the path below `code/` of each file that an earlier part of a resumed run had otherwise."""
    home = folder / run_files.CODE
    return sorted(file.relative_to(home).as_posix() for file in (home / run_files.CODE_EARLIER).glob("*/*.py"))


def code_diff(first: dict[str, str], second: dict[str, str]) -> dict[str, str]:
    """Return for each file that differs its unified diff; of one that only one run has, one line.

    Args:
        first: What `kept_code` gave.
        second: The same of another run.
    """
    import difflib

    found = {}
    for name in sorted({*first, *second}):
        if name not in first or name not in second:
            found[name] = f"only in the {'first' if name in first else 'second'} run"
        elif first[name] != second[name]:
            both = (first[name].splitlines(), second[name].splitlines())
            found[name] = "\n".join(difflib.unified_diff(*both, f"a/{name}", f"b/{name}", lineterm="", n=1))
    return found
