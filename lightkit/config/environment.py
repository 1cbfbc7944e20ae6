"""`${oc.env:NAME}` in a configuration: its value is noted, so that no message shows it."""

from __future__ import annotations

import os
from typing import Any

from omegaconf import OmegaConf
from omegaconf.resolvers import oc

from lightkit.common.secrets import remember


def watch_environment() -> None:
    """Note every value that a configuration takes from the environment."""
    OmegaConf.register_new_resolver("oc.env", _read, replace=True)


def _read(key: str, *default: Any) -> Any:
    value = oc.env(key, *default)
    if key in os.environ:
        remember(key, os.environ[key])
    return value
