"""What the schema says about its fields holds together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from lightkit.common.argument_checks import Range
from lightkit.config.annotations import choices_of, fits
from lightkit.config.fields import (
    argument_range,
    default_of,
    field_docs,
    field_types,
    first_sentence,
    is_required,
    valid_keys,
)
from lightkit.config.schema import Config
from lightkit.config.schema.learning import ARGUMENT_RANGES, ModelConfig, OptimConfig
from lightkit.config.schema.running import TrainerConfig


def fields(kind: type = Config) -> Iterator[tuple[str, Any, dataclasses.Field[Any]]]:
    """Every field of the schema with its type, those of list items too."""
    for field in dataclasses.fields(kind):
        inner = field_types(kind)[field.name]
        yield f"{kind.__name__}.{field.name}", inner, field
        for part in (inner, *getattr(inner, "__args__", ())):
            if isinstance(part, type) and dataclasses.is_dataclass(part):
                yield from fields(part)


def numbers(value: object) -> list[float]:
    values = value if isinstance(value, list) else [*value.values()] if isinstance(value, dict) else [value]
    return [item for item in values if isinstance(item, (int, float)) and not isinstance(item, bool)]


def test_every_default_is_of_its_type_and_in_its_range() -> None:
    for name, kind, field in fields():
        if not is_required(field):
            assert fits(default_of(field), kind), name
            allowed = field.metadata.get("range")
            assert allowed is None or all(number in allowed for number in numbers(default_of(field))), name


def test_every_field_with_a_range_holds_numbers() -> None:
    for name, kind, field in fields():
        if field.metadata.get("range") is not None:
            assert any(fits(value, kind) for value in (1, [1], {"a": 1})), name
            assert not choices_of(kind), name


def test_ranges_of_arguments_are_found_by_group_and_name() -> None:
    assert argument_range(("optim", "betas", 1)) == Range(low=0, below=1)
    assert argument_range(("optim", "betas")) is None
    assert argument_range(("metrics", "val", "f1", "thresholds")) == Range(low=2)
    assert argument_range(("metrics", "val", "f1", "thresholds", 0)) == Range(low=0, high=1)
    assert argument_range(("scheduler", "scheduler", "gamma")) == Range(above=0)
    assert argument_range(("model", "body", "dropout")) is None
    assert argument_range(("trainer", "task", "dropout")) is None
    for group in ARGUMENT_RANGES:
        assert not {f"{group}.{name}" for name in ARGUMENT_RANGES[group]} & {*valid_keys()}


def test_meanings_of_a_class_and_those_it_derives_from() -> None:
    assert field_docs(OptimConfig)["_target_"] == field_docs(ModelConfig)["_target_"]
    assert field_docs(OptimConfig)["rules"] != field_docs(ModelConfig)["_target_"]
    assert first_sentence(field_docs(TrainerConfig)["accumulate"]).endswith("one optimizer step")
