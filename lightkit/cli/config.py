"""Configurations on the terminal: `lightkit config`, and what `train` prints in place of training (`--cfg`)."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml
from omegaconf import DictConfig, OmegaConf

import lightkit.config.tree as tree
from lightkit.cli.arguments import Parser
from lightkit.cli.terminal import report, say, table
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.text import slug
from lightkit.config import Composed, compose, hydra_command
from lightkit.config.describe import (
    Argument,
    Option,
    OptionRow,
    describe_arguments,
    describe_group,
    describe_key,
    list_options,
    unknown_key,
)
from lightkit.config.fields import first_sentence
from lightkit.config.loader import hydra_node
from lightkit.config.origins import parts_of, shown, with_origins
from lightkit.config.sources import choices_in, project_file
from lightkit.runs.catalog import project
from lightkit.runs.placement import hydra_folder


def config(args: list[str]) -> int:
    """Print the composed configuration, or the choices and keys of a group."""
    options = Parser("config", "overrides*").read(args)
    if len(options.overrides) == 1 and "=" not in options.overrides[0] and options.overrides[0][0] not in "~+":
        found = describe(options.overrides[0].strip("/"), options.config_dir)
        return report(options, found.plain(), found.text)
    composed = compose(options.overrides, config_dir=options.config_dir, config_name=options.config_name)
    text = as_yaml(composed.cfg, resolve=options.resolve, package=options.package)
    content = yaml.safe_load(text) if options.json else None
    return report(options, content, lambda: _with_origins(text, composed, options.package))


def _with_origins(text: str, composed: Composed, package: str | None) -> str:
    """Mark with a comment what the project's `conf/config.yaml` chooses and sets."""
    file = project_file()
    if file is None or not any(path == file for path, _ in composed.sources.layers):
        return text
    typed = {override.lstrip("+").partition("=")[0] for override in composed.overrides}
    chosen = [
        f"# {group}={option} is chosen in {shown(file)}:{line}"
        for group, (option, line) in choices_in(file).items()
        if composed.choices.get(group) == option and group not in typed
    ]
    below = () if package in (None, "_global_") else parts_of(str(package))
    return "\n".join([*chosen, with_origins(text, composed.sources, file, below=below)])


def describe(name: str, config_dir: str | None = None) -> Described:
    """Gather what there is to say of a group, or of a key: by the schema, or by the options whose targets take it.

    Args:
        name: The group, such as `optim`, or the key, such as `optim.lr`.
        config_dir: Extra folder of options.

    Raises:
        UserError: There is no such group or key.
    """
    keys, group = describe_group(name), name.partition(".")[0]
    is_key = not keys and ("." in name or bool(describe_key(name)))
    keys = describe_key(name) if is_key else keys
    choices = [] if "." in name or is_key else list_options(name, config_dir=config_dir)
    arguments = describe_arguments(group, config_dir=config_dir) if choices or is_key else {}
    if is_key:
        own = {option: [item for item in items if item.key == name] for option, items in arguments.items()}
        arguments = {option: items for option, items in own.items() if items}
    if is_key and not keys and not arguments:
        raise unknown_key(name, config_dir=config_dir)
    return Described(name, group, is_key, choices, arguments, keys)


class Described(NamedTuple):
    """What there is to say of a group or of a key."""

    name: str
    group: str
    """The group itself, or that of the key."""
    is_key: bool
    choices: Sequence[Option]
    arguments: Mapping[str, Sequence[Argument]]
    """By choice; of a key only that of its name."""
    keys: Sequence[OptionRow]

    def plain(self) -> dict[str, Any]:
        """Return all of it in plain values."""
        choices = [{"name": option.name, "meaning": option.comment} for option in self.choices]
        arguments = {name: [vars(item) for item in items] for name, items in self.arguments.items() if items}
        return {"choices": choices, "arguments": arguments, "keys": [vars(key) for key in self.keys]}

    def text(self) -> str:
        """Write all of it as lines."""
        if self.is_key:
            return self._text_of_key()
        parts, group = list[str](), self.group
        if self.choices:
            rows = [(f"  {group}={option.name}", option.comment) for option in self.choices]
            parts += [f"choices of {group}:", table([], rows)]
            parts += ["", f"arguments of {group}, by choice:"] if self.arguments else []
        for name, items in self.arguments.items():
            written = [(f"    {item.key}={item.value}", _short(item.meaning)) for item in items if item.written]
            others = [item for item in items if not item.written]
            more = [item.key.rpartition(".")[2] + (f"={item.value}" if item.value else "") for item in others]
            also = textwrap.fill("also: " + ", ".join(more), 112, initial_indent=" " * 4, subsequent_indent=" " * 10)
            parts += [f"  {group}={name}", *([table([], written)] if written else []), *([also] if more else [])]
        if self.keys:
            parts += [*([""] if parts else []), f"keys of {self.name}:", *map(_text_of_row, self.keys)]
        return "\n".join(parts)

    def _text_of_key(self) -> str:
        """Describe a key as the schema does, or by the choices that take it, each where most do not mean the same."""
        takers = [(name, item) for name, items in self.arguments.items() for item in items]
        if not takers:
            return "\n".join(map(_text_of_row, self.keys))
        kinds = Counter(item.type for _, item in takers if item.type).most_common(1)
        meanings = Counter(_short(item.meaning) for _, item in takers if item.meaning)
        usual, count = meanings.most_common(1)[0] if meanings else ("", 0)
        usual = usual if 2 * count > len(takers) else ""  # else they mean different things
        shared = next(item.meaning for _, item in takers if _short(item.meaning) == usual) if usual else ""
        head = f"  {self.name}" + (f" ({kinds[0][0]})" if kinds and 2 * kinds[0][1] > len(takers) else "")
        lines = []
        for name, item in takers:
            own = _short(item.meaning)
            notes = ("" if own == usual else own, "" if item.written else "the default of what is built")
            lines.append((f"  {self.group}={name}", item.value or "must be given", "; ".join(filter(None, notes))))
        about = [_wrapped(shared)] if shared else []
        return "\n".join([head, *about, "", f"value of {self.name}, by choice:", table([], lines)])


