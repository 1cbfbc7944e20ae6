"""Overrides as the user types them, checked one by one and made acceptable to Hydra.

Hydra wants `+key=value` for keys that are in no file and takes any key then. Here a key never needs a plus: the loader
sets every value, and every key, wherever it came from, is judged by our own checker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lightkit.common.errors import UserError
from lightkit.common.suggest import nearest
from lightkit.common.text import look_alike, plain_letters
from lightkit.config.annotations import fits
from lightkit.config.defaults import SWEEPS, of_sweeps, unknown_option
from lightkit.config.fields import class_at, field_types
from lightkit.config.loader import PARAMS, ConfigLoader, Override, is_param
from lightkit.config.origins import command_line, parts_of
from lightkit.config.schema import Config
from lightkit.config.sources import GROUP

_QUOTES = " '\""
_UNLIKE = "Cannot merge DictConfig with ListConfig"
_TEXT = re.compile(r"\w[\w .+-]*")
_YAML = re.compile(r"([\w.]+):\s*([^\s:={}]*)")
_SHORT = re.compile(r"^(\+*)cv=(?![{]|null$|none$)")
"""`cv=5` in place of `cv.folds=5`."""
_KEY = re.compile(r"[+~]*[\w$-]+([./@:][\w$-]+)*")


@dataclass
class Rewritten:
    """Overrides ready for Hydra.

    Args:
        texts: What Hydra gets.
        values: Key and original text of the overrides that set or remove values, for the origins.
        errors: What can't be used; such overrides are left out of `texts`.
        toggled: Positions of texts whose plus was changed once already.
        skipped: Keys below which nothing can be judged, because what was typed for them was wrong.
    """

    texts: list[str] = field(default_factory=list)
    values: list[tuple[str, str]] = field(default_factory=list)
    errors: list[UserError] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    toggled: set[int] = field(default_factory=set)


def plain(text: str) -> str:
    """Return an override without the `+` in front, as it is used in names and tables."""
    return text.lstrip("+")


def rewrite(loader: ConfigLoader, overrides: Sequence[str], *, sweep: bool = False) -> Rewritten:
    """Check the syntax and the groups of all overrides, and write them as the loader takes them.

    Args:
        loader: Knows the groups and options.
        overrides: As typed.
        sweep: Several values for one key are allowed.
    """
    result = Rewritten()
    for text in overrides:
        text = _quoted(_SHORT.sub(r"\1cv.folds=", text))
        try:
            override = loader.parse(text)
        except ValueError as error:
            result.errors.append(_unreadable(text, str(error)))
            result.skipped.append(text.lstrip("+~").partition("=")[0])
            continue
        if is_param(override) and (sweep or not override.is_sweep_override()):
            result.texts.append(text)
            result.values.append((PARAMS, text))
        elif (wrong := wrong_sweep(override, text, sweep=sweep, choice=_is_group(loader, override))) is not None:
            result.errors.append(wrong)
        elif override.key_or_group.startswith("hydra."):
            result.texts.append(text if override.is_delete() else plain(text))
            result.values.append((override.key_or_group, text))
        elif _is_choice(loader, override):
            _choose(loader, override, text, result)
        else:
            _set_value(loader, override, text, result)
    return result


def is_choice(loader: ConfigLoader, text: str) -> bool:
    """Tell whether an override picks the option of a group that a configuration has a key for."""
    try:
        override = loader.parse(text)
    except ValueError:
        return False
    return _is_choice(loader, override) and override.key_or_group != GROUP and not override.is_delete()


def _is_choice(loader: ConfigLoader, override: Override) -> bool:
    return _is_group(loader, override) and not isinstance(override.value(), dict)


def _is_group(loader: ConfigLoader, override: Override) -> bool:
    return loader.is_group(override.key_or_group) or override.key_or_group == GROUP


def _quoted(text: str) -> str:
    """Put quotes around a plain text in letters beyond ASCII in an override, which Hydra wants there."""
    key, _, value = text.partition("=")
    plain_text = not value.isascii() and _TEXT.fullmatch(value) and look_alike(value) is None
    return f'{key}="{value}"' if plain_text else text


def _error(what: str, text: str, **facts: Any) -> UserError:
    """Make the error for an override, as typed; `facts` are those of `UserError`."""
    return UserError(what, origin=command_line(text), **facts)


def _unreadable(text: str, message: str) -> UserError:
    odd = look_alike(text)
    if odd is not None:
        what = f"this override can't be read: {odd}, which it looks like"
        return _error(what, text, received=text, fix=plain_letters(text), family="unreadable-configuration")
    reason = message.splitlines()[0] if message else ""
    key, _, value = text.partition("=")
    is_list = value.startswith("[") and value.endswith("]") and "{" not in value
    quoted = ",".join(f'"{item.strip(_QUOTES)}"' for item in value[1:-1].split(","))
    fix = f"'{key}=[{quoted}]'" if is_list else ""
    as_yaml = _YAML.fullmatch(text)
    if as_yaml:
        value = as_yaml[2].replace(",", ".") if DECIMAL_COMMA.fullmatch(as_yaml[2]) else as_yaml[2]
        reason, fix = "an override has a = where a file has a colon", f"{as_yaml[1]}={value or 'VALUE'}"
    elif not _KEY.fullmatch(key):
        reason, fix = "what is before the = is no key", "names joined by dots; a list is set as a whole: key=[…]"
    elif reason.startswith("LexerNoViableAlt"):
        odd = next((sign for sign in value if not sign.isascii()), "")
        reason = f"{odd!r} needs quotes around the value" if odd else "a character that needs quotes around the value"
        fix = fix or f"""'{key}="{value}"'"""
    fix = fix or "use key=value, group=option or ~key; put quotes around spaces, commas and brackets: 'key=\"a, b\"'"
    what = f"this override can't be read: {reason}"
    return _error(what, text, received=text, fix=fix, family="unreadable-configuration")


def _set_value(loader: ConfigLoader, override: Override, text: str, result: Rewritten) -> None:
    key = override.key_or_group
    if override.package is not None or "/" in key:
        choices = loader.groups(key.rpartition("/")[0]) if "/" in key else loader.groups()
        facts = {"received": key, "choices": choices, "family": "unknown-option"}
        result.errors.append(_error("there is no such group", text, key=key, **facts))
        return
    meant = of_sweeps(loader, key, str(override.value())) if key in SWEEPS and not override.is_delete() else None
    if meant is not None:
        result.errors.append(_error("there is no such group", text, key=key, fix=meant, family="unknown-key"))
        return
    option, _, rest = key.partition(".")
    is_key = not rest or option in field_types(Config)
    groups = [] if is_key else loader.groups()
    group = next((group for group in groups if loader.is_option(group, option)), None)
    if group is not None:
        what, value = f"unknown key: {option} is an option of the group {group}", text.partition("=")[2]
        fix = f"{group}={option} {group}.{rest}={value}"
        result.errors.append(_error(what, text, key=option, received=key, fix=fix, family="unknown-key"))
        return
    result.values += [(leaf, text) for leaf in _leaves(key, None if override.is_delete() else override.value())]
    result.texts.append(text if override.is_delete() else plain(text))


def idle_lines(rewritten: Rewritten, cfg: DictConfig) -> Iterator[str]:
    """Yield a line about each override by an empty mapping, which is merged with what is there and so removes nothing.

    Args:
        rewritten: The overrides.
        cfg: What was composed with them.
    """
    for key, text in rewritten.values:
        node = OmegaConf.select(cfg, key) if text.endswith("={}") else None
        if isinstance(node, DictConfig) and len(node):
            removing = " ".join(f"~{key}.{name}" for name in map(str, node))
            yield f"{text} removes nothing, as a mapping is merged with what is there; this does: {removing}"


def _leaves(key: str, value: object) -> Iterator[str]:
    """Yield the keys that a value sets: of a mapping those in it, as it is merged with what is there."""
    if not isinstance(value, dict) or not value:
        yield key
        return
    for name, inner in value.items():
        yield from _leaves(f"{key}.{name}", inner)


def _choose(loader: ConfigLoader, override: Override, text: str, result: Rewritten) -> None:
    group, value = override.key_or_group, override.value()
    options = _options(loader, override, value)
    several = options if isinstance(value, list) else []
    wrong = [option for option in dict.fromkeys(options) if not loader.is_option(group, option)]
    if group == GROUP and value is None and not override.is_delete():
        return
    if override.is_delete():
        result.texts.append(text)
    elif not options and not override.is_sweep_override():
        facts = {"choices": loader.options(group), "fix": f"{group}=OPTION", "family": "missing-value"}
        result.errors.append(_error("an option is missing", text, key=group, **facts))
    elif wrong:
        origin = command_line(text)
        result.errors += [unknown_option(loader, group, option, origin=origin, several=several) for option in wrong]
        result.skipped.append(override.package or group.replace("/", "."))
    elif several:
        # A list with a plus would join the option of the defaults list, which Hydra then still has on record.
        result.texts.append(plain(text))
    else:
        result.texts.append(text if not text.startswith("++") else text[1:])


def _options(loader: ConfigLoader, override: Override, value: Any) -> list[str]:
    """List the options that an override names: one or a list of them, with a sweep those of every choice."""
    if override.is_sweep_override():
        texts = override.sweep_string_iterator() if override.is_discrete_sweep() else ()
        values = (loader.parse(f"{override.key_or_group}={text}").value() for text in texts)
        return [option for one in values for option in _listed(one)]
    return _listed(value)


def _listed(value: Any) -> list[str]:
    if value is None or value == "":
        return []
    return [str(option) for option in value] if isinstance(value, list) else [str(value)]


def undeletable(text: str, reason: str, names: Sequence[str]) -> UserError:
    """Make the error for an override that Hydra could not apply."""
    key = plain(text.lstrip("~")).partition("=")[0]
    if text.startswith("~") and "does not exist" in reason:
        beside = [name for name in names if name.rpartition(".")[0] == key.rpartition(".")[0]]
        close = nearest(key, beside, count=1) or nearest(key, names, count=1)
        fix = f"~{close[0]}" if close else None
        return _error("there is nothing of that name to remove", text, key=key, fix=fix, family="unknown-key")
    shown = text if text.startswith("~") else plain(text)
    if _UNLIKE in reason:
        is_list = plain(text).partition("=")[2].startswith("[")
        expected, received = ("a mapping", "a list") if is_list else ("a list", "a mapping")
        return _error("wrong type", shown, key=key, expected=expected, received=received, family="wrong-value")
    if re.match(r"Key '.*' (is )?not in ", reason):
        above = key.rpartition(".")[0]
        fix = f"`lightkit train --cfg hydra --package {above}` prints the keys that there are, with the same overrides"
        return _error("unknown key", shown, key=key, fix=fix, family="unknown-key")
    line = next((line for line in reason.splitlines() if line.strip()), "")
    return _error(f"can't be set: {line}", shown, key=key, family="unreadable-configuration")


DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
"""A number with a comma for its point."""


def wrong_sweep(override: Override, text: str, *, sweep: bool, choice: bool) -> UserError | None:
    """Make the error for several values of one key that cannot be.

    Args:
        override: What was typed.
        text: As it was typed.
        sweep: Whether several runs are wanted.
        choice: Whether it chooses options of a group.

    Returns:
        None where they can be, or where there is one value.
    """
    if not override.is_sweep_override():
        return None
    if not sweep:
        return _empty_range(override, text) or _needs_multirun(text, override, choice=choice)
    if override.is_hydra_override():
        what = "Hydra's own settings can't be swept"
        return _error(what, text, key=override.key_or_group, family="hydra")
    return _empty_range(override, text)


def _needs_multirun(text: str, override: Override, *, choice: bool) -> UserError:
    what, value = "several values for one key start several runs, which wants -m", text.partition("=")[2]
    wanted = "options that go together" if choice else "a list"
    quoted = "" if choice else ", or for a text put quotes around it"
    fix = f"add -m, or for {wanted} write {override.get_key_element()}=[…]{quoted}"
    if DECIMAL_COMMA.fullmatch(value) and _may_be_fraction(override.key_or_group):
        key = override.key_or_group
        fix = f"{key}={value.replace(',', '.')}, with a point; a list is {key}=[{value}]; for several runs add -m"
    return _error(what, text, key=override.key_or_group, received=value, fix=fix, family="wrong-command")


def _may_be_fraction(key: str) -> bool:
    """Tell whether the value of a key can be a number that is not whole, as far as is known."""
    *above, name = parts_of(key)
    kind = class_at(tuple(above))
    hint = field_types(kind).get(str(name)) if kind is not None else None
    return hint is None or fits(0.5, hint)


def _empty_range(override: Override, text: str) -> UserError | None:
    """Make the error for a range of fractions that is one value, as it counts in steps of 1."""
    if not override.is_range_sweep():
        return None
    counted: Any = override.value()
    numbers = (counted.start, counted.stop, counted.step)
    if all(float(number).is_integer() for number in numbers) or len(list(counted.range())) > 1:
        return None
    key, (start, stop, step) = override.key_or_group, numbers
    what = f"this range counts from {start:g} to {stop:g} in steps of {step:g}, which is one value"
    wanted = f"a start, the number it stops before, and a step: {key}=range(0.1,0.5,0.1)"
    fix = f"the values themselves: {key}={stop / 100:g},{stop / 10:g},{stop:g}"
    facts = {"expected": wanted, "received": text.partition("=")[2], "fix": fix}
    return _error(what, text, key=key, **facts, family="wrong-value")
