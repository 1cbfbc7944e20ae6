"""Whether the code as it is would come to the numbers in a table, without training again.

A stamp is what a run learns from, and what its first steps come to. It does not change with an option that is added,
nor with another processor; it does with another rate, another split, another initial weight, or another gradient.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.report.measure import COMMON, differing, learnt
from experiments.report.rows import PAGES, Variant
from lightkit import Runner, compose
from lightkit.trainer import Callback

STEPS = 4
TOLERANCE = 5e-3
"""Largest relative difference of two first steps that count as the same: other processors round otherwise. What comes
of that doubles with every step of a network that learns fast."""
WORDS = "the of a return if not self in for is and def to import None as with or else from class it raise"


class StopAfter(Callback):
    """Ends training after some steps, with the rates of the whole run.

    Args:
        steps: How many.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step(self, trainer: Any) -> None:
        """Count."""
        if trainer.state.step >= self.steps:
            trainer.stop("first steps")


def made_up_texts(*, files: int = 40, words: int = 400) -> dict[str, str]:
    """Texts that are the same on every Python, whose own texts change from version to version."""
    state, texts, known = 1, {}, WORDS.split()
    for number in range(files):
        chosen = []
        for _ in range(words):
            state = (state * 1103515245 + 12345) % 2**31
            chosen.append(known[(state >> 16) % len(known)])
        texts[f"text_{number}"] = " ".join(chosen)
    return texts


def stamp(variant: Variant, folder: Path) -> dict[str, Any]:
    """What a variant learns from, and its first steps on its first seed.

    Args:
        variant: Runs of a page.
        folder: An empty one, to train in; runs that others start from are made in it when they are wanted.

    Returns:
        The stamp, of plain values.
    """
    cfg = compose([*variant.seeded(variant.seeds[0]), *COMMON, *_base(variant, folder)]).cfg
    return {"configuration": learnt(cfg), "first_steps": first_steps(variant, folder)}


def first_steps(variant: Variant, folder: Path) -> dict[str, list[float]]:
    """Losses, gradient norms and rates of the first steps of a run on little data."""
    place = folder / hashlib.sha256(repr(variant).encode()).hexdigest()[:12]
    if not (place / "result.json").is_file():
        stop = f"trainer.callbacks.stop={{_target_: experiments.report.stamp.StopAfter, steps: {STEPS}}}"
        short = [*variant.short, stop, "trainer.test=none", "logger.every_steps=1", "logger.console.style=quiet"]
        Runner(compose([*variant.seeded(variant.seeds[0]), *COMMON, *_base(variant, folder), *short]).cfg, place).run()
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [line for line in lines if "train/loss_step" in line]
    rates = [max(value for key, value in line.items() if key.startswith("lr/")) for line in steps]
    found = {"loss": _column(steps, "train/loss_step"), "gradient": _column(steps, "grad/norm"), "rate": rates}
    return {name: [float(f"{value:.5g}") for value in values] for name, values in found.items()}


def _column(lines: list[dict[str, Any]], key: str) -> list[float]:
    return [line[key] for line in lines if key in line]


def _base(variant: Variant, folder: Path) -> list[str]:
    """The run to start from, trained for a few steps."""
    if variant.base is None:
        return []
    key, page, name = variant.base
    base = PAGES[page].variants[name]
    first_steps(base, folder)
    return [f"{key}={folder / hashlib.sha256(repr(base).encode()).hexdigest()[:12]}"]


def compare(then: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """Differences between two stamps, in words."""
    yield from differing(then["configuration"], now["configuration"])
    for name, before in then["first_steps"].items():
        after = now["first_steps"][name]
        same = len(before) == len(after) and all(map(_close, before, after, range(len(before))))
        if not same:
            yield f"{name} of the first steps: measured with {before}, now {after}"


def _close(one: float, other: float, step: int) -> bool:
    return math.isclose(one, other, rel_tol=TOLERANCE * 2**step, abs_tol=1e-6)


def sources(experiments: Path, page: str) -> str:
    """Digest of the modules of a page, and of the files it shares with others, but for where names come from."""
    files = [*sorted((experiments / page).glob("*.py")), *(experiments / name for name in PAGES[page].shared)]
    text = "\0".join(f"{file.name}\0{_own_lines(file)}" for file in files if file.suffix == ".py")
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _own_lines(file: Path) -> str:
    """The lines of a module that import nothing: a name that moves to another module changes no result."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith(("import ", "from ")))
