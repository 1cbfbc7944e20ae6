"""Names of tensors that were given by somebody else: prefixes of wrappers, renaming by patterns, shared prefixes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from lightkit.common.errors import UserError
from lightkit.common.suggest import nearest

_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"})
"""Parts of names that compiling, sharding and checkpointing put in, anywhere; no module of a user is called so."""
_PARALLEL = "module."
"""What DataParallel puts in front of all names."""


def unwrapped(names: Iterable[str]) -> dict[str, str]:
    """Map each name to the model's own one, without what wrappers of parallel training and compilation add."""
    full = list(names)
    own = [".".join(part for part in name.split(".") if part not in _WRAPPERS) for name in full]
    while own and all(name.startswith(_PARALLEL) for name in own):
        own = [name[len(_PARALLEL) :] for name in own]
    return dict(zip(full, own if len(set(own)) == len(own) else full))


def renamed(names: Sequence[str], mapping: Mapping[str, str | None]) -> dict[str, str]:
    r"""Rename tensors by patterns; each rule is applied to what the ones before it made.

    `encoder.layer.*.output` has to fit the whole name, and each `*` of its replacement is what the one of the pattern
    stood for; nothing but `*` is special. `re:^bert\.` replaces what the regular expression finds. A replacement of
    None leaves the tensor out.

    Args:
        names: The names as they are.
        mapping: Pattern to replacement.

    Returns:
        Old name to new name, without those that are left out.

    Raises:
        UserError: A pattern matches nothing or cannot be used, or two tensors get the same name.
    """
    names_now = {name: name for name in names}
    for pattern, replacement in mapping.items():
        substitute, search = _rule(pattern, replacement)
        hit = [old for old, new in names_now.items() if search(new)]
        if not hit:
            raise UserError(
                "the pattern matches no tensor", argument="mapping", received=pattern, choices=names_now.values()
            )
        for old in hit:
            if replacement is None:
                del names_now[old]
            else:
                names_now[old] = substitute(names_now[old])
    owners: dict[str, str] = {}
    for old, new in names_now.items():
        if new in owners:
            what, received = f"two tensors get the name {new}", f"{owners[new]} and {old}"
            raise UserError(what, argument="mapping", received=received)
        owners[new] = old
    return names_now


def _rule(pattern: str, replacement: str | None) -> tuple[Callable[[str], str], Callable[[str], re.Match[str] | None]]:
    """Make a function that replaces a pattern in a name, and one that looks for it."""
    is_expression, text = pattern.startswith("re:"), replacement or ""
    source = pattern[3:] if is_expression else r"(.*?)".join(map(re.escape, pattern.split("*"))) + r"\Z"
    if not is_expression and text.count("*") > pattern.count("*"):
        what, received = "the replacement has more `*` than the pattern", f"{pattern}: {replacement}"
        raise UserError(what, argument="mapping", received=received)
    template = text
    if not is_expression:  # `blocks.*.attn.*` becomes `blocks.\g<1>.attn.\g<2>`
        first, *rest = text.replace("\\", r"\\").split("*")
        template = first + "".join(rf"\g<{number}>{part}" for number, part in enumerate(rest, 1))
    try:
        compiled = re.compile(source if is_expression else rf"\A{source}")
        compiled.sub(template, "")
    except re.error as error:
        raise UserError(f"not a regular expression: {error}", argument="mapping", received=pattern) from error
    return lambda name: compiled.sub(template, name), compiled.search


def shared_prefix(saved: Mapping[str, object], here: Mapping[str, object]) -> tuple[str, str]:
    """Find the prefix to take off the saved names, and the one to put in front, so that most of them fit.

    `LightningModule`s keep their network under `model.`; a backbone saved alone may be a part of the model here.

    Args:
        saved: Shapes by name in the file.
        here: Shapes by name in the model.

    Returns:
        Two prefixes, one of them or both empty. Names that fit as they are win, and between two equally good prefixes
        none is chosen.
    """
    pairs = {("", "")}
    pairs |= {(name[: -len(probe)], "") for probe in _probes(here) for name in saved if name.endswith(f".{probe}")}
    pairs |= {("", name[: -len(probe)]) for probe in _probes(saved) for name in here if name.endswith(f".{probe}")}
    counts: dict[tuple[str, str], int] = {}
    for off, on in pairs:
        stripped = ((on + name[len(off) :], shape) for name, shape in saved.items() if name.startswith(off))
        counts[off, on] = sum(name in here and here[name] == shape for name, shape in stripped)
    best = max(counts.values())
    winners = [pair for pair, count in counts.items() if count == best]
    return winners[0] if len(winners) == 1 else ("", "")


def _probes(names: Mapping[str, object]) -> list[str]:
    """Choose a few names to look for; the first and last stand for everything between them."""
    listed = list(names)
    return list(dict.fromkeys([*listed[:2], *listed[-2:]]))


def nearest_names(wanted: Mapping[str, object], pool: Mapping[str, object], *, limit: int = 50) -> dict[str, str]:
    """Find the most similar name of the pool for each wanted one; of those with the same shape if there are any.

    Args:
        wanted: Shapes by name.
        pool: Shapes by name.
        limit: Only so many names are looked up: comparing texts is slow.
    """
    likest = {}
    for name, shape in list(wanted.items())[:limit]:
        same = [other for other, its in pool.items() if its == shape]
        hits = nearest(name, same, count=1) or (same if len(same) == 1 else nearest(name, pool, count=1))
        if hits:
            likest[name] = hits[0]
    return likest
