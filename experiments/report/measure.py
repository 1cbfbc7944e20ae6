"""Running what is missing, and reading what is there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from experiments.report.rows import PAGES, Page, Variant
from lightkit import Runner, compose
from lightkit.config import public

COMMON = ("device=cpu", "device.threads=1", "logger.tensorboard.enabled=false", "metrics.figures=[]")
"""One thread, and nothing written that no table needs: neither changes a result."""
LEARNT_FROM = ("seed", "data", "model", "loss", "optim", "scheduler", "trainer", "finetune", "ensemble")
"""Parts of the configuration that decide what a run learns."""
APART = (
    "data.eval_batch_size",
    "data.num_workers",
    "data.persistent_workers",
    "data.pin_memory",
    "data.prefetch_factor",
    "finetune.weights.path",
    "trainer.callbacks",
    "trainer.nonfinite",
    "trainer.validate",
)
"""How keys in these parts begin that a result does not depend on, or that say where something is, not what it is."""


def folder_of(outputs: Path, page: str, variant: str, seed: int) -> Path:
    """Where a measured run is."""
    return outputs / page / variant / str(seed)


def bases(page: Page) -> set[tuple[str, str]]:
    """Page and variant of the runs whose weights others start from."""
    pages = [page, *PAGES.values()]
    return {each.base[1:] for one in pages for each in one.variants.values() if each.base}


def overrides_of(outputs: Path, variant: Variant, seed: int) -> list[str]:
    """All that is to be typed for a run, with the weights it starts from."""
    typed = [*variant.seeded(seed), *COMMON]
    if variant.base is None:
        return typed
    key, page, name = variant.base
    return [*typed, f"{key}={folder_of(outputs, page, name, PAGES[page].variants[name].seeds[0])}"]


def measure(outputs: Path, name: str, variant: str) -> Iterator[str]:
    """Run the seeds of a variant one after the other, but for those that are finished with this very configuration.

    One that was interrupted goes on from its last checkpoint, if it keeps any.

    Args:
        outputs: Folder of all measured runs.
        name: The page.
        variant: Which of its runs.

    Yields:
        A line for each seed.
    """
    page = PAGES[name]
    kept = (name, variant) in bases(page)
    for seed in page.variants[variant].seeds:
        folder = folder_of(outputs, name, variant, seed)
        typed = overrides_of(outputs, page.variants[variant], seed)
        cfg = compose([*typed, *([] if kept else ["checkpoint=none"])]).cfg
        same = (folder / "config.yaml").is_file() and not differing(read_learnt(folder), learnt(cfg))
        if same and finished(folder) is not None:
            yield f"{folder}: there already"
            continue
        begun = same and any(folder.glob("checkpoints/*.pt"))
        if not begun:
            shutil.rmtree(folder, ignore_errors=True)
        result = Runner(cfg, folder, overrides=typed).run(resume=begun)
        yield f"{folder}: {page.metrics[0].label} {result['test'][page.metrics[0].key]:.4f}"


def finished(folder: Path) -> dict[str, Any] | None:
    """The result of a run; None if it has not come to its end."""
    file = folder / "result.json"
    if not file.is_file():
        return None
    result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return result if result["status"] == "finished" else None


def read_learnt(folder: Path) -> dict[str, Any]:
    """What a run in a folder learnt from."""
    return _flat_and_kept(yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")))


def learnt(cfg: Any) -> dict[str, Any]:
    """The values of a configuration that decide what a run learns, by dotted key."""
    return _flat_and_kept(public(cfg))


def _flat_and_kept(config: dict[str, Any]) -> dict[str, Any]:
    chosen = {part: config[part] for part in LEARNT_FROM if part in config}
    chosen["metrics"] = config["metrics"].get("test")
    return {key: value for key, value in flat(chosen) if not key.startswith(APART)}


def flat(tree: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and plain values of nested mappings; lists and empty mappings are values."""
    if not (isinstance(tree, dict) and tree):
        yield key, tree
        return
    for name, value in tree.items():
        yield from flat(value, f"{key}.{name}" if key else str(name))


def differing(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Keys of which a value differs, with both.

    A key that only one of the two has is an option that came or went: what that changes shows in the first steps.
    """
    return [
        f"{key}: measured with {then[key]!r}, now {now[key]!r}" for key in then if key in now and then[key] != now[key]
    ]
