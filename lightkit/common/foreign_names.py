"""What Lightning, transformers, timm, Keras, fastai, skorch, Accelerate and ignite call what has another name here."""

from __future__ import annotations

from functools import cache

from lightkit.common.reading import data_beside


@cache
def names_by(section: str) -> dict[str, str]:
    """Return what a foreign name means.

    Args:
        section: `keys` for the full key, or the overrides to type, that mean the same; `advice` for what is done here
            where there is no such key; `given_up` for what takes the place of what earlier versions had.
    """
    return {name: meant for meant, names in data_beside(__file__)[section].items() for name in names}


def meaning(key: str) -> str | None:
    """Say what a key of another framework means here.

    Args:
        key: As it was typed; its last part counts.

    Returns:
        The text of a fix; None for a name that is not known.
    """
    name = key.rpartition(".")[2].lower()
    if given_up := in_place_of(key):
        return given_up
    meant = names_by("keys").get(name)
    if meant is None:
        return names_by("advice").get(name)
    return f"did you mean {meant}?" if meant != key else None


def own_name(name: str) -> str | None:
    """Return the last part of the key that means the same as a name; None where there is no such key."""
    meant = names_by("keys").get(name.lower(), "").rpartition(" ")[2]
    key, _, value = meant.partition("=")
    is_option = value and "." not in key
    return None if is_option else key.rpartition(".")[2] or None


def in_place_of(former: str) -> str | None:
    """Say what to use in place of something that earlier versions had; None where it is no such thing.

    Args:
        former: A key, a key or group with a value, or a command with an option.
    """
    return names_by("given_up").get(former)
