"""The numbers of a page: gathered from runs, kept in `experiments/PAGE/results.json`."""

from __future__ import annotations

import json
import math
import platform
import re
import statistics
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from experiments.report import stamp as stamps
from experiments.report.measure import differing, finished, folder_of, learnt, overrides_of, read_learnt
from experiments.report.rows import PAGES, Page
from lightkit import compose

PACKAGES = ("torch", "numpy", "scikit-learn")


def file_of(experiments: Path, name: str) -> Path:
    """Where the numbers of a page are kept."""
    return experiments / name / "results.json"


def read(experiments: Path, name: str) -> dict[str, Any]:
    """The numbers of a page; without any where it has not been measured."""
    file = file_of(experiments, name)
    empty: dict[str, Any] = {"variants": {}, "classics": {}}
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else empty


def write(experiments: Path, name: str, results: dict[str, Any]) -> None:
    """Keep the numbers of a page."""
    text = json.dumps(results, indent=1, ensure_ascii=False)
    file_of(experiments, name).write_text(_lists_on_one_line(text) + "\n", encoding="utf-8")


def _lists_on_one_line(text: str) -> str:
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda found: "[" + re.sub(r"\s*\n\s*", " ", found[1]) + "]", text)


def gather(outputs: Path, name: str, folder: Path, before: dict[str, Any]) -> dict[str, Any]:
    """Numbers and stamps of all finished runs of a page that were made with the configuration as it is.

    Args:
        outputs: Folder of all measured runs.
        name: The page.
        folder: An empty one, for the first steps of the stamps.
        before: The numbers as they were; those of the same configuration stay, also where their run is gone.
    """
    page = PAGES[name]
    found = {
        key: with_earlier(gather_variant(outputs, page, name, key), before["variants"].get(key), page, key)
        for key in page.variants
    }
    variants = {key: values for key, values in found.items() if values["seeds"]}
    for key in variants:
        if stamped(page, key):
            variants[key]["stamp"] = stamps.stamp(page.variants[key], folder)
    return {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}} | {
        "variants": variants
    }


def gather_variant(outputs: Path, page: Page, name: str, key: str) -> dict[str, Any]:
    """Values of the finished runs of a variant, by metric and seed."""
    variant = page.variants[key]
    runs = {seed: finished(folder_of(outputs, name, key, seed)) for seed in variant.seeds}
    seeds = [seed for seed, run in runs.items() if run is not None and current(outputs, name, key, seed)]
    values = {
        metric.key: [runs[seed]["test"][metric.key] for seed in seeds]
        for metric in page.metrics
        if all(metric.key in runs[seed]["test"] for seed in seeds)
    }
    return summary({"seeds": seeds, "values": values})


def with_earlier(entry: dict[str, Any], before: dict[str, Any] | None, page: Page, key: str) -> dict[str, Any]:
    """An entry with the values that were measured before with the same configuration, of seeds that it lacks."""
    variant = page.variants[key]
    if before is None or not entry["seeds"] or variant.base is not None or "stamp" not in before:
        return entry
    if differing(before["stamp"]["configuration"], learnt(compose(variant.seeded(variant.seeds[0])).cfg)):
        return entry
    seeds = [seed for seed in variant.seeds if seed in before["seeds"] or seed in entry["seeds"]]
    values = {metric: dict(zip(before["seeds"], each)) for metric, each in before["values"].items()}
    for metric, each in entry["values"].items():
        values.setdefault(metric, {}).update(zip(entry["seeds"], each))
    whole = {metric: [each[seed] for seed in seeds] for metric, each in values.items() if set(seeds) <= set(each)}
    return summary({"seeds": seeds, "values": whole})


def current(outputs: Path, name: str, key: str, seed: int) -> bool:
    """Whether a run was made with the configuration as it is."""
    folder, variant = folder_of(outputs, name, key, seed), PAGES[name].variants[key]
    cfg = compose(overrides_of(outputs, variant, seed)).cfg
    return not differing(read_learnt(folder), learnt(cfg))


def summary(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry with the number of its values, their mean and their standard deviation."""
    values = entry["values"]
    return {
        **entry,
        "n": len(entry["seeds"]),
        "mean": {key: round(statistics.fmean(each), 9) for key, each in values.items() if each},
        "std": {key: round(statistics.stdev(each), 9) for key, each in values.items() if len(each) > 1},
    }


def stamped(page: Page, key: str) -> bool:
    """Whether a variant has a stamp of its own: with several numbers of images, the fewest stand for all."""
    columns = list(dict.fromkeys(variant.column for variant in page.variants.values()))
    return page.variants[key].column in columns[:2]


def difference(network: dict[str, Any], classic: dict[str, Any], key: str) -> tuple[float, float]:
    """How far a network is from a classic, seed by seed, and the standard error of that; NaN from a single value."""
    of_classic = dict(zip(classic["seeds"], classic["values"][key]))
    alone = classic["values"][key][0] if len(of_classic) == 1 else None
    pairs = zip(network["seeds"], network["values"][key])
    gaps = [
        value - (of_classic[seed] if alone is None else alone) for seed, value in pairs if alone or seed in of_classic
    ]
    error = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
    return statistics.fmean(gaps), error


def problems(experiments: Path, name: str, folder: Path) -> Iterator[str]:
    """What in the results of a page the code as it is would not give.

    Args:
        experiments: Folder of all pages.
        name: The page.
        folder: An empty one, for the first steps.
    """
    results = read(experiments, name)
    if results.get("sources", stamps.sources(experiments, name)) != stamps.sources(experiments, name):
        yield "a module of its folder has changed"
    for key, entry in results["variants"].items():
        if entry != {**entry, **summary(entry)}:
            yield f"{key}: mean, std or n do not follow from the values"
        if "stamp" in entry:
            now = stamps.stamp(PAGES[name].variants[key], folder)
            yield from (f"{key}: {line}" for line in stamps.compare(entry["stamp"], now))
