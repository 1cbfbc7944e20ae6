"""What is known of many runs at once, read from their folders through a cache that may be deleted at any time.

The cache (`outputs/.index.json`) holds of each run what its files said, and the times and sizes of these files. Whoever
reads it looks at every file again, and reads those that have changed. Whether a run goes on is never kept: see
`lightkit.runs.record.RunRecord.status`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightkit.common import run_files
from lightkit.common.collecting import uncollected
from lightkit.common.ranking import improves
from lightkit.common.reading import UnreadableError, parse_mapping, parse_object, read_file
from lightkit.processes.files import replacing
from lightkit.runs.reading import read_config, read_facts, read_labels, read_overrides, read_result, row_of, run_folders
from lightkit.runs.record import RunRecord, Section, as_dict

_VERSION = 4
_FILES = (run_files.CONFIG, run_files.RESULT, run_files.OVERRIDES, run_files.ENVIRONMENT, run_files.LABELS)
_OF_RESULT = ("status", "reason", "objective", "best", "test", "metrics", "epochs", "steps", "seconds")
"""What of `result.json` is kept."""
_KINDS = [dict, dict, list, str, str, dict, list]
_ENTRY = ("result", "progress", "overrides", "noted", "data", "labels", "damage")
"""What is kept of a run, besides its sections."""
_Said = tuple[list[str], dict[str, Any]]
_TOP = re.compile(r"^(?=[^\s#-])", re.M)
"""Where a top-level key of a configuration begins."""
_WORTH = 16
"""What was read anew, as a share of the cache, from which on the cache is written."""


def read_record(folder: Path) -> RunRecord:
    """Read what the files of a run say."""
    sections = dict[str, Section]()
    return _record(folder, sections, _content(folder, sections))


class RunIndex:
    """The runs of a project.

    Args:
        root: The project.
        writes: Whether the cache is written, where much was read.
    """

    def __init__(self, root: Path, *, writes: bool = True) -> None:
        self.root, self._writes = root, writes
        self._path = root / run_files.OUTPUTS / run_files.INDEX
        self._sections, self._known, self._names = dict[str, Section](), dict[str, str](), dict[Path, set[str]]()
        self._size, self._read, self._home = 0, 0, f"{self._path.parent}{os.sep}"
        self._load()

    def below(self, folder: Path) -> Iterable[Path]:
        """Find the runs below a folder, in no order; what is in theirs is not looked for anew when they are read."""
        self._names |= (found := run_folders(folder))
        return found

    def may_hold(self, folder: Path, name: str) -> bool:
        """Tell whether something of this name is in the folder of a run; also where nobody has looked."""
        return name in self._names.get(folder, (name,))

    def noted(self, folder: Path) -> str | None:
        """Return when a run began, as it wrote that down; None where its file has changed since it was read."""
        digest, _, line = self._known.get(str(folder).removeprefix(self._home), "").partition("\t")
        is_known = digest.split("|")[3:4] == [_mark(f"{folder}/{run_files.ENVIRONMENT}")[0]]
        return said[1]["noted"] if is_known and (said := self._said(line)) else None

    @uncollected()
    def records(self, folders: Iterable[Path]) -> list[RunRecord]:
        """Return what is known of runs, in their order.

        Args:
            folders: Theirs; those outside of `outputs/` are read from their files.
        """
        found = list[RunRecord]()
        for folder in folders:
            path = str(folder)
            name = path.removeprefix(self._home)
            if name == path:
                found.append(read_record(folder))
                continue
            digest, size = _digest(path, self._names.get(folder))
            known, _, line = self._known.get(name, "").partition("\t")
            said = self._said(line) if known == digest else None
            if said is None:
                said = _content(folder, self._sections)
                self._known[name] = "\t".join([digest, " ".join(said[0]), json.dumps(said[1], separators=(",", ":"))])
                self._read += size
            found.append(_record(folder, self._sections, said, is_unlocked=not self.may_hold(folder, run_files.LOCK)))
        if self._writes and self._read * _WORTH > self._size:
            self._save()
        return found

    def _load(self) -> None:
        """Read the cache; one that is missing, damaged or of another version is empty."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            content = memoryview(read_file(self._path, sys.maxsize))  # parts of it are no copies
            head = len(_head(b""))
            if content[:head] == _head(content[head + 1 :]):
                first, *lines = str(content[head + 1 :], "utf-8").split("\n")
                found = parse_object(first)
                nodes = found["sections"].items()
                self._sections = {mark: Section(node) for mark, node in nodes if isinstance(node, dict)}
                self._known = dict(zip(found["runs"], lines, strict=True))
                self._size = len(content)

    def _said(self, line: str) -> _Said | None:
        """Return what the cache says of a run; None where it is something else: it may come with an archive."""
        marks, _, content = line.partition("\t")
        with contextlib.suppress(UnreadableError):
            known, entry = marks.split(), parse_object(content)
            if all(map(self._sections.__contains__, known)) and [*map(type, map(entry.get, _ENTRY))] == _KINDS:
                return (known, entry) if {*map(type, entry["overrides"] + entry["damage"])} <= {str} else None
        return None

    def _save(self) -> None:
        """Write the cache as a whole; where that cannot be done, the next one reads the folders again."""
        home = self._path.parent
        runs = {name: line for name, line in self._known.items() if Path(f"{home}/{name}").is_dir()}
        used = {mark for line in runs.values() for mark in line.partition("\t")[2].partition("\t")[0].split()}
        sections = {mark: self._sections[mark].node for mark in used & self._sections.keys()}
        first = json.dumps({"sections": sections, "runs": [*runs]}, separators=(",", ":"))
        body = "\n".join([first, *runs.values()]).encode()
        with contextlib.suppress(OSError), replacing(self._path) as unfinished:
            unfinished.write_bytes(_head(body) + b"\n" + body)
        self._size, self._read = len(body), 0


