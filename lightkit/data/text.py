"""Character-level language modelling over text files.

Shapes in this file: B samples, T = `context_length` characters.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightkit.common.argument_checks import check_range
from lightkit.common.errors import UserError
from lightkit.data.tensors import DataInfo, fingerprint

UNKNOWN = "\ufffd"
ASCII = "\t\n" + "".join(map(chr, range(32, 127)))
"""The characters of `vocabulary: ascii`."""
_FILES_FOR_BOUNDARIES = 20


class Text:
    """Windows of a text; the target of each character is the one after it.

    The files are joined in an order that depends on their names alone and looks random, so that the parts of a folder
    resemble each other, and cut into train, val and test one after the other: between files when there are 20 or more,
    otherwise at the character. The vocabulary is that of the training part, or a given one, as texts need that share a
    model; other characters become one unknown token.

    Args:
        path: A text file or a folder; None takes the standard library of the running Python (its top-level modules).
        pattern: Which files of a folder (`**/*.txt` also looks into folders within).
        context_length: Characters of one sample.
        stride: Characters between the starts of two training windows; None takes `context_length`.
        val: Share of the characters for validation.
        test: Share of the characters for test.
        max_chars: Read no more than this many characters; None reads all.
        min_count: A character must occur this often in the training part to be in the vocabulary.
        vocabulary: The characters to tell apart, or `ascii` for the printable ones with tab and line feed; None takes
            those of the training part.
        texts: Texts by name, in place of files.
        like: The text of the training rows, for a further set: the vocabulary is its own.

    Raises:
        UserError: There is no such file, no text, a part is shorter than one window, or the vocabulary is not one.
    """

    exact = True
    strata = None
    split_by = ("file", "random", "ordered")

    def __init__(
        self,
        path: str | None = None,
        pattern: str = "*.py",
        context_length: int = 128,
        *,
        stride: int | None = None,
        val: float = 0.1,
        test: float = 0.1,
        max_chars: int | None = None,
        min_count: int = 1,
        vocabulary: str | None = None,
        texts: Mapping[str, str] | None = None,
        like: Any = None,
    ) -> None:
        stride = context_length if stride is None else stride
        numbers = {"context_length": context_length, "stride": stride, "min_count": min_count, "max_chars": max_chars}
        for name, value in numbers.items():
            check_range(name, value, low=1, what="too small")
        if not (0 <= val < 1 and 0 <= test < 1 and val + test < 1):
            what = "no text is left to train on"
            raise UserError(what, argument="", expected="val + test below 1", received=f"{val} + {test}")
        pieces = _read(_files(path, pattern), max_chars) if texts is None else _shortened(texts, max_chars)
        codes, ends = _code_points("".join(pieces)), np.cumsum([len(piece) for piece in pieces])
        marks = [round(len(codes) * (1 - val - test)), round(len(codes) * (1 - test))]
        if len(ends) >= _FILES_FOR_BOUNDARIES:
            marks = [int(ends[np.abs(ends - mark).argmin()]) for mark in marks]
        cuts = marks[0], max(marks), len(codes)
        self.vocabulary = getattr(like, "vocabulary", None) or _vocabulary(codes[: cuts[0]], min_count, vocabulary)
        self._known = np.array([ord(char) for char in self.vocabulary[1:]], dtype=np.uint32)
        self.tokens = self._to_tokens(codes)
        self.context_length = context_length
        self._span = torch.arange(context_length + 1)
        self._starts, self.splits = _windows(cuts, context_length, stride, wanted=(True, val > 0, test > 0))
        size = len(self.vocabulary)
        mark = fingerprint([self.tokens, self.vocabulary, context_length, stride, cuts])
        sizes = (context_length,), size, (), size, context_length
        self.info = DataInfo("language_modeling", *sizes, mark, self.vocabulary, decode=self.decode)

    def __len__(self) -> int:
        return len(self._starts)

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return characters `(B, T)` and the ones after them `(B, T)`, int64, of windows `rows`."""
        places = self._starts[rows][:, None] + self._span
        window = self.tokens[places].to(torch.int64)
        return window[:, :-1].contiguous(), window[:, 1:].contiguous()

    def encode(self, text: str) -> Tensor:
        """Return the token numbers of a text, `(length,)` int64."""
        return self._to_tokens(_code_points(text)).to(torch.int64)

    def decode(self, tokens: Tensor | Sequence[int]) -> str:
        """Return the text of token numbers."""
        return "".join(self.vocabulary[int(token)] for token in tokens)

    def _to_tokens(self, codes: np.ndarray) -> Tensor:
        """Map code points to tokens: 0 for unknown ones, 1 and up for the vocabulary; one byte each if possible."""
        place = np.searchsorted(self._known, codes).clip(max=len(self._known) - 1)
        tokens = np.where(self._known[place] == codes, place + 1, 0)
        return torch.from_numpy(tokens.astype(np.uint8 if len(self.vocabulary) <= 256 else np.int32))


