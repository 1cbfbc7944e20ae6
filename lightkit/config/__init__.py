"""Composing, checking and building from YAML; imports nothing of what the configuration names."""

from __future__ import annotations

from lightkit.config.check import check
from lightkit.config.compose import Composed, compose
from lightkit.config.instantiate import instantiate
from lightkit.config.member_values import with_values
from lightkit.config.native import compose_jobs, hydra_command, run_hydra
from lightkit.config.saved import as_yaml, from_yaml, load_run, save, save_text, saved_group, to_yaml
from lightkit.config.tree import public, to_plain, watch_environment

watch_environment()

__all__ = [
    "Composed",
    "as_yaml",
    "check",
    "compose",
    "compose_jobs",
    "from_yaml",
    "hydra_command",
    "instantiate",
    "load_run",
    "public",
    "run_hydra",
    "save",
    "save_text",
    "saved_group",
    "to_plain",
    "to_yaml",
    "with_values",
]
