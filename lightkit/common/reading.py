"""Reading files that anybody may have written, or that a crash has damaged: what is right in them, and what is wrong.

What runs write is regular files of JSON and YAML. All else is told in words and never raises another error than
`UnreadableError`: a folder, a link to nothing or a pipe in the place of a file, bytes that are no text, nesting without
an end, a value of another kind than the one that is written there. Kinds say what
stands where in what a run writes.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import NoneType
from typing import IO, Any, NamedTuple, TypeVar

_T = TypeVar("_T")
MOST_BYTES = 1 << 26
"""Size from which on a file is not read that is read as a whole."""
_DEEPEST = 100
"""Levels of nesting; what runs write has a dozen at most."""
_LARGEST = 2**128
_HALVES = re.compile(r"[\ud800-\udfff]")


class UnreadableError(ValueError):
    """A file, or what is in it, cannot be read; the message says why in a few words."""


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a regular file for reading while inside; a pipe is never waited for.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: There is none of this name.
        UnreadableError: It cannot be opened, or is no regular file.
    """
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        if path.is_symlink():
            raise UnreadableError("a link to nothing") from None
        raise
    except NotADirectoryError as error:
        raise FileNotFoundError(*error.args) from None
    except OSError as error:
        raise UnreadableError((error.strerror or type(error).__name__).lower()) from None
    except ValueError:  # no system has a file of such a name
        raise FileNotFoundError(str(path)) from None
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise UnreadableError("a folder, not a file" if stat.S_ISDIR(mode) else "not a regular file")
    with os.fdopen(handle, "rb") as file:
        try:
            yield file
        except OSError as error:
            raise UnreadableError((error.strerror or type(error).__name__).lower()) from None


def read_file(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file.

    Args:
        path: The file.
        most: Size from which on it is not read.

    Raises:
        FileNotFoundError: There is none of this name.
        UnreadableError: It cannot be read, or is too large.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise UnreadableError(f"{size:,} bytes, which is more than any run writes")
        return file.read(size)


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """Return the text in a regular file; the arguments and errors are those of `read_file`."""
    return _decoded(read_file(path, most))


def read_tail(path: Path, most: int) -> str:
    """Return the end of a regular file, whatever it holds; empty where there is none or it cannot be read.

    Args:
        path: The file.
        most: Bytes of it.
    """
    with suppress(FileNotFoundError, UnreadableError), opened(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most))
        return file.read(most).decode(errors="replace")
    return ""


def parse_json(content: bytes | str) -> Any:
    """Return what JSON says; half a character in it is a question mark.

    Args:
        content: One value as text, or as UTF-8.

    Raises:
        UnreadableError: It is no JSON, or nested too deeply.
    """
    text = content if isinstance(content, str) else _decoded(content)
    refuse_blank(text)
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise UnreadableError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise UnreadableError("nested too deeply") from None
    except ValueError:  # digits without an end
        raise UnreadableError("a number that is too large") from None
    if text.count("{") + text.count("[") > _DEEPEST:  # fewer cannot nest as deeply
        _check_depth(found)
    return found if text.isascii() and "\\ud" not in text.lower() else _whole(found)


def parse_object(content: bytes | str) -> dict[str, Any]:
    """Return what a JSON object says.

    Raises:
        UnreadableError: It is none.
    """
    found = parse_json(content)
    if not isinstance(found, dict):
        raise UnreadableError("not a JSON object")
    return found


def read_lines(path: Path, read: Callable[[bytes], _T]) -> Iterator[_T]:
    """Yield what the lines of a file say; one that says nothing is left out.

    Args:
        path: The file; a missing one has no lines.
        read: Reads a line; `UnreadableError` of one that is none.
    """
    with suppress(FileNotFoundError, UnreadableError):
        for line in read_file(path, sys.maxsize).split(b"\n"):
            with suppress(UnreadableError):
                yield read(line)


