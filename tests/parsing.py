"""Imported where tests begin: a text of YAML or Python is parsed once in a process; most tests read the same files.

So is what an installed package says of itself, which every run and every doctor reads, and what OmegaConf makes of
plain values, as every reader of a run makes the same.
"""

from __future__ import annotations

import ast
import copy
import email
import importlib.metadata._adapters
import pickle
import types
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import yaml
from omegaconf import OmegaConf

from lightkit.config import modules

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
_create = OmegaConf.create


@lru_cache(maxsize=200)
def _made(content: bytes) -> bytes:
    return pickle.dumps(_create(pickle.loads(content)), pickle.HIGHEST_PROTOCOL)


def _plain(value: Any) -> bool:
    if type(value) is dict:
        return all(type(key) is str and _plain(item) for key, item in value.items())
    return all(map(_plain, value)) if type(value) is list else value is None or type(value) in (str, int, float, bool)


def _quick(*values: Any, **options: Any) -> Any:
    if len(values) == 1 and not options and _plain(values[0]) and len(content := pickle.dumps(values[0])) > 1000:
        return pickle.loads(_made(content))
    return _create(*values, **options)


OmegaConf.create = staticmethod(_quick)  # type: ignore[assignment]


@cache
def _tree(parse: Callable[[bytes], ast.Module], text: bytes) -> ast.Module:
    return parse(text)


modules.ast = types.SimpleNamespace(**{**vars(ast), "parse": lambda text: _tree(ast.parse, text)})  # type: ignore[assignment]
metadata: Any = importlib.metadata
metadata.email = types.SimpleNamespace(message_from_string=cache(email.message_from_string))
metadata._adapters = types.SimpleNamespace(Message=cache(metadata._adapters.Message))
