"""Data sets that live in memory and hand out whole batches by row number."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.data.impute import Imputer
from lightkit.data.padding import IGNORED
from lightkit.data.placed import PLACED, is_dense
from lightkit.data.targets import AS_IT_IS, TargetTransform, count_classes


@runtime_checkable
class Taker(Protocol):
    """A data set that makes a batch from row numbers in one go, without a loop over samples.

    `exact` says that a row comes out with the same bits whatever other rows are asked for; the loader then gathers
    several batches at a time.
    """

    info: DataInfo
    exact: bool

    def __len__(self) -> int: ...

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of `rows`, `(B,)` int64."""
        ...


class TensorData:
    """Inputs and targets as two tensors.

    Inputs of type uint8 are taken for images with levels 0 to 255 and come out as float32 in [0, 1].

    Args:
        x: Inputs `(N, ...)`.
        y: Targets: `(N,)` int64 classes, `(N, L)` float labels 0/1, `(N,)` float for `binary`, `(N,)` or `(N, K)`
            float.
        info: What the data is; `fingerprint` is filled in. None finds out from `x` and `y`.
        splits: Rows of the splits the data set brings with it, by name; see `lightkit.data.row_sets.split_sets`.
        strata: `(N,)` int64 groups whose shares a stratified split keeps; None takes the classes.
        name: How messages call the data set.
        imputer: Fills in missing inputs, which are NaN until the training rows are known (`build_data`).
        notes: Lines for people about what became of the data.
        feature_names: Names of the features of a table, in order; empty where they are not known.
        groups: The group of each row, numbers or names: rows of a group, such as those of a patient, stay together in
            splits and folds. None where there are none.
        times: The time of each row, for splits by time; None where it is not known.
        weights: How much each row counts; None counts all the same.
        reader: Says how new inputs are read from files, see `lightkit.data.reader.Reader`; None for arrays alone.

    Raises:
        UserError: Lengths differ, a value is NaN or infinite, or a label is out of range; the row is named.
    """

    exact = True
    groups: Any
    times: Any
    weights: Any

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        info: DataInfo | None = None,
        *,
        splits: Mapping[str, Any] | None = None,
        strata: Tensor | None = None,
        name: str = "data set",
        imputer: Imputer | None = None,
        notes: Sequence[str] = (),
        feature_names: Sequence[str] = (),
        groups: Any = None,
        times: Any = None,
        weights: Any = None,
        reader: Any = None,
    ) -> None:
        check_lengths(x, y, name=name)
        info = info or infer_info(x, y)
        if imputer is None:
            check_inputs(x, info, name=name)
        self.imputer, self.notes, self.feature_names = imputer, tuple(notes), tuple(feature_names)
        for kind, values in {"groups": groups, "times": times, "weights": weights}.items():
            if values is not None or not hasattr(self, kind):  # a subclass may have some of its own
                setattr(self, kind, values)
        self.reader = reader
        self.row_names: Sequence[str] | None = None
        self.row_column = ""
        self.column_readers: Mapping[str, Callable[[], Any]] = {}
        check_targets(y, info, name=name)
        y = y if y.is_floating_point() else y.to(torch.int64)
        self.x, self.y, self.splits = x, y, {} if splits is None else splits
        self.strata = strata if strata is not None or info.task != "multiclass" else y
        mark = info.fingerprint or fingerprint([x, y, info.task])
        self.info = dataclasses.replace(info, fingerprint=mark)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        x, y = self.take(torch.tensor([row]))
        return x[0], y[0]

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs `(B, ...)` and targets of `rows`, `(B,)` int64."""
        x = gathered(self.x, rows)
        if x.dtype == torch.uint8:
            x = x.to(torch.float32).div_(255.0)
        return x, gathered(self.y, rows)

    def with_inputs(self, x: Tensor, *, notes: Sequence[str] = (), added: Sequence[str] = ()) -> TensorData:
        """Return these rows with other inputs, none missing, such as scaled ones; the fingerprint stays.

        Args:
            x: Inputs `(N, ...)`.
            notes: Further lines for people.
            added: Names of features that come after the others.
        """
        changed = copy.copy(self)
        changed.x, changed.imputer, changed.notes = x, None, (*self.notes, *notes)
        if self.feature_names:
            changed.feature_names = (*self.feature_names, *added)
        changed.info = dataclasses.replace(self.info, input_shape=tuple(x.shape[1:]))
        return changed

    def with_targets(self, transform: TargetTransform) -> TensorData:
        """Return these rows with targets that are changed in a way that was fitted; the fingerprint stays."""
        changed = copy.copy(self)
        changed.y, changed.info = transform(self.y), dataclasses.replace(self.info, transform=transform)
        return changed


_PAGE_LOCKED: ContextVar[bool] = ContextVar("page-locked", default=False)


@contextmanager
def page_locked(on: bool) -> Iterator[None]:
    """Let `gathered` take page-locked memory inside, from which a GPU fetches while it computes."""
    token = _PAGE_LOCKED.set(on)
    try:
        yield
    finally:
        _PAGE_LOCKED.reset(token)


def gathered(tensor: Tensor, rows: Tensor) -> Tensor:
    """Gather rows of a tensor `(N, ...)`, straight into memory as it is wanted (see `page_locked`)."""
    if not _PAGE_LOCKED.get():
        return tensor.index_select(0, rows)
    return torch.index_select(tensor, 0, rows, out=tensor.new_empty((len(rows), *tensor.shape[1:]), pin_memory=True))


def infer_info(x: Tensor, y: Tensor) -> DataInfo:
    """Find out kind and sizes: whole-number targets are classes, others are regression targets."""
    if y.is_floating_point():
        return DataInfo("regression", tuple(x.shape[1:]), math.prod(y.shape[1:]))
    count = count_classes(y) if len(y) else 0
    task = "segmentation" if is_dense(x.shape[1:], y.shape[1:]) else "multiclass"
    return DataInfo(task, tuple(x.shape[1:]), count, tuple(map(str, range(count))))


def check_classes(info: DataInfo) -> None:
    """Refuse classification with a single class: there is nothing to tell apart, and most metrics fail on it."""
    if info.task == "multiclass" and info.num_classes < 2:
        what, fix = "there is one class only", "choose another target, or state the number of classes"
        received = list(info.class_names) or info.num_classes
        raise UserError(what, argument="", expected="2 classes or more", received=received, fix=fix)


def check_lengths(x: Tensor, y: Tensor, *, name: str) -> None:
    """Refuse inputs and targets of different numbers, and none at all."""
    if len(x) != len(y):
        what, expected = f"{name}: inputs and targets differ in number", f"{len(x)} targets"
        raise UserError(what, argument="", expected=expected, received=len(y))
    if not len(x):
        raise UserError(f"{name}: there are no rows", argument="")


def check_inputs(x: Tensor, info: DataInfo, *, name: str, named: Callable[[int], Any] = int) -> None:
    """Refuse NaN and infinity, and tokens beyond the vocabulary, naming the first row (by what `named` makes of it)."""
    if x.is_floating_point():
        _check_finite(x, what="inputs", name=name, named=named)
    elif info.vocab_size is not None:
        _check_numbers(x, info.vocab_size, f"{name}: the token", named)


def check_targets(y: Tensor, info: DataInfo, *, name: str, named: Callable[[int], Any] = int) -> None:
    """Refuse targets that do not fit the task, naming the first row."""
    if y.is_floating_point():
        _check_finite(y, what="targets", name=name, named=named)
    if info.task in ("multiclass", "segmentation"):
        if y.is_floating_point() or (y.dim() != 1 and info.task == "multiclass"):
            what, received = f"{name}: classes are whole numbers, one a row", f"{y.dtype} {tuple(y.shape)}"
            if (odd := y != y.round()).any():
                received = f"{y[odd].flatten()[0].item()} in row {named(_first_row(odd))}"
            raise UserError(what, argument="", expected="int64 (N,)", received=received)
        fix = "number the classes from 0 without gaps, or state the number of classes"
        fix += "; ignore_index says which pixels count for nothing" * (info.task == "segmentation")
        _check_numbers(y, info.num_classes, f"{name}: the label", named, but=info.ignore_index, fix=fix)
    elif count := {"tagging": info.num_classes, "language_modeling": info.vocab_size}.get(info.task):
        _check_numbers(y, count, f"{name}: the target", named, but=IGNORED)
    elif info.task in ("binary", "multilabel"):
        wrong = (y != 0) & (y != 1)
        if wrong.any():
            row = _first_row(wrong)
            what = f"{name}: row {named(row)} has a label other than 0 and 1"
            raise UserError(what, argument="", expected="0 or 1", received=y[row].tolist())


def _check_finite(values: Tensor, *, what: str, name: str, named: Callable[[int], Any]) -> None:
    # A sum is finite unless a value is not (or it overflows), and needs no mask of the size of the data. Nor shall it
    # need a copy: that is what another type makes of it.
    if torch.isfinite(values.sum()):
        return
    wrong = ~torch.isfinite(values)
    if wrong.any():
        row = _first_row(wrong)
        found = values[row][wrong[row]].reshape(-1)[0].item()
        place = "" if values.dim() == 1 else f", element {tuple(wrong[row].nonzero()[0].tolist())}"
        what = f"{name}: row {named(row)} of the {what} holds {found}{place}"
        fix = f"fill or drop such rows first ({int(wrong.reshape(len(wrong), -1).any(1).sum())} in all)"
        raise UserError(what, argument="", expected="finite numbers", fix=fix)


def _check_numbers(
    y: Tensor, count: int, what: str, named: Callable[[int], Any], *, but: int | None = None, fix: str | None = None
) -> None:
    wrong = ((y < 0) | (y >= count)) & (True if but is None else y != but)  # a comparison with None takes long
    if wrong.any():
        row = _first_row(wrong)
        what, found = f"{what} of row {named(row)} is out of range", int(y[row][wrong[row]].flatten()[0])
        raise UserError(what, argument="", expected=f"0 to {count - 1}", received=found, fix=fix)


def _first_row(wrong: Tensor) -> int:
    return int(wrong.reshape(len(wrong), -1).any(1).nonzero()[0])


TASKS = ("multiclass", "binary", "multilabel", "regression", "language_modeling", "tagging", *PLACED, "custom")
"""Kinds of target. `tagging`: a class for each token. `segmentation`: a class for each pixel. `detection`: mappings
with `boxes` and `labels`, the class 0 being the background. `custom`: samples that are not (input, target) pairs; a
task class of the user's knows them."""


