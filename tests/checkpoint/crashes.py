"""Checkpoints small enough to be written at every turn, and the death of a process at any of them."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from lightkit.checkpoint import files


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the library may catch it."""


def content(step: int, size: int = 1000) -> dict:
    """What a run would save, with weights that tell the step."""
    return {"version": 1, "model": {"w": torch.full((size,), float(step))}, "state": {"step": step}, "nothing": None}


def loaded_step(found) -> int:
    """The step of a loaded `content`, all of which has to be of that step."""
    assert found is not None
    assert found[1]["model"]["w"].unique().tolist() == [found[1]["state"]["step"]]
    return found[1]["state"]["step"]


def kill_after(patch, count: int) -> None:
    """From the operation on the disk after `count` others on, every one raises `Killed`."""
    left = [count]

    def dying(function):
        def call(*args, **kwargs):
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return function(*args, **kwargs)

        return call

    owners = [(os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "mkdir"), (files.HashingFile, "write")]
    for owner, name in owners:
        patch.setattr(owner, name, dying(getattr(owner, name)))