def index_damage(path: Path) -> str:
    """Say what is wrong with a cache; nothing where there is none, or it is one of another version.

    Args:
        path: The file.
    """
    try:
        head, _, body = read_file(path, sys.maxsize).partition(b"\n")
    except FileNotFoundError:
        return ""
    except UnreadableError as error:
        return str(error)
    return "" if head == _head(body) or re.match(rb"lightkit index (?!%d )\d" % _VERSION, head) else "damaged"


def _head(body: bytes | memoryview) -> bytes:
    return f"lightkit index {_VERSION} {hashlib.sha256(body).hexdigest()}".encode()


def _digest(folder: str, names: Collection[str] | None) -> tuple[str, int]:
    """Return times, sizes and numbers of a run's files, and how much there is to read.

    Args:
        folder: The run's.
        names: Of what is in it, where that is known.
    """
    found = [_mark(f"{folder}/{name}") if names is None or name in names else ("", 0) for name in _FILES]
    # With a result nobody reads what was logged.
    found += [] if found[1][0] else [_mark(f"{folder}/{run_files.METRICS}")]
    return "|".join([mark for mark, _ in found]), sum([size for _, size in found])


def _mark(path: str) -> tuple[str, int]:
    """Return time, size and number of a file, and its size; nothing where there is none."""
    try:
        facts = os.stat(path)  # noqa: PTH116  a path for each file would take twice as long
    except OSError:
        return "", 0
    return f"{facts.st_mtime_ns:x}.{facts.st_size:x}.{facts.st_ino:x}", facts.st_size


def _content(folder: Path, sections: dict[str, Section]) -> _Said:
    """Read a run.

    Args:
        folder: Its folder.
        sections: Of configurations, by a checksum of their text; gets those that are new.

    Returns:
        The checksums of its sections, and the rest.
    """
    damage = list[str]()
    result, facts = read_result(folder, damage), read_facts(folder, damage)
    text = read_config(folder, damage)
    found = _parse(text, sections, damage) if text else []
    config = {name: node for mark in found for name, node in sections[mark].node.items()}
    return found, {
        "result": {name: result[name] for name in _OF_RESULT if name in result},
        "progress": {} if result else read_progress(folder, as_dict(config.get("metrics"))),
        "overrides": read_overrides(folder, damage),
        "noted": facts.get("time") or "",
        "data": facts.get("data") or "",
        "labels": read_labels(folder, damage),
        "damage": damage,
    }


def _record(folder: Path, sections: Mapping[str, Section], said: _Said, *, is_unlocked: bool = False) -> RunRecord:
    result, progress, overrides, noted, data, labels, damage = map(said[1].__getitem__, _ENTRY)
    own = tuple(map(sections.__getitem__, said[0]))
    return RunRecord(folder, own, result, progress, tuple(overrides), noted, data, labels, tuple(damage), is_unlocked)


def _parse(text: str, known: dict[str, Section], damage: list[str]) -> list[str]:
    """Parse a configuration by its top-level nodes, as most runs share most of these.

    Args:
        text: As YAML.
        known: Nodes by a checksum of their text; gets those that are new.
        damage: Gets a line if it is damaged, unless that was noted before.
    """
    wrong = ""
    for choice in (_TOP.split(text), [text]):  # as a whole where the parts are no YAML by themselves
        marks = [hashlib.sha256(part.encode(errors="replace")).hexdigest()[:24] for part in choice]
        new = {mark: part for mark, part in zip(marks, choice) if mark not in known}
        try:
            nodes = {mark: json.loads(json.dumps(parse_mapping(part), default=str)) for mark, part in new.items()}
        except UnreadableError as error:
            wrong = str(error)
            continue
        known.update({mark: Section(node) for mark, node in nodes.items()})
        return [mark for mark in marks if known[mark].node]
    damage.append(f"{run_files.CONFIG}: {wrong}")
    return []


def all_records(root: Path) -> list[RunRecord]:
    """Return what is known of all runs below `outputs/`, the newest last."""
    index = RunIndex(root)
    return newest_last(index.records(index.below(root / run_files.OUTPUTS)))


def newest_last(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Order runs by when they began."""
    return sorted(records, key=lambda record: (record.started, record.folder.parts))


def read_progress(folder: Path, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the best monitored value so far and the epochs done.

    Args:
        folder: The run's folder.
        metrics: The node `metrics` of its configuration.

    Returns:
        `epochs`, and where the monitored value has been logged its `name`, the best `value` with its `step`, and the
        `values` of that row; empty where nothing has been logged.
    """
    try:
        lines = read_file(folder / run_files.METRICS, sys.maxsize).split(b"\n")
    except (FileNotFoundError, UnreadableError):
        return {}
    last = next((row for row in map(row_of, reversed(lines)) if row), {})
    name, mode = metrics.get("monitor"), metrics.get("mode") or "min"
    found: dict[str, Any] = {"epochs": last["epoch"]} if isinstance(last.get("epoch"), int) else {}
    if not isinstance(name, str):
        return found
    mark, best = json.dumps(name).encode(), None
    for line in lines:
        value = row_of(line).get(name) if mark in line else None  # most lines are about single steps
        if isinstance(value, int | float) and improves(float(value), best, mode=str(mode)):
            best = float(value)
            row = row_of(line)
            values = {key: each for key, each in row.items() if "/" in key}
            found |= {"name": name, "value": best, "step": row.get("step"), "values": values}
    return found