def _text_of_row(key: OptionRow) -> str:
    head = f"  {key.key} ({key.type})" + (f" = {key.default}" if key.default else "")
    return f"{head}\n{_wrapped(key.meaning)}"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 112, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _short(text: str) -> str:
    """Return the first sentence of a text without links, cut to the width of a table."""
    plain = re.sub(r" \(https?://[^)]*\)", "", first_sentence(text))
    return textwrap.shorten(plain, 90, placeholder=" …")


def as_yaml(cfg: DictConfig, *, resolve: bool, package: str | None) -> str:
    """Write the configuration, or what is below one key of it, as YAML.

    Raises:
        UserError: There is no such key.
    """
    node: Any = cfg
    if package and package != "_global_":
        node = OmegaConf.select(node, package)
        if node is None:
            raise UserError(
                "no such key", key="--package", received=package, choices=map(str, cfg), family="unknown-key"
            )
    if not OmegaConf.is_config(node):
        return str(node)
    content: Any = OmegaConf.to_container(node, resolve=resolve, enum_to_str=True)
    text = tree.as_yaml(content) if isinstance(content, dict) else OmegaConf.to_yaml(node, resolve=resolve)
    return text.removeprefix(tree.MARK).rstrip()


def print_run(composed: Composed, options: argparse.Namespace) -> int:
    """Print the configuration of a run, Hydra's or both.

    Hydra's has the folders that we use where its own are left as they come. It is never resolved: much of it is only
    known while a run of Hydra's goes on.
    """
    if options.cfg == "job":
        say(as_yaml(composed.cfg, resolve=options.resolve, package=options.package))
        return 0
    if composed.hydra_cfg is None:
        raise UserError("the configuration of a run has no part for Hydra", key="--cfg", fix="--cfg job")
    own: Any = OmegaConf.create(OmegaConf.to_container(hydra_node(composed.hydra_cfg)))
    for kind, below in (("run", run_files.RUNS), ("sweep", run_files.SWEEPS)):
        if hydra_folder(composed, kind) is None:
            base = project() / run_files.OUTPUTS / below
            own.hydra[kind].dir = f"{base}/${{now:%Y-%m-%d}}/${{now:%H-%M-%S}}-{slug(str(composed.cfg.name))}"
    job: Any = {} if options.cfg == "hydra" else OmegaConf.to_container(composed.cfg, resolve=options.resolve)
    say(as_yaml(OmegaConf.create({**job, **own}), resolve=False, package=options.package))
    return 0


def print_hydra(args: list[str]) -> int:
    """Print one of Hydra's own views of the composition."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    all_handlers = list(logging._handlerList)  # type: ignore[attr-defined]
    logging._handlerList.clear()  # type: ignore[attr-defined]  # it closes all that it finds, of other packages too
    # It prints by way of the logging module, which complains about every line that `| head` does not read.
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            hydra_command(args)
        finally:
            root.handlers[:], root.level = before
            logging._handlerList[:] = all_handlers  # type: ignore[attr-defined]
    say(printed.getvalue().rstrip("\n"))
    return 0


def print_jobs(jobs: Sequence[Composed], options: argparse.Namespace) -> int:
    """Print the configuration of every job of a sweep."""
    if options.cfg != "job":
        raise UserError("only the jobs of a sweep can be printed", key="--cfg", received=options.cfg, fix="--cfg job")
    for position, job in enumerate(jobs):
        said = " ".join(job.overrides) or "without overrides"
        say(("---\n" if position else "") + f"# job {position + 1} of {len(jobs)}: {said}")
        say(as_yaml(job.cfg, resolve=options.resolve, package=options.package))
    return 0
