"""Texts as numbers of tokens, by a tokenizer of Hugging Face: those of a data set, and new ones for a trained model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from lightkit.common.errors import UserError
from lightkit.common.hub import load_by, local
from lightkit.data.padding import Padded
from lightkit.data.reader import Faults, NewRows
from lightkit.data.table_reader import TableReader

_UNLIMITED = 1 << 30
"""What tokenizers without a limit call theirs is above this."""


@dataclass(frozen=True)
class TextReader(TableReader):
    """Reads texts from tables by the names of their columns, or from a list of texts.

    Args:
        tokenizer: Name of the tokenizer on the Hub, or a folder.
        max_length: Tokens at which texts are cut off; None takes the limit of the tokenizer.
    """

    tokenizer: str | None = None
    max_length: int | None = None
    kind = "texts"

    @cached_property
    def loaded(self) -> Any:
        """The tokenizer.

        Raises:
            UserError: None is named, transformers is missing, or the tokenizer is not there.
        """
        name = self.tokenizer
        if name is None:
            fix = "model=hf model.name=NAME, whose tokenizer is taken, or data.dataset.tokenizer=NAME|FOLDER"
            raise UserError("texts need a tokenizer", argument="tokenizer", fix=fix, family="missing-value")
        return load_by("transformers", lambda hub: hub.AutoTokenizer.from_pretrained(local(name)), "tokenizer", name)

    @property
    def pad_token_id(self) -> int:
        """The token that texts are padded with."""
        return next((n for n in (self.loaded.pad_token_id, self.loaded.eos_token_id) if n is not None), 0)

    @property
    def collate_fn(self) -> Padded:
        """What makes a batch of texts."""
        return Padded({"input_ids": self.pad_token_id, "token_type_ids": self.loaded.pad_token_type_id})

    def encode(self, columns: Sequence[Sequence[Any]], **options: Any) -> Any:
        """Return what the tokenizer makes of texts, or of pairs of texts, cut off where they are too long."""
        limit = self.max_length or (self.loaded.model_max_length if self.loaded.model_max_length < _UNLIMITED else None)
        cut = {"truncation": limit is not None, "max_length": limit, "return_attention_mask": False, "verbose": False}
        return self.loaded(*map(list, columns), **cut, **options)

    def _source(self, given: Any, *more: Any) -> Any:
        """Open what was given, texts or pairs of texts too."""
        if isinstance(given, (list, tuple)) and given:
            columns = dict(zip(self.features, zip(*((text,) if isinstance(text, str) else text for text in given))))
            given = load_by("datasets", lambda hub: hub.Dataset.from_dict(columns).data.table, "", "texts")
        return super()._source(given, *more)

    def _rows(self, block: Any, source: Any, faults: Faults) -> Iterator[NewRows]:
        cells = {name: block.columns[name].to_pylist() for name in source.names}
        wrong, count = without_text([cells[name] for name in self.features]), len(block.numbers)
        faults.take([(place, "there is no text") for place in source.places(block.numbers[wrong].tolist())])
        if fine := [row for row in range(count) if row not in {*wrong}]:
            kept = {name: [column[row] for row in fine] for name, column in cells.items()}
            found = self.encode([kept.pop(name) for name in self.features])
            inputs = [dict(zip(found, map(torch.tensor, own))) for own in zip(*found.values())]
            yield NewRows(block.numbers[fine].tolist(), inputs, kept)


def without_text(columns: Sequence[Sequence[Any]]) -> list[int]:
    """Return the rows with a cell that holds no text, and no list of words."""
    told = [[isinstance(cell, (str, list)) and str(cell).strip() not in ("", "[]") for cell in own] for own in columns]
    return [row for row, cells in enumerate(zip(*told)) if not all(cells)]
