"""A run: its folder, its start and end, and how it goes on after an interruption."""

from lightkit.runner.run import Runner

__all__ = ["Runner"]
