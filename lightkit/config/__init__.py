"""Composing, checking and building from YAML; imports nothing of what the configuration names.

The public names are imported when they are first used: what only asks for the project, such as a list of runs, must not
wait for Hydra.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lightkit.common.exports import exporting

if TYPE_CHECKING:
    from lightkit.config.check import check
    from lightkit.config.compose import Composed, compose, compose_with
    from lightkit.config.fields import defaults_of
    from lightkit.config.instantiate import instantiate
    from lightkit.config.member_values import with_values
    from lightkit.config.native import compose_jobs, hydra_command, run_hydra
    from lightkit.config.saved import from_yaml, load_run, save, save_text, saved_group, to_yaml
    from lightkit.config.tree import as_yaml, public, to_plain

__all__ = ["Composed", "as_yaml", "check", "compose", "compose_jobs", "compose_with", "defaults_of", "from_yaml",
           "hydra_command", "instantiate", "load_run", "public", "run_hydra", "save", "save_text", "saved_group",
           "to_plain", "to_yaml", "with_values"]  # fmt: skip
_HOME = {"Composed": "compose", "as_yaml": "tree", "check": "check", "compose": "compose", "compose_jobs": "native",
         "compose_with": "compose", "defaults_of": "fields", "from_yaml": "saved", "hydra_command": "native",
         "instantiate": "instantiate", "load_run": "saved", "public": "tree", "run_hydra": "native", "save": "saved",
         "save_text": "saved", "saved_group": "saved", "to_plain": "tree", "to_yaml": "saved",
         "with_values": "member_values"}  # fmt: skip
__getattr__ = exporting(__name__, _HOME)


class _Package(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in _HOME):
            super().__setattr__(name, value)  # a module would hide the function of its name

    def __reduce__(self) -> tuple[Any, ...]:
        return __import__, (__name__, None, None, ["__name__"])  # for functions that are sent to other processes


sys.modules[__name__].__class__ = _Package