def parse_yaml(text: str) -> Any:
    """Return what YAML says, as plain values.

    References (`*name`) are refused: a few of them in each other are gigabytes, and no run writes any.

    Args:
        text: The YAML.

    Raises:
        UnreadableError: It is none, nested too deeply, or has references.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_events(yaml.parse(text, Loader=loader))
        found = yaml.load(text, Loader=loader)
        _check_plain(found)
    except yaml.MarkedYAMLError as error:
        place = f" at line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UnreadableError(f"not YAML: {error.problem}{place}") from None
    except UnreadableError:
        raise
    except RecursionError:
        raise UnreadableError("nested too deeply") from None
    except (yaml.YAMLError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnreadableError(f"not YAML: {reason}") from None  # a tag with a value that it does not go with
    return found


def parse_mapping(text: str) -> dict[str, Any]:
    """Return the mapping that YAML says; an empty text is an empty one.

    Raises:
        UnreadableError: It is none.
    """
    found = parse_yaml(text)
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise UnreadableError("holds no configuration")
    return found


def yaml_or_nothing(text: str) -> dict[str, Any]:
    """Return the mapping that YAML says; empty where it is none."""
    with suppress(UnreadableError):
        return parse_mapping(text)
    return {}


def data_beside(module: str) -> dict[str, Any]:
    """Return the data of a module, which are in a file of YAML or JSON beside it.

    Args:
        module: The `__file__` of the module: a `.yaml` file of its name. What help needs is JSON, which reads fast.
    """
    path = Path(module).with_suffix(".json")
    return parse_object(read_text(path)) if path.is_file() else parse_mapping(read_text(path.with_suffix(".yaml")))


def refuse_blank(text: str) -> None:
    """Refuse a text in which nothing stands.

    Raises:
        UnreadableError: It is such a text.
    """
    if not text.strip("\0 \r\n\t"):
        raise UnreadableError("only zeros, as after a power cut" if "\0" in text else "empty")


def _decoded(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UnreadableError(f"not UTF-8: byte {error.start:,}") from None


def _check_depth(found: Any) -> None:
    level, depth = [found], 0
    while level:
        if depth > _DEEPEST:
            raise UnreadableError("nested too deeply")
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level, depth = [value for part in inner for value in part if isinstance(value, dict | list)], depth + 1


def _check_events(events: Iterable[Any]) -> None:
    """Refuse YAML before a tree is made of it, for which PyYAML takes of the stack what it nests, until it crashes."""
    from yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent

    depth = 0
    for event in events:
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > _DEEPEST:
            raise UnreadableError("nested too deeply")
        if isinstance(event, AliasEvent):
            raise UnreadableError("a reference of YAML, which no run writes")


def _check_plain(found: Any) -> None:
    """Refuse what YAML knows and JSON does not, such as a date for a key, and numbers without an end."""
    level, names = [found], (str, int, float, NoneType)
    while level:
        keys = (key for each in level if isinstance(each, dict) for key in each)
        if any(not isinstance(key, names) for key in keys):
            raise UnreadableError("a key that is no text")
        if any(isinstance(each, int) and abs(each) > _LARGEST for each in level):
            raise UnreadableError("a number that is too large")
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [value for part in inner for value in part]


def _whole(found: Any) -> Any:
    if isinstance(found, dict):
        return {_whole(key): _whole(value) for key, value in found.items()}
    if isinstance(found, list):
        return [_whole(value) for value in found]
    return _HALVES.sub("?", found) if isinstance(found, str) else found


_LARGEST_COUNT = 2**63


class Kind(NamedTuple):
    """A kind of values."""

    word: str
    """What such a value is, in words."""
    fits: Callable[[Any], bool]
    """Tells whether a value is one."""


Shape = Mapping[str, Any]
"""What is known of the keys of an object: for each a kind, or the shape of the object it leads to."""


def is_whole(value: Any) -> bool:
    """Tell whether a value is a whole number that a run can have counted to."""
    return type(value) is int and -_LARGEST_COUNT < value < _LARGEST_COUNT


def is_number(value: Any) -> bool:
    """Tell whether a value is a finite number."""
    return is_whole(value) or (type(value) is float and abs(value) < float("inf"))


TEXT = Kind("a text", lambda value: isinstance(value, str))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
WHOLE = Kind("a whole number", is_whole)
NUMBER = Kind("a number", is_number)
TEXTS = Kind("a list of texts", lambda value: isinstance(value, list) and {*map(type, value)} <= {str})
ENDINGS = ("finished", "paused", "pruned", "interrupted", "failed")
"""How a run can have ended that wrote it down."""
_OF_JOBS = (*ENDINGS, "stopped")
STATUS = Kind(f"one of {', '.join(ENDINGS)}", lambda value: isinstance(value, str) and value in ENDINGS)
JOB_STATUS = Kind(f"one of {', '.join(_OF_JOBS)}", lambda value: isinstance(value, str) and value in _OF_JOBS)
"""How a job of a sweep can have ended: also as somebody stopped it alone."""
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
NAMED_TEXTS = Kind("an object of texts", lambda it: isinstance(it, dict) and {*map(type, it.values())} <= {str})
OBJECTS = Kind("a list of objects", lambda value: isinstance(value, list) and all(map(OBJECT.fits, value)))


def fitting(content: Mapping[str, Any], shape: Shape, damage: list[str], above: str = "") -> dict[str, Any]:
    """Keep of an object what has the kind that is written there, and what nothing is known of.

    Args:
        content: The object; numbers that are not finite count as null.
        shape: What is known of its keys; each may also be null.
        damage: Gets a few words for each value of another kind.
        above: The keys that lead to it.
    """
    kept = dict[str, Any]()
    for key, value in content.items():
        kind = shape.get(key, shape.get("*"))
        value = None if isinstance(value, float) and not math.isfinite(value) else value
        if kind is None or value is None or (isinstance(kind, Kind) and kind.fits(value)):
            kept[key] = value
        elif not isinstance(kind, Kind) and isinstance(value, dict):
            kept[key] = fitting(value, kind, damage, f"{above}{key}.")
        else:
            damage.append(f"`{above}{key}` is not {kind.word if isinstance(kind, Kind) else OBJECT.word}")
    return kept


def read_row(line: bytes | str) -> dict[str, Any]:
    """Return a row of `metrics.jsonl`: `step`, and the numbers in it; what is none is left out.

    Args:
        line: The line.

    Raises:
        UnreadableError: It is no row.
    """
    found = parse_object(line)
    row = {name: value for name, value in found.items() if value is None or is_number(value)}
    for name in ("step", "epoch"):
        if name in found and not is_whole(row.get(name)):
            raise UnreadableError(f"`{name}` is not {WHOLE.word}")
    if "step" not in row:
        raise UnreadableError("`step` is missing")
    return row
