"""`lightkit config`: what a run would be made of, and what could be put there instead."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from lightkit.cli.arguments import Parser
from lightkit.cli.printing import as_yaml
from lightkit.cli.terminal import json_text, say, table

if TYPE_CHECKING:
    from lightkit.config.describe import OptionRow


def config(args: list[str]) -> int:
    """Print the composed configuration, or the choices and keys of a group."""
    options = Parser("config", "overrides*").read(args)
    if len(options.overrides) == 1 and "=" not in options.overrides[0] and options.overrides[0][0] not in "~+":
        describe = _group_json if options.json else group_text
        say(describe(options.overrides[0].strip("/"), options.config_dir))
        return 0
    from lightkit.config import compose
    from lightkit.config.origins import parts_of, shown, with_origins
    from lightkit.config.sources import choices_in, project_file

    composed = compose(options.overrides, config_dir=options.config_dir, config_name=options.config_name)
    text = as_yaml(composed.cfg, resolve=options.resolve, package=options.package)
    if options.json:
        import yaml

        say(json_text(yaml.safe_load(text)))
        return 0
    file = project_file()
    if file is None or not any(path == file for path, _ in composed.sources.layers):
        say(text)
        return 0
    # What the project's `conf/config.yaml` chooses and sets is marked with a comment.
    typed = {override.lstrip("+").partition("=")[0] for override in composed.overrides}
    chosen = [
        f"# {group}={option} is chosen in {shown(file)}:{line}"
        for group, (option, line) in choices_in(file).items()
        if composed.choices.get(group) == option and group not in typed
    ]
    below = () if options.package in (None, "_global_") else parts_of(str(options.package))
    say("\n".join([*chosen, with_origins(text, composed.sources, file, below=below)]))
    return 0


def group_text(group: str, config_dir: str | None = None) -> str:
    """Describe a group by its choices, the arguments of what they build and its keys; or describe one key.

    Args:
        group: Name of the group, such as `optim`, or a key, such as `optim.lr`.
        config_dir: Extra folder of options.

    Raises:
        UserError: There is no such group or key.
    """
    from lightkit.config.describe import describe_arguments, describe_group, describe_key, list_options

    keys = describe_group(group)
    if not keys and ("." in group or describe_key(group)):
        return _one_key(group, config_dir)
    options = [] if keys and "." in group else list_options(group, config_dir=config_dir)
    parts = []
    if options:
        rows = [(f"  {group}={option.name}", option.comment) for option in options]
        parts += [f"choices of {group}:", table([], rows)]
        arguments = describe_arguments(group, config_dir=config_dir)
        parts += ["", f"arguments of {group}, by choice:"] if arguments else []
        for name, found in arguments.items():
            set_here = [(f"    {item.key}={item.value}", _short(item.meaning)) for item in found if item.written]
            others = [item for item in found if not item.written]
            more = [item.key.rpartition(".")[2] + (f"={item.value}" if item.value else "") for item in others]
            also = textwrap.fill("also: " + ", ".join(more), 112, initial_indent=" " * 4, subsequent_indent=" " * 10)
            parts += [f"  {group}={name}", *([table([], set_here)] if set_here else []), *([also] if more else [])]
    if keys:
        parts += [*([""] if parts else []), f"keys of {group}:", *(_key_text(key) for key in keys)]
    return "\n".join(parts)


def _group_json(group: str, config_dir: str | None) -> str:
    """Describe a group or a key as `group_text` does, as JSON.

    Raises:
        UserError: There is no such group or key.
    """
    from lightkit.config.describe import describe_arguments, describe_group, describe_key, list_options, unknown_key

    keys, head = describe_group(group), group.partition(".")[0]
    is_key = not keys and ("." in group or bool(describe_key(group)))
    keys = describe_key(group) if is_key else keys
    options = [] if "." in group or is_key else list_options(group, config_dir=config_dir)
    found = describe_arguments(head, config_dir=config_dir) if options or is_key else {}
    arguments = {
        name: [vars(item) for item in items if not is_key or item.key == group] for name, items in found.items()
    }
    arguments = {name: items for name, items in arguments.items() if items}
    if is_key and not keys and not arguments:
        raise unknown_key(group, config_dir=config_dir)
    choices = [{"name": option.name, "meaning": option.comment} for option in options]
    content = {"choices": choices, "arguments": arguments, "keys": [vars(key) for key in keys]}
    return json_text(content)


def _key_text(key: OptionRow) -> str:
    head = f"  {key.key} ({key.type})" + (f" = {key.default}" if key.default else "")
    return "\n".join([head, _wrapped(key.meaning)])


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 112, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _short(text: str) -> str:
    """Return the first sentence of a text without links, cut to the width of a table."""
    from lightkit.config.fields import first_sentence

    plain = re.sub(r" \(https?://[^)]*\)", "", first_sentence(text))
    return textwrap.shorten(plain, 90, placeholder=" …")


def _one_key(key: str, config_dir: str | None) -> str:
    """Describe one key as the schema does, or by the options whose targets take it.

    Raises:
        UserError: There is no such key.
    """
    from lightkit.config.describe import describe_arguments, describe_key, unknown_key

    rows, group = describe_key(key), key.partition(".")[0]
    found = describe_arguments(group, config_dir=config_dir) if "." in key else {}
    takers = [(name, item) for name, items in found.items() for item in items if item.key == key]
    if not takers and rows:
        return "\n".join(map(_key_text, rows))
    if not takers:
        raise unknown_key(key, config_dir=config_dir)
    kinds = {item.type for _, item in takers if item.type}
    meanings = {item.meaning for _, item in takers}
    meanings = meanings if len(meanings) == 1 else {_short(meaning) for meaning in meanings}
    head = f"  {key}" + (f" ({kinds.pop()})" if len(kinds) == 1 else "")
    # Where options mean different things by one name, each says its own.
    shared = meanings.pop() if len(meanings) == 1 else ""
    lines = []
    for name, item in takers:
        notes = ("" if shared else _short(item.meaning), "" if item.written else "the default of what is built")
        lines.append((f"  {group}={name}", item.value or "must be given", "; ".join(filter(None, notes))))
    about = [_wrapped(shared)] if shared else []
    return "\n".join([head, *about, "", f"value of {key}, by choice:", table([], lines)])
