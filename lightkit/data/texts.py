"""Texts with a class each, or with a tag for each of their words, as numbers of words.

Shapes: N texts, B of them in a batch, T words of the longest.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightkit.common.argument_checks import check_range
from lightkit.common.errors import Problems
from lightkit.data.csv_table import read_targets
from lightkit.data.padding import IGNORED
from lightkit.data.reader import Faults
from lightkit.data.table_columns import read_table
from lightkit.data.table_encodings import Tokens
from lightkit.data.table_reader import TableReader
from lightkit.data.table_sources import TableSource, open_table
from lightkit.data.tensors import DataInfo, TensorData


class Texts(TensorData):
    """Texts of a table, or of a folder with a folder of text files for each class.

    The words are those of the training rows: once these are known, `fitted` numbers them.

    Args:
        path: The table or data frame, see `lightkit.data.table_sources.open_table`, or the folder.
        text: Column with the texts.
        target: Column with their classes, or with a tag for each word.
        tags: Whether each word has a tag: words and tags stand between spaces, or are lists.
        max_words: Words of a text; further ones are cut off.
        max_vocabulary: Words to tell apart, the most frequent ones; others become one unknown word.
        vocabulary: The words in order of their numbers, as texts need that share a model; None takes those of the
            training rows.
        like: The texts of the training rows, for a further set: classes and length are its own.

    Raises:
        UserError: A file or column is not there, a text is empty, or tags are not as many as words; lines are named.
    """

    exact = False

    def __init__(
        self,
        path: Any,
        text: str = "text",
        target: str = "target",
        *,
        tags: bool = False,
        max_words: int = 256,
        max_vocabulary: int = 20_000,
        vocabulary: list[str] | None = None,
        like: Any = None,
    ) -> None:
        check_range("max_words", max_words, low=1, what="too small")
        files = sorted(Path(path).expanduser().glob("*/*.txt")) if isinstance(path, str) else []
        source = _class_folders(files, text, target) if files else open_table(path)
        Problems(source.unknown([text, target], argument="")).raise_any()
        table = read_table(source, numbers=(), names=[text, target])
        column, marks = table.names(text), table.names(target)
        cells = [Tokens((), spaces=tags).cut(cell) for cell in column.kinds.to_pylist()]
        own = [Tokens((), spaces=True).cut(cell) for cell in marks.kinds.to_pylist()]
        pairs = [(len(cells[one]), len(own[other])) for one, other in zip(column.codes, marks.codes, strict=True)]
        wrong = {
            row: (f"{words} words, {marked} tags" if tags else "the class is missing")
            if words
            else "the text has no words"
            for row, (words, marked) in enumerate(pairs)
            if not words or not marked or (tags and words != marked)
        }
        places = source.places([*wrong]) if wrong else []
        Faults(fix="mend them, or take them out of the table").take([*zip(places, wrong.values(), strict=True)])
        most = like.info.input_shape[0] if like else min(max_words, max(words for words, _ in pairs))
        names = dict.fromkeys(word for words in cells for word in words)
        known = Tokens(["<padding>", "<unknown>", *names], most, tags)
        x = torch.from_numpy(known.features(column.kinds.to_pylist())[column.codes]).long()
        if tags:
            classes = tuple(sorted({tag for each in own for tag in each}))
            numbers = Tokens(["", "", *classes], most, spaces=True).features(marks.kinds.to_pylist())[marks.codes]
            y = torch.where(x == 0, IGNORED, torch.from_numpy(numbers).long() - 2)
        else:
            words = like.info.class_names if like else ()
            found, classes = read_targets([table], [target], task="multiclass", known=words)
            y = torch.from_numpy(found)
        info = DataInfo("tagging" if tags else "multiclass", (most,), len(classes), classes)
        super().__init__(x, y, info, name=source.label, reader=TableReader([text], targets=[target]))
        self.lengths, self.known, self._most, self._given = (x != 0).sum(1), known, max_vocabulary, vocabulary

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return numbers of words `(B, T)` int64, 0 where a text has ended, and classes `(B,)` or tags `(B, T)`."""
        x, y = super().take(rows)
        longest = int(self.lengths[rows].max())
        return x[:, :longest], y[:, :longest] if y.ndim > 1 else y

    def fitted(self, rows: Tensor, vocabulary: tuple[str, ...] = ()) -> Texts:
        """Return these texts in numbers of the words that the training rows have.

        Args:
            rows: The training rows.
            vocabulary: The words of a run that has begun, which it keeps.
        """
        counts = torch.bincount(self.x[rows].flatten(), minlength=len(self.known.names))[2:]
        often = counts.argsort(descending=True, stable=True)[: min(self._most, int((counts > 0).sum()))] + 2
        words = tuple(self._given or vocabulary or (self.known.names[number] for number in [0, 1, *often.tolist()]))
        numbers = {word: number for number, word in enumerate(words)}
        known, other = replace(self.known, names=words), copy.copy(self)
        other.x = torch.tensor([numbers.get(word, 1) for word in self.known.names])[self.x]
        other.reader = replace(self.reader, others={self.reader.features[0]: known.state_dict()})
        other.info = replace(self.info, vocab_size=len(words), vocabulary=words, padding_idx=0)
        return other


def _class_folders(files: list[Path], text: str, target: str) -> TableSource:
    """Return text files as rows: what is in each, and the name of its folder."""
    cells = [file.read_text(encoding="utf-8", errors="replace") for file in files]
    source = open_table({text: cells, target: [file.parent.name for file in files]})
    return replace(source, find=lambda numbers: [str(files[number]) for number in numbers])
