"""Data sets of Hugging Face: from the Hub or its cache, from folders that `save_to_disk` wrote, and from files.

Neither `datasets` nor `transformers` is imported before `huggingface` is called.

Shapes: B samples, T tokens, C classes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightkit.common.argument_checks import check_choice, check_range
from lightkit.common.errors import UserError
from lightkit.common.hub import KINDS, load_by, local
from lightkit.common.names import split_named
from lightkit.data.images import ImageReader, check_image_size
from lightkit.data.padding import IGNORED
from lightkit.data.pixels import image_to_tensor
from lightkit.data.tensors import DataInfo, fingerprint
from lightkit.data.text_reader import TextReader, without_text, words_of

_COMMIT = re.compile(r"@([0-9a-f]{40})/")
"""Where the address of a file on the Hub names the commit."""
_OF_FILES = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".arrow", ".txt")
_LONGEST, _AT_ONCE = 1024, 1000


def huggingface(
    path: str,
    name: str | None = None,
    revision: str | None = None,
    *,
    text: str | Sequence[str] | None = None,
    image: str | None = None,
    target: str | None = None,
    task: str | None = None,
    tokenizer: str | None = None,
    tokenizer_revision: str | None = None,
    max_length: int | None = None,
    masked: float = 0.15,
    size: int = 224,
    channels: int = 3,
    pinned: Mapping[str, str] | None = None,
) -> Any:
    """Load a data set by the package `datasets` (https://huggingface.co/docs/datasets), with the splits it brings.

    Args:
        path: Name on the Hub, a folder that `save_to_disk` wrote, a folder of files, or a file (`.csv`, `.jsonl`, …).
        name: Configuration of the data set, where it has several.
        revision: Commit, branch or tag on the Hub; None takes the newest when a run begins.
        text: Column of texts, or of lists of words; two columns for pairs of texts.
        image: Column of images, in place of texts.
        target: Column of the targets: classes, numbers, or a class for each word; None makes a data set for language
            models.
        task: One of `KINDS`; None finds out from the columns.
        tokenizer: Name on the Hub, or folder, of the tokenizer.
        tokenizer_revision: Commit, branch or tag of it; None takes the newest.
        max_length: Tokens at which texts are cut off, and the length of samples for language models; None takes the
            limit of the tokenizer.
        masked: Share of the tokens that are to be guessed, for `masked_lm`.
        size: Pixels a side of images.
        channels: Channels of images, 3 or 1.
        pinned: What a run took when it began: the commit of the data set.

    Raises:
        UserError: A package is missing, the data set or the tokenizer is not there, a column is not there or does not
            suit the task, or a row is faulty.
    """
    if (text is None) == (image is None):
        what, expected = "one of texts and images is needed", "data.dataset.text=COLUMN or data.dataset.image=COLUMN"
        raise UserError(what, argument="text", expected=expected, received=f"text={text}, image={image}")
    if task is not None:
        check_choice("task", task, KINDS, "no such task")
    inputs = [str(image or text)] if text is None or isinstance(text, str) else [*text]
    where = (path, name, revision or (pinned or {}).get("revision"), inputs, target)
    if image is not None:
        return ImageRows(*where, reader=ImageReader(size, channels))
    known: dict[str, Any] = {"tokenizer": tokenizer, "revision": tokenizer_revision, "max_length": max_length}
    reader = TextReader(inputs, targets=[target] if target else [], **known)
    if target is None or task in ("causal_lm", "masked_lm"):
        return TokenRows(*where, reader=reader, masked=masked if task == "masked_lm" else None)
    return TextRows(*where, reader=reader)


class Rows:
    """Base of the kinds of data sets: the rows of all splits, one after the other.

    Args:
        path: See `huggingface`.
        name: See `huggingface`.
        revision: See `huggingface`.
        inputs: Columns of the inputs.
        target: Column of the targets.

    Raises:
        UserError: The data set cannot be loaded, has no training rows, or lacks a column.
    """

    draws = False
    argument = "text"
    """The argument that names the inputs."""
    info: DataInfo

    def __init__(
        self, path: str, name: str | None, revision: str | None, inputs: Sequence[str], target: str | None
    ) -> None:
        self.path, self.inputs, self.target, self.notes = path, inputs, target, list[str]()
        found = load_by("datasets", lambda package: self._load(package, name, revision), "path", path)
        parts, self._whole = dict[str, Any](), list[Any]()
        for split, part in found.items() if isinstance(found, dict) else [("train", found)]:
            self._add(parts, split, part)
        if "train" not in parts:
            what, expected = "the data set has no split to train on", "; ".join(self.notes)
            raise UserError(what, argument="path", received=path, expected=expected, family="split")
        self.table = load_by("datasets", lambda hub: hub.concatenate_datasets([*parts.values()]), "path", path)
        ends, columns = [0, *accumulate(map(len, parts.values()))], (part.column_names for part in self._whole)
        self.column_readers = {name: partial(self._cells, name) for name in set.intersection(*map(set, columns))}
        self.parts = {split: range(*ends[i : i + 2]) for i, split in enumerate(parts)}
        self.splits: dict[str, Any] = self.parts if len(parts) > 1 else {}
        self.sources = [self.table._fingerprint, *(file["filename"] for file in self.table.cache_files)]
        commit = _COMMIT.search(" ".join(self.table.info.download_checksums or ()))
        self.pinned = {"revision": commit[1]} if commit else {}
        if commit and len(revision or "") == len(commit[1]) and revision != commit[1]:
            what, fix = "the cache has another commit of the data set", "a connection to the Hub, to fetch this one"
            raise UserError(what, argument="revision", expected=revision, received=commit[1], fix=fix)

    def __len__(self) -> int:
        return len(self.table)

    def _cells(self, name: str) -> list[Any]:
        """Return the values in any column of all rows."""
        return [cell for part in self._whole for cell in part[name]]

    def _load(self, package: Any, name: str | None, revision: str | None) -> Any:
        place = Path(self.path).expanduser()
        if (place / "dataset_dict.json").is_file() or (place / "state.json").is_file():
            return package.load_from_disk(str(place))
        if place.is_file() and place.stat().st_size:
            return package.load_dataset(str(place.resolve().parent), data_files=place.name)
        if place.is_file() or place.suffix in _OF_FILES:
            what = "the file is empty" if place.is_file() else "there is no such file"
            raise UserError(what, argument="path", received=self.path, family="data-not-found")
        builder = package.load_dataset_builder(local(self.path), name, revision=revision)
        for older in Path(builder.cache_dir).parents[1].glob(f"*/{revision}") if builder.hash != revision else ():
            known = {"repo_id": self.path, "dataset_name": builder.dataset_name, "config_name": builder.config.name}
            builder = type(builder)(**known, version=older.parent.name, hash=revision)  # not the newest in the cache
        builder.download_and_prepare()
        return builder.as_dataset()

    def _add(self, parts: dict[str, Any], name: str, part: Any) -> None:
        """Add a split to others, or note why it is left out."""
        split, why = split_named(name), ""
        target, columns = self.target, [*self.inputs, *filter(None, [self.target])]
        lacking = next((column for column in columns if column not in part.column_names), None)
        if split is None or split in parts:
            why = "its name is none of train, val and test, or there is one of this name already"
        elif lacking and split != "train":
            why = f"it has no column {lacking}"
        elif lacking:
            what, argument = f"{self.path} has no such column", self.argument if lacking in self.inputs else "target"
            raise UserError(what, argument=argument, received=lacking, choices=part.column_names)
        elif target and hasattr(part.features[target], "names") and part.unique(target) == [-1]:
            why = "its rows have no targets (-1)"
        if why:
            self.notes.append(f"the split {name} is left out: {why}")
        else:
            parts[str(split)] = part.select_columns(columns)
            self._whole.append(part)

    def fault(self, row: int, what: str, **facts: Any) -> UserError:
        """Make the error about a row, which is named as it is in its split."""
        split, own = next((split, own) for split, own in self.parts.items() if row in own)
        return UserError(f"{self.path}, row {row - own.start} of {split}: {what}", family="data-unreadable", **facts)

    def _tokenized(self, encode: Callable[[list[Any], int], Mapping[str, Any]]) -> tuple[dict[str, Tensor], Tensor]:
        """Return the numbers of the tokens of all rows, one after the other, by name, and where each row begins.

        Args:
            encode: Takes columns of texts, and the number of the first row.
        """
        pieces, sizes = dict[str, list[Tensor]](), list[int]()
        for batch in self.table.iter(_AT_ONCE):
            found = encode([batch[name] for name in self.inputs], len(sizes))
            sizes += map(len, found["input_ids"])
            for name, cells in found.items():
                pieces.setdefault(name, []).append(torch.tensor([*chain.from_iterable(cells)], dtype=torch.int32))
        return {name: torch.cat(own) for name, own in pieces.items()}, torch.tensor([0, *accumulate(sizes)])

    def _label(self, shape: tuple[int, ...], content: Iterable[Any], tags: Any = None, **more: Any) -> None:
        """Read the targets, and find out what they are.

        Args:
            shape: That of an input.
            content: What else makes the data what they are.
            tags: Classes of all tokens, and their names, where these are the targets.
            **more: Further facts about them.
        """
        cells, names = self.table[self.target][:], tuple[str, ...]()
        if None in cells:
            raise self.fault(cells.index(None), "there is no target", argument="target")
        if isinstance(cells[0], float):
            kind, self.targets = "regression", torch.tensor(cells)
        else:
            kind = "tagging" if tags else "multiclass"
            self.targets, names = tags or _numbered(cells, self.table.features[self.target])
        mark = fingerprint([*content, self.targets, names])
        self.info = DataInfo(kind, shape, len(names) or 1, names, fingerprint=mark, more=more)


def _numbered(cells: Sequence[Any], feature: Any) -> tuple[Tensor, tuple[str, ...]]:
    """Return the number of the class of each cell, and the names of the classes."""
    if getattr(feature, "names", None):
        return torch.tensor(cells), tuple(feature.names)
    known = sorted({*cells} - {IGNORED})
    places = {IGNORED: IGNORED, **{cell: place for place, cell in enumerate(known)}}
    return torch.tensor([places[cell] for cell in cells]), tuple(map(str, known))


class TextRows(Rows):
    """Texts with a target each, or lists of words with a class for each, which is that of its first token.

    Args:
        *where: See `Rows`.
        reader: Makes tokens of texts.

    Raises:
        UserError: A row has no text or no target, or not as many classes as words.
    """

    def __init__(self, *where: Any, reader: TextReader) -> None:
        super().__init__(*where)
        self.reader = reader = replace(reader, tags=hasattr(self.table.features[self.target], "feature"))
        self.collate_fn = reader.collate_fn
        self._tokens, self._starts = self._tokenized(self._encode)
        self.lengths = self._starts.diff()
        facts: dict[str, Any] = {"num_tokens": len(reader.loaded), "pad_token_id": reader.pad_token_id}
        content = [*self._tokens.values(), self._starts]
        tags = self._tags(self._tokens.pop("words")) if reader.tags else None
        facts |= {"objective": KINDS[tags is not None], "longest": int(self.lengths.max())}
        self._label((), content, tags, **facts)
        self.info = replace(self.info, decode=reader.loaded.decode)

    def _tags(self, words: Tensor) -> tuple[Tensor, tuple[str, ...]]:
        """Return the class of each token, and the names of the classes; tokens that begin no word have none."""
        cells, texts = self.table[self.target][:], self.table[self.inputs[0]][:]
        feature = self.table.features[self.target].feature
        named = getattr(feature, "names", None)
        known = {IGNORED, *(range(len(named)) if named else chain.from_iterable(filter(None, cells)))} - {None}
        for row, (own, words_in) in enumerate(zip(cells, map(words_of, texts))):
            if len(own or ()) != len(words_in) or not known.issuperset(own):
                raise self.fault(row, "not one class for each word of a list of words", argument="target")
        flat, names = _numbered([*chain.from_iterable(cells)], feature)
        first = torch.tensor([0, *accumulate(map(len, cells))][:-1]).repeat_interleave(self.lengths)
        return torch.where(words < 0, IGNORED, flat[first + words.clamp(0)]), names

    def _encode(self, columns: list[Any], first: int) -> Mapping[str, Any]:
        if wrong := without_text(columns):
            raise self.fault(first + wrong[0], "there is no text", argument="text")
        return self.reader.encode(columns)

    def __getitem__(self, row: int) -> tuple[dict[str, Tensor], Tensor]:
        part = slice(int(self._starts[row]), int(self._starts[row + 1]))
        target = self.targets[part] if self.info.task == "tagging" else self.targets[row]
        return {name: values[part].long() for name, values in self._tokens.items()}, target


class TokenRows(Rows):
    """Tokens for language models: all texts of a split one after the other, cut into samples of one length.

    The target of a token is the one after it. With `masked` it is the token itself where that is to be guessed, and
    nothing elsewhere: 80 % of these are hidden, 10 % are replaced by any token and 10 % stay as they are (Devlin et al.
    2018, https://arxiv.org/abs/1810.04805), as is drawn for each sample of each epoch.

    Args:
        *where: See `Rows`.
        reader: Makes tokens of texts.
        masked: Share of the tokens that are to be guessed; None for the next token.

    Raises:
        UserError: A split is shorter than one sample, or the tokenizer has no token that hides others.
    """

    def __init__(self, *where: Any, reader: TextReader, masked: float | None) -> None:
        check_range("masked", masked, above=0, below=1)
        super().__init__(*where)
        self._known, self.masked, self.draws = reader.loaded, masked, masked is not None
        facts = {"tokenizer": self._known, "mlm_probability": masked}
        if masked is not None:
            hide = partial(load_by, "transformers", lambda hub: hub.DataCollatorForLanguageModeling(**facts))
            self._hider = hide("tokenizer", reader.tokenizer)
        found, ends = self._tokenized(self._encode)
        self._tokens = found["input_ids"]
        self._size = size = reader.max_length or min(self._known.model_max_length, _LONGEST)
        need, starts = size + (masked is None), dict[str, Tensor]()
        for split, own in self.parts.items():
            first, last = int(ends[own.start]), int(ends[own.stop])
            if last - first < need:
                what, most = f"the {split} split is shorter than one sample", f"at most {last - first - need + size}"
                raise UserError(what, argument="max_length", received=size, expected=most)
            starts[split] = torch.arange(first, last - need + 1, size)
        self._starts = torch.cat([*starts.values()])
        cut = torch.arange(len(self)).split([*map(len, starts.values())])
        self.splits = dict(zip(starts, cut)) if self.splits else {}
        mark, count = fingerprint([self._tokens, self._starts, size, masked]), len(self._known)
        more = {"objective": KINDS[2 if masked is None else 3], "num_tokens": count, "longest": size}
        sizes = (size,), count, (), count, size, mark
        self.info = DataInfo("language_modeling", *sizes, decode=self._known.decode, more=more)

    def _encode(self, columns: list[Any], _first: int) -> Mapping[str, Any]:
        """Turn texts into tokens, each text with the token that ends it."""
        texts, known = [" ".join(filter(None, cells)) for cells in zip(*columns)], self._known
        end = [token for token in (known.eos_token_id, known.sep_token_id) if token is not None][:1]
        found = known(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return {"input_ids": [own + end if own else own for own in found]}

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        start = int(self._starts[row])
        tokens = self._tokens[start : start + self._size + (self.masked is None)].long()
        if self.masked is None:
            return tokens[:-1], tokens[1:]
        seen, target = self._hider.torch_mask_tokens(tokens[None])
        return seen[0], target[0]


class ImageRows(Rows):
    """Images with a target each, decoded when they are asked for.

    Args:
        *where: See `Rows`.
        reader: Says how they are scaled.
    """

    argument = "image"

    def __init__(self, *where: Any, reader: ImageReader) -> None:
        check_image_size(reader.size, reader.channels)
        super().__init__(*where)
        self.reader = reader
        shape = (reader.channels, reader.size, reader.size)
        self._label(shape, [shape, *self.pinned.values()])

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        image = self.table[row][self.inputs[0]]
        return image_to_tensor(image, size=self.reader.size, channels=self.reader.channels), self.targets[row]
