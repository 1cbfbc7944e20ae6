"""Runs as one file that another machine opens: a tar with a list of checksums, judged entry by entry when it is read.

What is unpacked is a run from elsewhere: it has no signature of this project, so what its configuration names is built
only where the user trusts it.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from lightkit.common import run_files
from lightkit.common.errors import UserError, writing_to
from lightkit.common.names import folder_below, name_problem, same_name
from lightkit.common.reading import TEXTS, WHOLE, Kind, Shape, fitting, parse_object
from lightkit.processes.files import replacing
from lightkit.runs.care import working_in
from lightkit.runs.catalog import is_whole

_LIST = "lightkit-archive.json"
_VERSION = 1
_MOST_LIST = 1 << 26
_MOST_PATH = 1024
_HOMES = (run_files.RUNS, run_files.SWEEPS)
_FACTS = Kind("facts", lambda one: isinstance(one, list) and [*map(type, one)] == [int, str] and one[0] >= 0)
_SHAPE: Shape = {"lightkit": WHOLE, "folders": TEXTS, "files": {"*": _FACTS}}
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
        if working_in(folder) is not None:
            raise UserError("this run goes on", key=str(folder), fix=f"lightkit wait {folder}", family="folder-in-use")
    if path.exists() and not overwrite:
        raise UserError("the file is there", key=str(path), fix="--overwrite, or another name", family="cannot-write")
    places = [_place(folder.resolve(), (root / run_files.OUTPUTS).resolve()) for folder in folders]
    files = [(f"{place}/{name}", folder / name) for place, folder in zip(places, folders) for name in _files(folder)]
    with writing_to(path, fix="another place"):
        listed: dict[str, list[Any]] = {name: [file.stat().st_size, _sum(file)] for name, file in files}
        content = json.dumps({"lightkit": _VERSION, "folders": places, "files": listed}).encode()
        if problem := _problem_of_list(places, listed):  # or nobody could unpack it
            raise UserError(f"cannot be archived: {problem}", key=str(path), fix="another name", family="file")
        with replacing(path, forced=True) as unfinished:
            mode: Any = "x:gz" if path.suffix == ".gz" else "x"
            with tarfile.open(unfinished, mode, format=tarfile.PAX_FORMAT) as tar:
                head = tarfile.TarInfo(_LIST)
                head.size = len(content)
                tar.addfile(head, io.BytesIO(content))
                for name, file in files:
                    _add(tar, name, file, listed[name][0])
    return len(files)


def _place(folder: Path, home: Path) -> str:
    is_usual = any(home / name in folder.parents for name in _HOMES)
    return folder.relative_to(home).as_posix() if is_usual else f"{run_files.RUNS}/{folder.name}"


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
    home, aside = root / run_files.OUTPUTS, root / run_files.OUTPUTS / run_files.UNPACKED
    try:
        aside.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=aside, ignore_cleanup_errors=True) as scratch, tarfile.open(path) as tar:
            places, listed = _list_of(tar, path)
            targets = _targets(home, places, listed, path)
            _extract(tar, listed, Path(scratch), path)
            for place, target in targets.items():
                target.parent.mkdir(parents=True, exist_ok=True)
                Path(scratch, place).rename(target)
        return [home / place for place in places]
    except UserError:
        raise
    except Exception as error:  # whatever comes of a file that anybody may have written
        if not getattr(error, "errno", None):
            raise _bad(path, str(error) or "it ends early") from error
        what, fix = f"cannot be unpacked: {getattr(error, 'strerror', '')}", "make room, or let this user write here"
        raise UserError(what, key=str(home), fix=fix, family="cannot-write") from error
    finally:
        with suppress(OSError):  # where another is under way
            aside.rmdir()


def _targets(home: Path, places: Sequence[str], listed: Mapping[str, list[Any]], path: Path) -> dict[str, Path]:
    """Return the folders that are to be made; where an import was cut off, some of its runs are there already.

    Raises:
        UserError: One is no name, lies in that of a run, or is that of another run.
    """
    found = {one: folder_below(home, one, key=str(path), expected="the folder of a run", nested=True) for one in places}
    new = {place: target for place, target in found.items() if not target.exists()}
    around = [one for target in found.values() for one in target.parents if home in one.parents and is_whole(one)]
    for name, facts in listed.items() if new else ():
        file = home / name
        if not {*new} & {*_above(name)} and (not file.is_file() or [file.stat().st_size, _sum(file)] != facts):
            around.append(file.parent)
    if around or not new:
        key = str([*around, home / places[0]][0])
        raise UserError("a run is there", key=key, fix="move it away", family="folder-in-use")
    return new


def _bad(path: Path, why: str) -> UserError:
    fix = "ask whoever made it for another one"
    return UserError(f"no archive that can be unpacked: {why}", key=str(path), fix=fix, family="file")


def _list_of(tar: tarfile.TarFile, path: Path) -> tuple[list[str], dict[str, list[Any]]]:
    """Read the list that an archive begins with, and judge every name in it."""
    head = tar.next()
    if head is None or head.name != _LIST or not head.isreg() or head.issparse() or head.size > _MOST_LIST:
        raise _bad(path, "it does not begin with a list of its files")
    source, wrong = tar.extractfile(head), list[str]()
    assert source is not None
    found = fitting(parse_object(source.read()), _SHAPE, wrong)
    places, files = found.get("folders"), found.get("files")
    if wrong or found.get("lightkit") != _VERSION or not places or not files or None in files.values():
        raise _bad(path, "its list is not of this version")
    if problem := _problem_of_list(places, files):
        raise _bad(path, problem)
    return places, files


def _problem_of_list(places: Sequence[str], files: Collection[str]) -> str | None:
    """Say what is wrong with the list of an archive, whoever has made it; None where nothing is."""
    homes, taken = {*places}, {same_name(name): name for name in files}
    for name in files:
        is_twice = taken[same_name(name)] != name or any(same_name(one) in taken for one in _above(name))
        if problem := _problem(name, homes) or ("in it twice" if is_twice else None):
            return f"{name!a}: {problem}"
    for one in places:
        has_mark = any(f"{one}/{mark}" in files for mark in (run_files.CONFIG, run_files.SWEEP_JOURNAL))
        if not has_mark or not {*_above(one)} & {*_HOMES} or homes & {*_above(one)}:
            return f"{one!a} is no folder of a run"
    return None if len(homes) == len(places) else "two runs have the same folder"


def _above(name: str) -> list[str]:
    """Return the folders around a path: `a` and `a/b` of `a/b/c`."""
    return [name[:place] for place, sign in enumerate(name[:_MOST_PATH]) if sign == "/"]


def _problem(name: str, places: Collection[str]) -> str | None:
    """Say why a name cannot be that of a file in one of the folders; None where it can be."""
    place = next((one for one in _above(name) if one in places), None)
    if place is None:
        return "in none of its folders"
    if len(name) > _MOST_PATH:
        return "too long"
    own = name[len(place) + 1 :].split("/")
    if any(fnmatchcase(same_name(part), one) for part in own for one in _LEFT):
        return "belongs to one machine only"
    parts = [part[1:] if part[:1] == "." and part[1:2] != "." else part for part in own]
    return next(filter(None, map(name_problem, [*place.split("/"), *parts])), None)


def _extract(tar: tarfile.TarFile, listed: Mapping[str, list[Any]], scratch: Path, path: Path) -> None:
    """Write every file, and compare it with the list."""
    left = dict(listed)
    for entry in tar:
        if entry.name == _LIST and len(left) == len(listed):
            continue
        facts = left.pop(entry.name, None)
        if facts is None or not entry.isreg() or entry.issparse() or entry.size != facts[0]:
            raise _bad(path, f"{entry.name!a} is not what its list says")
        if entry.size > shutil.disk_usage(scratch).free:
            raise OSError(errno.ENOSPC, "there is not enough room")
        target, source = scratch / entry.name, tar.extractfile(entry)
        target.parent.mkdir(parents=True, exist_ok=True)
        assert source is not None
        with target.open("xb") as file:
            if _digest(source, file) != facts[1]:
                raise _bad(path, f"{entry.name!a} is damaged")
    if left:
        raise _bad(path, f"{next(iter(left))!a} is missing")
