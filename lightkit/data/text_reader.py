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
        revision: Commit, branch or tag of the tokenizer; None takes the newest.
        tags: Whether each word has a tag; texts that are no lists of words are cut at spaces.
    """

    tokenizer: str | None = None
    max_length: int | None = None
    revision: str | None = None
    tags: bool = False
    kind = "texts"

    @cached_property
    def loaded(self) -> Any:
        """The tokenizer.

        Raises:
            UserError: None is named, transformers is missing, or the tokenizer is not there.
        """
        name, how = self.tokenizer, {"revision": self.revision or "main", "trust_remote_code": False}
        if name is None:
            fix = "model=hf model.name=NAME, whose tokenizer is taken, or data.dataset.tokenizer=NAME|FOLDER"
            raise UserError("texts need a tokenizer", argument="tokenizer", fix=fix, family="missing-value")
        return load_by(
            "transformers", lambda by: by.AutoTokenizer.from_pretrained(local(name), **how), "tokenizer", name
        )

    @property
    def pad_token_id(self) -> int:
        """Return the number of the token that shorter texts of a batch are filled up with."""
        return next((n for n in (self.loaded.pad_token_id, self.loaded.eos_token_id) if n is not None), 0)

    @property
    def collate_fn(self) -> Padded:
        """Return what makes a batch of the tokens of texts, with a mask of those that are filled up."""
        return Padded({"input_ids": self.pad_token_id, "token_type_ids": self.loaded.pad_token_type_id})

    def encode(self, columns: Sequence[Sequence[Any]]) -> Any:
        """Return what the tokenizer makes of texts, or of pairs of texts, cut off where they are too long.

        Where words have tags, `words` is for each token the word that begins with it; -1 where none does.
        """
        limit = self.max_length or (self.loaded.model_max_length if self.loaded.model_max_length < _UNLIMITED else None)
        cut = {"truncation": limit is not None, "max_length": limit, "return_attention_mask": False, "verbose": False}
        cells = [[words_of(text) if self.tags else text for text in own] for own in columns]
        found = self.loaded(*cells, **cut, is_split_into_words=isinstance(cells[0][0], list))
        words = {"words": [_firsts(found.word_ids(row)) for row in range(len(cells[0]))]} if self.tags else {}
        return {**found, **words}

    def _source(self, given: Any, *more: Any) -> Any:
        """Open what was given, texts or pairs of texts too."""
        if isinstance(given, (list, tuple)) and given:
            columns = dict(zip(self.features, [given] if len(self.features) == 1 else zip(*given)))
            given = load_by("datasets", lambda hub: hub.Dataset.from_dict(columns).data.table, "", "texts")
        return super()._source(given, *more)

    def _rows(self, block: Any, source: Any, faults: Faults) -> Iterator[NewRows]:
        cells = {name: block.columns[name].to_pylist() for name in source.names}
        texts = [cells.pop(name) for name in self.features]
        wrong = dict.fromkeys(without_text(texts), "there is no text")
        fine = [row for row in range(len(block.numbers)) if row not in wrong]
        found = self.encode([[own[row] for row in fine] for own in texts]) if fine else {}
        lost = {
            row: len(words_of(texts[0][row])) - len({*own} - {-1}) for row, own in zip(fine, found.get("words", ()))
        }
        wrong |= {row: f"{n} of its words make no token, or are beyond max_length" for row, n in lost.items() if n}
        faults.take([*zip(source.places(block.numbers[[*wrong]].tolist()), wrong.values())])
        inputs = {row: dict(zip(found, map(torch.tensor, own))) for row, *own in zip(fine, *found.values())}
        if fine := [row for row in fine if row not in wrong]:
            kept = {name: [column[row] for row in fine] for name, column in cells.items()}
            yield NewRows(block.numbers[fine].tolist(), [inputs[row] for row in fine], kept)


def words_of(text: Any) -> list[str]:
    """Return the words of a text, or a list of words; none where it is neither."""
    words = text.split() if isinstance(text, str) else text
    return words if isinstance(words, list) and all(isinstance(word, str) and word.strip() for word in words) else []


def _firsts(words: Sequence[int | None]) -> list[int]:
    """Return for each token the word that begins with it; -1 where none does."""
    return [-1 if word in (None, before) else word for before, word in zip([None, *words], words)]


def without_text(columns: Sequence[Sequence[Any]]) -> list[int]:
    """Return the rows with a cell that holds no text, and no list of words."""
    told = [[*map(words_of, own)] for own in columns]
    return [row for row, cells in enumerate(zip(*told)) if not all(cells)]
