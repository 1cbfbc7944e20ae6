"""The files of `conf/` that spell out a group of the schema, one key a line: `make conf` writes them.

The comment that a file begins with is its own; keys, defaults and what stands beside them are those of the schema.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator
from typing import Any

import yaml

from lightkit.config.annotations import choices_of
from lightkit.config.fields import class_at, default_of, field_docs, field_types, first_sentence, is_required, yaml_text
from lightkit.config.project import shipped_conf

PAGES = (
    *("checkpoint/default", "cv/none", "data/_base", "device/_base", "finetune/_base", "logger/default", "optim/_base"),
    *("resume/none", "sweep/default", "trainer/default"),
)
"""Files that spell out the class of the schema of their group."""
_LEFT_OUT = {"device/_base": ("name",)}
"""Keys that each option of the group sets itself."""
_WIDTH = 120


def page(name: str) -> str:
    """Write a file of `PAGES` anew: its first comment as it stands, then what the schema says."""
    text = (shipped_conf() / f"{name}.yaml").read_text(encoding="utf-8")
    head = [line for line in text.partition("\n\n")[0].splitlines() if line.startswith("#")]
    kind: Any = class_at((name.partition("/")[0],))
    lines = [line for line in _lines(kind, "") if line[0].partition(":")[0] not in _LEFT_OUT.get(name, ())]
    column = max(len(entry) for entry, comment in lines if comment) + 2
    body = (commented(entry, comment, column) for entry, comment in lines)
    return "\n".join([*head, *body]) + "\n"


def _lines(kind: type, indent: str) -> Iterator[tuple[str, str]]:
    """Yield the keys of a class with their defaults as YAML, and what is to be said about each."""
    for field in dataclasses.fields(kind):
        inner: Any = field_types(kind)[field.name]
        if is_required(field) or field.metadata.get("internal"):
            continue
        value, choices = default_of(field), choices_of(inner)
        comment = first_sentence(field_docs(kind)[field.name]).replace("`", "")
        comment += f" ({', '.join(choices)})" if choices else ""
        is_node = isinstance(value, dict) and bool(value)
        yield f"{indent}{field.name}:" + ("" if is_node else f" {_yaml_of(value)}"), comment
        if is_node and "_target_" in value:
            yield f"{indent}  _target_: {value['_target_']}", ""
        elif is_node:
            yield from _lines(inner, f"{indent}  ")


def _yaml_of(default: object) -> str:
    """Write a default; text that YAML would read as something else, such as `60`, in quotes."""
    reads_otherwise = isinstance(default, str) and not isinstance(yaml.safe_load(default), str)
    return f'"{default}"' if reads_otherwise else yaml_text(default)


def commented(entry: str, comment: str, column: int) -> str:
    """Put a comment beside an entry, below itself where it is longer than the line."""
    if not comment:
        return entry
    first, *more = textwrap.wrap(comment, _WIDTH - column - 2, break_long_words=False, break_on_hyphens=False)
    return "\n".join([f"{entry:<{column}}# {first}", *(f"{'':<{column}}# {line}" for line in more)])


if __name__ == "__main__":
    for name in PAGES:
        (shipped_conf() / f"{name}.yaml").write_text(page(name), encoding="utf-8")