def _files(path: str | None, pattern: str) -> list[Path]:
    """List the files to read, in an order that looks random."""
    root = Path(sysconfig.get_path("stdlib") if path is None else path).expanduser()
    if root.is_file():
        return [root]
    if not root.is_dir():
        raise UserError("there is no such file or folder", argument="path", received=str(root), family="data-not-found")
    found = [file for file in root.glob(pattern) if file.is_file()]
    if not found:
        what, expected = f"no file in {root} matches", "a glob such as *.txt or **/*.txt"
        raise UserError(what, argument="pattern", received=pattern, expected=expected, family="data-not-found")
    names = {file.relative_to(root).as_posix(): file for file in found}
    return [names[name] for name in _ordered(names)]


def _ordered(names: Iterable[str]) -> list[str]:
    """Sort names in an order that depends on nothing else and looks random."""
    return sorted(names, key=lambda name: (hashlib.blake2b(name.encode()).digest(), name))


def _read(files: list[Path], max_chars: int | None) -> list[str]:
    """Read files until there are `max_chars` characters."""
    texts: list[str] = []
    left = max_chars
    for file in files:
        if left is not None and left <= 0:
            break
        try:
            text = file.read_text(encoding="utf-8", errors="replace")[:left]
        except OSError as error:
            what = f"a file cannot be read: {error.strerror}"
            raise UserError(what, argument="path", received=str(file), family="data-unreadable") from error
        if "\0" in text:
            what = "a file holds NUL bytes: it is no text in UTF-8"
            fix = "name a text file, or the text files of the folder by data.dataset.pattern"
            raise UserError(what, argument="path", received=str(file), fix=fix, family="data-unreadable")
        texts.append(text)
        left = None if left is None else left - len(text)
    if not any(texts):
        raise UserError("there is no text", argument="path", received=str(files[0]), family="data-unreadable")
    return texts


def _shortened(texts: Mapping[str, str], max_chars: int | None) -> list[str]:
    """Put texts in order and cut off what is more than `max_chars`."""
    ordered = [texts[name] for name in _ordered(texts)]
    starts = accumulate((len(text) for text in ordered), initial=0)
    kept = ordered if max_chars is None else [text[: max(max_chars - start, 0)] for text, start in zip(ordered, starts)]
    if not any(kept):
        raise UserError("there is no text", argument="texts", received=f"{len(texts)} texts")
    return [text for text in kept if text]


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", errors="replace"), dtype=np.uint32)


def _vocabulary(codes: np.ndarray, min_count: int, given: str | None) -> tuple[str, ...]:
    """Return the vocabulary, in order of code points: a given one, or the frequent characters of the training part."""
    if given is not None:
        if min_count != 1:
            what = "a given vocabulary does not depend on how often characters occur"
            fix = "data.dataset.min_count=1, or data.dataset.vocabulary=null"
            raise UserError(what, argument="min_count", received=min_count, fix=fix)
        listed = sorted({*(ASCII if given == "ascii" else given)} - {UNKNOWN})
        if not listed:
            expected = "ascii, or the characters themselves"
            raise UserError("no character is in it", argument="vocabulary", expected=expected, received=given)
        return (UNKNOWN, *listed)
    values, counts = np.unique(codes, return_counts=True)
    known = [chr(value) for value in values[counts >= min_count] if chr(value) != UNKNOWN]
    if not known:
        raise UserError("no character is that frequent", argument="min_count", received=min_count)
    return (UNKNOWN, *known)


def _windows(
    cuts: tuple[int, int, int], length: int, stride: int, *, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, dict[str, Tensor]]:
    """List where windows start, and which belong to each part; evaluation windows never overlap."""
    starts: list[Tensor] = []
    splits: dict[str, Tensor] = {}
    done = 0
    for name, begin, end, use in zip(("train", "val", "test"), (0, *cuts), cuts, wanted, strict=False):
        if not use:
            continue
        if end - begin <= length:
            what = f"the {name} part is shorter than one window"
            raise UserError(what, argument="context_length", expected=f"below {end - begin}", received=length)
        part = torch.arange(begin, end - length, stride if name == "train" else length)
        splits[name] = torch.arange(done, done + len(part))
        starts.append(part)
        done += len(part)
    return torch.cat(starts), splits
