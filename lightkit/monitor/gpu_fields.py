"""The fields that `lightkit gpus` knows of a GPU: what each means, its unit, and its name in nvidia-smi."""

from __future__ import annotations

from typing import NamedTuple

from lightkit.common.reading import data_beside


class Field(NamedTuple):
    """What is known of a field."""

    section: str
    """What it belongs to, as the detailed view has it."""
    meaning: str
    """What it says, in a sentence or two."""
    unit: str = ""
    """Unit of its values; empty for none."""
    smi: str = ""
    """Its name in `nvidia-smi --query-gpu`; empty where it has none."""


FIELDS = {name: Field(**facts) for name, facts in data_beside(__file__).items()}
"""Every field by name, in the order in which they are shown."""