@dataclass(frozen=True)
class DataInfo:
    """Facts about a data set that other parts are sized by.

    Args:
        task: One of `TASKS`.
        input_shape: Shape of one input without the batch dimension.
        num_classes: Size of the output layer: classes, labels, regression targets; 1 for `binary`.
        class_names: Names of the classes or labels, in order of their numbers; empty where there are none.
        vocab_size: Number of tokens, for language modelling.
        context_length: Tokens of one sample, for language modelling.
        fingerprint: blake2b of the content or of what identifies it; changes when the data changes.
        vocabulary: The tokens in order of their numbers, for language modelling; empty where they are not known.
        target_scale: What regression targets were divided by; predictions are written in the unit from before.
        transform: What is learnt of regression targets, see `TargetTransform`; metrics and predictions undo it.
        cardinalities: For each feature of a table whose values are numbers of names, how many there are; 0 for others.
        class_shares: Which share of the training rows is of each class, or has each label; empty where not known.
        weighted: Whether batches hold the weight of each sample, too.
        learnt_by: Path of the `Task` that its batches are made for, in place of that of plain pairs; empty for those.
        decode: Makes a text of token numbers; None where the data set has no such method.
        more: Further facts, in plain values, for models that take an argument `info`.
        ignore_index: Label of pixels that count for nothing; None where there are none.
        padding_idx: Token that fills up the shorter samples of a batch; None where there is none.
    """

    task: str
    input_shape: tuple[int, ...]
    num_classes: int
    class_names: tuple[str, ...] = ()
    vocab_size: int | None = None
    context_length: int | None = None
    fingerprint: str = ""
    vocabulary: tuple[str, ...] = ()
    target_scale: float = 1.0
    transform: TargetTransform = AS_IT_IS
    cardinalities: tuple[int, ...] = ()
    class_shares: tuple[float, ...] = field(default=(), compare=False)
    weighted: bool = field(default=False, compare=False)
    learnt_by: str = field(default="", compare=False)
    decode: Callable[[list[int]], str] | None = field(default=None, repr=False, compare=False)
    more: Mapping[str, Any] = field(default_factory=dict)
    ignore_index: int | None = None
    padding_idx: int | None = None

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise UserError("not a kind of task", argument="", received=self.task, choices=TASKS)
        if self.task == "detection" and not self.learnt_by:
            object.__setattr__(self, "learnt_by", "lightkit.trainer.Detection")

    def undo(self, values: Tensor) -> Tensor:
        """Return what is learnt in the unit of the data set's targets: without the transform."""
        return self.transform.undo(values) if self.task == "regression" else values

    def in_unit(self, values: Tensor) -> Tensor:
        """Return learnt values in the unit from before, to the seven digits of single precision: 35 is 35 again."""
        if self.task != "regression" or (self.target_scale == 1 and self.transform.kind == "none"):
            return values
        wide = self.undo(values.double()) * self.target_scale
        places = 10 ** (6 - wide.abs().clamp_min(1e-30).log10().floor())
        return torch.where(wide.isfinite(), (wide * places).round() / places, wide)

    def sizes(self) -> dict[str, Any]:
        """Return the arguments that models, losses and metrics may take from the data, those that apply here."""
        found: dict[str, Any] = {"task": self.task}
        if self.num_classes:
            found |= {"num_classes": self.num_classes, "num_labels": self.num_classes}
        if self.input_shape:
            found["input_shape"] = self.input_shape
        if self.input_shape and self.vocab_size is None:
            found |= {"in_channels": self.input_shape[0], "in_features": math.prod(self.input_shape)}
        found |= {"cardinalities": self.cardinalities} if self.cardinalities else {}
        optional = {
            name: getattr(self, name) for name in ("vocab_size", "context_length", "ignore_index", "padding_idx")
        }
        return found | {name: value for name, value in optional.items() if value is not None}


def fingerprint(parts: Iterable[object]) -> str:
    """Hash tensors (their bytes) and anything else (its text) by blake2b, to 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, torch.Tensor):
            digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
            plain = part.detach().cpu().resolve_conj().resolve_neg().contiguous()
            flat = plain.as_strided((plain.numel(),), (1,))  # one number may have any stride
            digest.update(flat.view(torch.uint8).numpy().data)
        else:
            digest.update(f"{part!r}\x1f".encode())
    return digest.hexdigest()
