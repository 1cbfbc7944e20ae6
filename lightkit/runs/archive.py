"""Runs as one file that another machine opens: a tar with a list of checksums, judged entry by entry when it is read.

What is unpacked is a run from elsewhere: it has no signature of this project, so what its configuration names is built
only where the user trusts it.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.names import folder_below, name_problem, same_name
from lightkit.common.reading import UnreadableError, parse_object
from lightkit.processes.files import replacing
from lightkit.runs.catalog import is_whole
from lightkit.runs.lock import lock_holder

_LIST = "lightkit-archive.json"
_VERSION = 1
_MOST_LIST = 1 << 26
_LEFT = (f"{run_files.SIGNATURES}*", run_files.LOCK, run_files.JOB_LOCK, f"{run_files.PROGRESS}*", run_files.SWEEP_STOP)
"""Names of files that belong to this machine or this project only."""


def archive(folders: Sequence[Path], path: Path, root: Path, *, overwrite: bool = False) -> int:
    """Write folders of runs into one file; returns the number of files in it.

    Args:
        folders: The runs; each is in it under the path that it has in `outputs/`.
        path: The file, compressed where it ends in `.gz`.
        root: The project.
        overwrite: Whether it may replace one.

    Raises:
        UserError: A run goes on, or the file is there or cannot be written.
    """
    for folder in folders:
        if lock_holder(folder) is not None:
            raise UserError("this run goes on", key=str(folder), fix=f"lightkit wait {folder}", family="folder-in-use")
    if path.exists() and not overwrite:
        raise UserError("the file is there", key=str(path), fix="--overwrite, or another name", family="cannot-write")
    places = {_place(folder.resolve(), (root / run_files.OUTPUTS).resolve()): folder for folder in folders}
    files = [(f"{place}/{name}", folder / name) for place, folder in places.items() for name in _files(folder)]
    listed: dict[str, list[Any]] = {name: [file.stat().st_size, _sum(file)] for name, file in files}
    content = json.dumps({"lightkit": _VERSION, "folders": [*places], "files": listed}).encode()
    try:
        with replacing(path, forced=True) as unfinished:
            mode: Any = "x:gz" if path.suffix == ".gz" else "x"
            with tarfile.open(unfinished, mode, format=tarfile.PAX_FORMAT) as tar:
                head = tarfile.TarInfo(_LIST)
                head.size = len(content)
                tar.addfile(head, io.BytesIO(content))
                for name, file in files:
                    _add(tar, name, file, listed[name][0])
    except OSError as error:
        what = f"cannot write: {error.strerror or error}"
        raise UserError(what, key=str(path), fix="another place", family="cannot-write") from error
    return len(files)


def _place(folder: Path, home: Path) -> str:
    return folder.relative_to(home).as_posix() if home in folder.parents else f"{run_files.RUNS}/{folder.name}"


def _add(tar: tarfile.TarFile, name: str, file: Path, size: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime = size, int(file.stat().st_mtime)
    with file.open("rb") as source:
        tar.addfile(entry, source)


def _files(folder: Path) -> Iterator[str]:
    """Yield the names of the files below a folder that go along; links are left out."""
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.is_symlink() and not any(fnmatchcase(file.name, one) for one in _LEFT):
            yield file.relative_to(folder).as_posix()


def _sum(file: Path) -> str:
    with file.open("rb") as source:
        return _digest(source)


def _digest(source: Any, target: Any = None) -> str:
    """Return the checksum of what is left of a file; copy it where a target is given."""
    found = hashlib.sha256()
    while block := source.read(1 << 20):
        found.update(block)
        if target is not None:
            target.write(block)
    return found.hexdigest()


def unpack(path: Path, root: Path) -> list[Path]:
    """Unpack an archive of runs into `outputs/`; no run is there before all of them are whole.

    Args:
        path: The file.
        root: The project.

    Returns:
        The folders of the runs.

    Raises:
        UserError: It is no such archive, is damaged, or holds what could harm: paths that lead elsewhere, links,
            devices, signatures, names that no terminal should show, more than its list says; or a run is there already.
    """
    home = root / run_files.OUTPUTS
    (home / run_files.UNPACKED).mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=home / run_files.UNPACKED))  # of its own: another may be under way
    try:
        with tarfile.open(path, "r:*") as tar:
            places, listed = _list_of(tar, path)
            targets = [
                folder_below(home, one, key=str(path), expected="the folder of a run", nested=True) for one in places
            ]
            for target in targets:
                if target.exists() or any(is_whole(one) for one in target.parents if home in one.parents):
                    raise UserError("a run is there", key=str(target), fix="move it away", family="folder-in-use")
            _extract(tar, listed, scratch, path)
        for place, target in zip(places, targets):
            target.parent.mkdir(parents=True, exist_ok=True)
            (scratch / place).rename(target)
        return targets
    except (tarfile.TarError, EOFError, zlib.error, UnreadableError, OSError) as error:
        raise _bad(path, str(error) or "it ends early") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        with suppress(OSError):  # where another is under way
            scratch.parent.rmdir()


def _bad(path: Path, why: str) -> UserError:
    fix = "ask whoever made it for another one"
    return UserError(f"no archive that can be unpacked: {why}", key=str(path), fix=fix, family="file")


def _list_of(tar: tarfile.TarFile, path: Path) -> tuple[list[str], dict[str, tuple[int, str]]]:
    """Read the list that an archive begins with, and judge every name in it."""
    head = tar.next()
    if head is None or head.name != _LIST or not head.isreg() or head.size > _MOST_LIST:
        raise _bad(path, "it does not begin with a list of its files")
    source = tar.extractfile(head)
    assert source is not None
    content = parse_object(source.read())
    places, files = content.get("folders"), content.get("files")
    is_list = isinstance(places, list) and isinstance(files, dict) and all(isinstance(one, str) for one in places)
    if content.get("lightkit") != _VERSION or not is_list or not places:
        raise _bad(path, "its list is not of this version")
    assert isinstance(places, list)
    assert isinstance(files, dict)
    taken = set[str]()
    for name, facts in files.items():
        problem = _problem(name, places) or _problem_of(facts) or ("in it twice" if same_name(name) in taken else None)
        if problem:
            raise _bad(path, f"{name!a}: {problem}")
        taken.add(same_name(name))
    known = (run_files.RUNS, run_files.SWEEPS)
    lonely = [one for one in places if one.split("/")[0] not in known or f"{one}/{run_files.CONFIG}" not in files]
    if lonely or any(one != other and f"{one}/".startswith(f"{other}/") for one in places for other in places):
        raise _bad(path, f"{(lonely or places)[0]!a} is no folder of a run")
    return places, {name: (facts[0], facts[1]) for name, facts in files.items()}


def _problem(name: str, places: Sequence[str]) -> str | None:
    """Say why a name cannot be that of a file in one of the folders; None where it can."""
    place = next((one for one in places if name.startswith(f"{one}/")), None)
    if place is None:
        return "in none of its folders"
    if any(fnmatchcase(name.rpartition("/")[2], one) for one in _LEFT):
        return "belongs to one machine only"
    parts = [part[1:] if part[:1] == "." and part[1:2] != "." else part for part in name[len(place) + 1 :].split("/")]
    return next(filter(None, map(name_problem, [*place.split("/"), *parts])), None)


def _problem_of(facts: object) -> str | None:
    is_whole = isinstance(facts, list) and [type(one) for one in facts] == [int, str]
    return None if is_whole else "its list says nothing about it"


def _extract(tar: tarfile.TarFile, listed: dict[str, tuple[int, str]], scratch: Path, path: Path) -> None:
    """Write every file, and compare it with the list."""
    left = dict(listed)
    for entry in tar:
        if entry.name == _LIST and len(left) == len(listed):
            continue
        facts = left.pop(entry.name, None)
        if facts is None or not entry.isreg() or entry.size != facts[0]:
            raise _bad(path, f"{entry.name!a} is not what its list says")
        target, source = scratch / entry.name, tar.extractfile(entry)
        target.parent.mkdir(parents=True, exist_ok=True)
        assert source is not None
        with target.open("xb") as file:
            if _digest(source, file) != facts[1]:
                raise _bad(path, f"{entry.name!a} is damaged")
    if left:
        raise _bad(path, f"{next(iter(left))!a} is missing")
