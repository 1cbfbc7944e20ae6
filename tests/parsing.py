"""Imported where tests begin: a text of YAML is parsed once in a process, as each composition reads the same files."""

from __future__ import annotations

import copy
from typing import Any

import yaml

_parse, _parsed = yaml.load, dict[tuple[str, str], Any]()


def _load(stream: Any, Loader: Any) -> Any:
    text, start = stream, None
    if hasattr(stream, "seek"):
        start = stream.tell()
        text = stream.read()
    key = (Loader.__qualname__, text)
    if key not in _parsed:
        if start is not None:
            stream.seek(start)  # an error names the file and the place
        _parsed[key] = _parse(stream, Loader)
    return copy.deepcopy(_parsed[key])


yaml.load = _load
