"""The names that people give to splits."""

from __future__ import annotations

SPLIT_NAMES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
"""The names that each split is known by, in upper or lower case."""
KNOWN = tuple(name for names in SPLIT_NAMES.values() for name in names)
"""All of them."""


def split_named(name: object) -> str | None:
    """Return the split (`train`, `val`, `test`) that a name stands for; None where it stands for none."""
    plain = name.strip().lower() if isinstance(name, str) else ""
    return next((split for split, names in SPLIT_NAMES.items() if plain in names), None)
