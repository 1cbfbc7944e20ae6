"""Predictions of an ensemble's members with the rows they are of: what `oof.safetensors` holds.

N rows, C outputs (classes, labels or regression targets; 1 for `binary`).
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightkit.checkpoint.formats import read_tensors
from lightkit.checkpoint.reading import reason
from lightkit.common.errors import UserError, writing_to
from lightkit.processes.files import write_whole

SPLITS = ("train", "val", "test")
"""The splits by their number."""
KINDS = ("oof", "holdout", "val", "test")
"""Names that values go by, by the number of what rows they are of."""
TASKS = ("multiclass", "binary", "multilabel", "regression")
"""Kinds of target that an ensemble can predict."""
_FORMAT, _VERSION = "lightkit.oof", 1
_PARTS: dict[str, tuple[torch.dtype, int] | None] = {
    "rows": (torch.int64, 1),
    "split": (torch.uint8, 1),
    "counts": (torch.int64, 1),
    "predictions": (torch.float32, 2),
    "targets": None,
}
"""The tensors of a file, with type and number of dimensions where these are fixed."""


@dataclass(frozen=True, eq=False)
class MemberPredictions:
    """What a network, or several, predicted of rows that it did not train on.

    Args:
        rows: `(N,)` int64: rows of the data set, each once.
        split: `(N,)` uint8: the split of each row, as a number of `SPLITS`.
        counts: `(N,)` int64: how often each row was predicted by something that did not train on it.
        predictions: `(N, C)` float32: probabilities, of regression the values; NaN where the count is 0.
        targets: `(N, ...)`: what is to be predicted.
        task: One of `TASKS`.
        data: Fingerprint of the data set.
        classes: Names of the classes or labels, in order of their numbers.
        source: What error messages call it, such as its file.

    Raises:
        ValueError: The parts do not fit together.
    """

    rows: Tensor
    split: Tensor
    counts: Tensor
    predictions: Tensor
    targets: Tensor
    task: str
    data: str = ""
    classes: tuple[str, ...] = ()
    source: str = field(default="predictions", compare=False)

    def __post_init__(self) -> None:
        for name, layout in _PARTS.items():
            tensor = getattr(self, name)
            if layout not in (None, (tensor.dtype, tensor.ndim)) or tensor.shape[:1] != (len(self.rows),):
                told = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
                raise ValueError(f"`{name}` cannot be {told}, for {len(self.rows)} rows")
        if self.task not in TASKS:
            raise ValueError(f"the task is {self.task!r}, none of {', '.join(TASKS)}")
        if len(self.rows.unique()) != len(self.rows):
            raise ValueError("a row is there twice")
        if (self.split >= len(SPLITS)).any() or (self.counts < 0).any() or (self.rows < 0).any():
            raise ValueError("a row, a count or the number of a split is out of range")
        if not torch.equal(self.predictions.isnan().any(1), self.counts == 0):
            raise ValueError("NaN stands elsewhere than in the rows that were never predicted")

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def predicted(self) -> Tensor:
        """Tell for each row whether there is a prediction, `(N,)` bool."""
        return self.counts > 0

    def take(self, chosen: Tensor) -> MemberPredictions:
        """Return some of the rows.

        Args:
            chosen: `(N,)` bool, or the places of the rows in their new order.
        """
        if chosen.dtype == torch.bool:
            if chosen.all():
                return self
            chosen = chosen.nonzero()[:, 0]
        taken = copy.copy(self)  # parts of what fits together do so, too
        taken.__dict__.update({name: getattr(self, name).index_select(0, chosen) for name in _PARTS})
        return taken

    def of_split(self, *names: str) -> MemberPredictions:
        """Return the rows of one or several splits, by their names in `SPLITS`."""
        numbers = torch.tensor([SPLITS.index(name) for name in names], dtype=torch.uint8)
        return self.take(torch.isin(self.split, numbers))

    def by_rows(self, apart: Tensor | None = None) -> dict[str, MemberPredictions]:
        """Return the parts that are predicted, by the names that values go by: `oof`, `holdout`, `val`, `test`.

        Args:
            apart: Training rows that decide whether a stack is used, `holdout`.
        """
        kinds = self.kinds(apart)
        there = kinds[self.predicted].bincount(minlength=len(KINDS)).tolist()
        return {name: self.take(kinds == number) for number, name in enumerate(KINDS) if there[number]}

    def kinds(self, apart: Tensor | None = None) -> Tensor:
        """Tell by which of `KINDS` values on each row go, `(N,)` uint8; see `by_rows`."""
        kinds = torch.where(self.split > 0, self.split + 1, 0)
        return kinds + ((kinds == 0) & torch.isin(self.rows, apart)) if apart is not None and len(apart) else kinds

    def write(self, path: Path) -> None:
        """Write the file, ordered by split and row, as a whole or not at all.

        Raises:
            UserError: It cannot be written; one of that name is as it was.
        """
        write_all([self], [path], forced=True)

    @staticmethod
    def read(path: Path) -> MemberPredictions:
        """Read a file that `write` has written.

        Raises:
            UserError: It is missing, damaged, or no such file.
        """
        tensors, facts = _open(path)
        if facts.get("format") != _FORMAT:
            raise _refused(path, "the file holds no predictions of a member")
        if facts.get("version") != str(_VERSION):
            raise _refused(path, f"the file is of version {facts.get('version')}, which this version cannot read")
        try:
            return MemberPredictions(
                **{name: tensors[name] for name in _PARTS},
                task=facts["task"],
                data=facts["data"],
                classes=tuple(json.loads(facts["classes"])),
                source=str(path),
            )
        except (KeyError, TypeError, ValueError) as error:
            told = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise _refused(path, f"the file is damaged: {told}") from error


def write_all(members: Sequence[MemberPredictions], paths: Sequence[Path], *, forced: bool = False) -> None:
    """Write the file of each member; what those of the same rows have alike is made once. See `write`."""
    from safetensors.torch import save

    facts = {(own.task, own.data, own.classes) for own in members}
    alike = len(facts) == 1 and _is_aligned(members) and all(own.counts.equal(members[0].counts) for own in members)
    content, begin, end = b"", 0, 0
    for own, path in zip(members, paths):
        if content and alike:
            content = content[:begin] + own.predictions.detach().cpu().numpy().tobytes() + content[end:]
        else:
            order = in_order(own.rows, own.split)
            tensors = {name: getattr(own, name)[order].detach().cpu().contiguous() for name in _PARTS}
            said = {"task": own.task, "data": own.data, "classes": json.dumps(own.classes)}
            content = save(tensors, {"format": _FORMAT, "version": str(_VERSION), **said})
            size = 8 + int.from_bytes(content[:8], "little")
            begin, end = (size + place for place in json.loads(content[8:size])["predictions"]["data_offsets"])
        with writing_to(path, "cannot be written"):
            write_whole(path, content, scratch=f".{path.name}.unfinished", forced=forced)


def aligned(members: Sequence[MemberPredictions]) -> list[MemberPredictions]:
    """Bring members to the same rows: all that any of them has, ordered by split and row.

    A row that a member lacks has the count 0 and NaN there.

    Raises:
        UserError: There is no member, or they are of other data, another task, other classes or other splits.
    """
    if not members:
        raise UserError("there are no members", argument="members")
    for member in members[1:]:
        check_alike(members[0], member)
    if _is_aligned(members):
        return list(members)
    rows = torch.cat([member.rows for member in members]).unique()
    places = [torch.searchsorted(rows, member.rows) for member in members]
    split, targets = rows.new_zeros(len(rows), dtype=torch.uint8), _empty(members[0].targets, len(rows))
    owner = torch.full_like(rows, -1)
    for number, (member, at) in enumerate(zip(members, places)):
        _check_rows(member, members, owner[at], split[at], targets[at])
        split[at], targets[at], owner[at] = member.split, member.targets, number
    order = in_order(rows, split)
    spread = []
    for member, at in zip(members, places):
        counts, predictions = torch.zeros_like(rows), _empty(member.predictions, len(rows)).fill_(float("nan"))
        counts[at], predictions[at] = member.counts, member.predictions
        own = {"rows": rows, "split": split, "targets": targets, "counts": counts, "predictions": predictions}
        spread.append(dataclasses.replace(member, **{name: tensor[order] for name, tensor in own.items()}))
    return spread


def pooled(members: Sequence[MemberPredictions]) -> MemberPredictions:
    """Average predictions of each row, weighted by how often it was predicted; the counts add up.

    So folds and repeats become the predictions of one member, and members those of their parent. Pooling what was
    pooled before gives the same as pooling all at once.

    Raises:
        UserError: There is no member, or they do not belong together.
    """
    together = aligned(members)
    counts = torch.stack([member.counts for member in together]).sum(0)
    total = torch.zeros(together[0].predictions.shape, dtype=torch.float64)
    for member in together:
        total += member.predictions.double().nan_to_num(0.0) * member.counts[:, None]
    return dataclasses.replace(together[0], counts=counts, predictions=(total / counts[:, None]).float())


def stacked(members: Sequence[MemberPredictions]) -> Tensor:
    """Stack the predictions of members over the same rows, `(M, N, C)`; see `aligned`."""
    return torch.stack([member.predictions for member in members])


def _open(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors import SafetensorError

    try:
        with path.open("rb") as file:
            head = file.read(9)
        return read_tensors(path)
    except SafetensorError as error:
        looks_so = head[4:] == b"\0\0\0\0{"  # the size of the header, and its first byte
        what = f"the file is damaged: {reason(error)}" if looks_so else "the file holds no predictions of a member"
        raise _refused(path, what) from error
    except OSError as error:
        raise _refused(path, f"the predictions cannot be read: {reason(error)}") from error


def _refused(path: Path, what: str) -> UserError:
    fix = "train this member again, or leave it out"
    return UserError(what, key=str(path), fix=fix, family="file")


def in_order(rows: Tensor, split: Tensor) -> Tensor:
    """Return the places of rows in the order of a file: by split, then by row."""
    by_row = rows.argsort(stable=True)
    return by_row[split[by_row].argsort(stable=True)]


def _is_aligned(members: Sequence[MemberPredictions]) -> bool:
    """Tell whether members have the same rows in the right order already, as those of a vote have."""
    first = members[0]
    ordered = torch.equal(in_order(first.rows, first.split), torch.arange(len(first)))
    return ordered and all(
        torch.equal(getattr(first, name), getattr(member, name))
        for member in members[1:]
        for name in ("rows", "split", "targets")
    )


def _empty(like: Tensor, count: int) -> Tensor:
    return like.new_zeros(count, *like.shape[1:])


def check_alike(first: MemberPredictions, other: MemberPredictions) -> None:
    """Refuse a member that predicts something else than the first one does.

    Raises:
        UserError: It is of other data, for another task, or has other classes or outputs.
    """
    facts = (
        ("the members are of different data", first.data, other.data),
        ("the members are for different tasks", first.task, other.task),
        ("the members have other classes, or in another order", first.classes, other.classes),
        ("the members have different numbers of outputs", first.predictions.shape[1], other.predictions.shape[1]),
        ("the members have targets of different shapes", first.targets.shape[1:], other.targets.shape[1:]),
    )
    for what, expected, received in facts:
        if expected != received:
            shown = ", ".join(map(str, expected)) if isinstance(expected, tuple) else expected
            told = ", ".join(map(str, received)) if isinstance(received, tuple) else received
            raise UserError(what, key=other.source, expected=f"{shown}, as in {first.source}", received=told)


def _check_rows(
    member: MemberPredictions, members: Sequence[MemberPredictions], owner: Tensor, split: Tensor, targets: Tensor
) -> None:
    """Refuse a member of whose rows one is in another split, or has another target, than with the members before."""
    same = (member.targets == targets) | (member.targets.isnan() & targets.isnan())
    for what, differs in (
        ("is in another split", member.split != split),
        ("has another target", ~same.flatten(1).all(1) if same.ndim > 1 else ~same),
    ):
        wrong = ((owner >= 0) & differs).nonzero().reshape(-1)
        if len(wrong):
            row, before = int(member.rows[wrong[0]]), members[int(owner[wrong[0]])].source
            more = f", and so {len(wrong) - 1} more" if len(wrong) > 1 else ""
            fix = "combine members whose rows were split alike (data.split, data.split.seed)"
            raise UserError(f"row {row} {what} than in {before}{more}", key=member.source, fix=fix)
