"""Prints values of the metrics of torchmetrics, which is imported as a whole or in parts."""

import inspect
import json
import sys
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

import torch

from lightkit.common.sparing import sparingly

HEAVY = ("torchvision", "transformers", "matplotlib", "scipy", "torch._dynamo")
MODELS = {"BERTScore", "InfoLM", "ROUGEScore"}
KNOWN = {
    "num_classes": 3, "num_labels": 3, "beta": 0.5, "p": 3, "threshold": 0.5, "num_groups": 2, "min_recall": 0.5,
    "min_precision": 0.5, "min_sensitivity": 0.5, "min_specificity": 0.5,
}  # fmt: skip


def inputs(package: str, name: str) -> tuple[Any, ...]:
    torch.manual_seed(0)
    classes, scores = torch.randint(3, (40,)), torch.rand(40, 3)
    if package == "classification":
        if name.startswith("Binary"):
            fair = (torch.randint(2, (40,)),) if "Fairness" in name or "Group" in name else ()
            return torch.rand(40), torch.randint(2, (40,)), *fair
        return scores.softmax(1), classes if name.startswith("Multiclass") else torch.randint(2, (40, 3))
    if package == "aggregation":
        return (torch.rand(40),)
    if package == "regression":
        return torch.rand(40) + 0.1, torch.rand(40) + 0.1
    if package == "retrieval":
        return torch.rand(40), torch.randint(2, (40,)), torch.arange(40) // 8
    if package in ("clustering", "nominal"):
        return classes, torch.randint(3, (40,))
    return ["a cat sat there", "so it is"], ["the cat sat here", "so it was"]


def value(package: str, name: str) -> Any:
    kind = getattr(import_module(f"torchmetrics.{package}"), name)
    needed = [each for each in inspect.signature(kind).parameters.values() if each.default is each.empty]
    metric = kind(**{each.name: KNOWN[each.name] for each in needed if each.kind is each.POSITIONAL_OR_KEYWORD})
    metric.update(*inputs(package, name))
    return repr(metric.compute())


def main(how: str, *names: str) -> None:
    make = sparingly if how == "parts" else lambda call: call()
    packages = ("classification", "regression", "retrieval", "nominal", "clustering", "text")
    if how == "plain":
        modules = {package: import_module(f"torchmetrics.{package}") for package in packages}
        names = tuple(f"{package}.{name}" for package in packages for name in {*modules[package].__all__} - MODELS)
        names += tuple(f"aggregation.{name}Metric" for name in ("Cat", "Max", "Mean", "Min", "Sum"))
    found, heavy = {}, None
    for name in names:
        with suppress(Exception):  # one that takes something else
            found[name] = make(partial(value, *name.split(".")))
        heavy = [each for each in HEAVY if each in sys.modules]
    sys.stdout.write(json.dumps({"values": found, "heavy": heavy}))


main(*sys.argv[1:])
