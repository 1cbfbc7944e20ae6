"""Imported where tests begin: modules of tests are no code of a run's user, of which each run would keep the source.

There are hundreds of them in a process that runs tests, and none in one that a user starts. Of thousands of installed
ones, which no test replaces, the files are known.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from lightkit.runs import code

ROOT = Path(__file__).resolve().parents[1]
_OURS = tuple(f"{ROOT / folder}/" for folder in ("tests", "benchmarks"))
_is_mine = code._is_mine

code._is_mine = cache(lambda file: not file.startswith(_OURS) and _is_mine(file))
_file, _installed = code._file, dict[int, tuple[Any, str]]()


def _known_file(module: Any) -> Any:
    """The file of a module, which is asked for once where the module is installed."""
    if id(module) in _installed:
        return _installed[id(module)][1]
    if isinstance(file := _file(module), str) and file.startswith(code._PYTHON):
        _installed[id(module)] = (module, file)  # with the module, whose number no other one has then
    return file


code._file = _known_file
