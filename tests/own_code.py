"""Imported where tests begin: modules of tests are no code of a run's user, of which each run would keep the source.

There are hundreds of them in a process that runs tests, and none in one that a user starts.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from lightkit.runs import code

ROOT = Path(__file__).resolve().parents[1]
_OURS = tuple(f"{ROOT / folder}/" for folder in ("tests", "benchmarks"))
_is_mine = code._is_mine

code._is_mine = cache(lambda file: not file.startswith(_OURS) and _is_mine(file))
