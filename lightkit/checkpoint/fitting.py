"""Putting given weights into a model: all that fits or nothing, and a report of what went where."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from lightkit.checkpoint.compare import format_text, listed, shape_text
from lightkit.checkpoint.names import nearest_names, shared_prefix, unwrapped
from lightkit.common.errors import UserError
from lightkit.common.modules import HEADS, inside
from lightkit.common.text import counted

STRICT = ("exact", "complete", "matching")
HEAD = ("keep", "reset", "refuse")
_OPTIONAL = "num_batches_tracked"
"""A counter of batch norm that old files and converted ones lack, and that no result depends on."""
_PARAMETRIZED = re.compile(r"parametrizations\.([^.]+)\.[^.]+$")
_ROLE = re.compile(r"weight|bias")


@dataclass(frozen=True)
class LoadReport:
    """What loading weights did, or would have done where it was refused."""

    source: str
    """The file, and where in it the weights are."""
    loaded: tuple[str, ...] = ()
    """Names in the model that took the value of the file."""
    missing: tuple[str, ...] = ()
    """Names in the model that the file has no tensor for."""
    unexpected: tuple[str, ...] = ()
    """Names in the file that the model has no place for."""
    reshaped: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Names in both with another shape (or whole numbers for fractions): that of the model, that of the file."""
    left: tuple[str, ...] = ()
    """Names that keep the values the model was built with: of the head, or of a layer in which one does not fit."""
    reasons: dict[str, str] = field(default_factory=dict)
    """For some of these, why what the file has of that name was not taken."""
    nearest: dict[str, str] = field(default_factory=dict)
    """For a missing name, the unexpected one most like it."""
    prefix: str = ""
    """What was done to a prefix that all names of the file or the model share."""
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict, repr=False)
    """Shapes of the missing and unexpected tensors."""

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return column heads and rows: one line for all that was loaded, one for each other tensor."""
        rows = [["loaded", counted(len(self.loaded), "tensor"), "", self.prefix]]
        nearest = {name: f"nearest in the file: {other}" for name, other in self.nearest.items()}
        rows += [["missing", name, shape_text(self.shapes[name]), nearest.get(name, "")] for name in self.missing]
        rows += [["unexpected", name, shape_text(self.shapes[name]), ""] for name in self.unexpected]
        rows += [
            ["reshaped", name, here, f"in the file: {there}{_turned(here, there)}"]
            for name, (here, there) in self.reshaped.items()
        ]
        kept = "keeps the values the model was built with"
        rows += [["left", name, "", "; ".join(filter(None, [self.reasons.get(name), kept]))] for name in self.left]
        return ["what", "tensor", "shape", "note"], rows

    def summary(self) -> str:
        """Return one line: `60 loaded, 2 missing`."""
        groups = ("loaded", "missing", "unexpected", "reshaped", "left")
        counts = [(len(getattr(self, name)), name) for name in groups]
        return ", ".join(f"{count} {name}" for count, name in counts if count or name == "loaded")

    def text(self, limit: int = 20) -> str:
        """Return the table as indented lines, at most `limit` of them."""
        rows = self.table()[1][1:]
        return listed(["  ".join([f"{row[0]:<10}", *filter(None, row[1:])]) for row in rows], limit)[1:]


def fit(
    model: nn.Module,
    state: Mapping[str, torch.Tensor],
    *,
    source: str,
    strict: str = "exact",
    head: str = "refuse",
    head_name: str | Sequence[str] | None = None,
    asked: str | None = None,
    finite: bool = False,
) -> LoadReport:
    """Copy tensors into a model by name. What is refused changes nothing.

    The tensors of a layer belong together: one in which a tensor has another shape, or whose matrix the file lacks,
    keeps all the values it was built with.

    Args:
        model: The model, wrapped or not; its tensors are changed in place, on their device and in their precision.
        state: Tensors by name.
        source: Where they come from, for messages.
        strict: `exact`: the names are the same on both sides; `complete`: the model finds all of its own; `matching`:
            whatever fits.
        head: What becomes of the last layer. `keep` takes what fits and leaves the rest as the model was built, `reset`
            leaves all of it so, `refuse` refuses a last layer that does not fit.
        head_name: Name of the last layer's module, or of the parameter that is one, or several; None goes by the usual
            names, or takes the last module.
        asked: What stands before `strict` and `head` where a user gives them, for the message: `finetune.weights.`;
            None where nobody is asked.
        finite: Refuse NaN and infinities, unless the model was built with them.

    Raises:
        UserError: The weights do not fit, or are not finite; the message lists the names.
    """
    _check_choice("strict", strict, STRICT)
    _check_choice("head", head, HEAD)
    full = {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    here = {own: full[name] for name, own in unwrapped(full).items()}
    there, prefix = _aligned(state, here)
    under = _head_parts(list(here), (head_name,) if isinstance(head_name, str) else head_name or ())
    report = _compared(here, there, LoadReport(source, prefix=prefix), under=under, head=head)
    fits = head != "refuse" or not any(_is_below(name, under) for name in report.reshaped)
    _refuse(report, strict, head=", ".join(under), head_fits=fits, fix=_advice(report, strict, head, asked))
    if finite:
        values = {name: there[name] for name in report.loaded}
        anew = f"{asked}mapping={{NAME: null}} with {asked}strict=matching to start a tensor anew" if asked else None
        check_finite(values, built=here, source=source, fix=anew)
    with torch.no_grad():
        for name in report.loaded:
            here[name].copy_(there[name])
    return report


def _check_choice(argument: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise UserError("no such way to load weights", argument=argument, received=value, choices=choices)


def _aligned(
    state: Mapping[str, torch.Tensor], here: Mapping[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], str]:
    """Rename the file's tensors to the model's where the names differ in a prefix only, and say so."""
    off, on = shared_prefix(_shapes(state), _shapes(here))
    there = {on + name[len(off) :] if name.startswith(off) else name: tensor for name, tensor in state.items()}
    done = [f"{off!r} taken off the names in the file"] if off else []
    done += [f"{on!r} put in front of the names in the file"] if on else []
    return (there, ", ".join(done)) if len(there) == len(state) else (dict(state), "")


def _head_parts(names: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Find the modules or tensors that the last layer is."""
    first = {name.split(".")[0] for name in names}
    absent = next((part for part in given if not any(inside(name, part) for name in names)), None)
    if absent is not None:
        what, choices = "the model has no such layer", sorted(first)
        raise UserError(what, argument="head_name", received=absent, choices=choices, family="weights")
    usual = [name for name in HEADS if name in first]
    return tuple(given) or (usual[0] if usual else (names[-1].rpartition(".")[0] or names[-1]) if names else "",)


def _compared(
    here: Mapping[str, torch.Tensor],
    there: Mapping[str, torch.Tensor],
    report: LoadReport,
    *,
    under: Sequence[str],
    head: str,
) -> LoadReport:
    """Compare the two sides; `under` are the modules or tensors that the head is."""
    both = [name for name in here if name in there]
    fits = [name for name in both if _kind(here[name]) == _kind(there[name])]
    reshaped = {name: _differing(here[name], there[name]) for name in both if name not in set(fits)}
    # A tied tensor gets its value by another name.
    filled = {(here[name].data_ptr(), here[name].shape) for name in fits}
    absent = [
        name
        for name, tensor in here.items()
        if name not in there and not name.endswith(_OPTIONAL) and (tensor.data_ptr(), tensor.shape) not in filled
    ]
    # What names of the head a choice other than `refuse` leaves as they were built.
    freed = under if head != "refuse" else ()
    unfit = {*absent, *reshaped, *(fits if head == "reset" else ())}
    torn = (*reshaped, *(name for name in absent if here[name].ndim > 1))
    broken = _torn(here, fits, unfit=torn, alone=under)
    left = tuple(name for name in here if name in broken or (name in unfit and _is_below(name, freed)))
    missing = _without(absent, left)
    unexpected = tuple(name for name in there if name not in here and not _is_below(name, freed))
    mine, theirs = _shapes({name: here[name] for name in missing}), _shapes({name: there[name] for name in unexpected})
    return replace(
        report,
        loaded=_without(fits, left),
        missing=missing,
        unexpected=unexpected,
        left=left,
        shapes={**mine, **theirs},
        reasons=_reasons(left, broken, reshaped),
        reshaped={name: reshaped[name] for name in _without(reshaped, left)},
        nearest=nearest_names(mine, theirs),
    )


def _without(names: Iterable[str], others: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in others)


def _reasons(left: Iterable[str], broken: Mapping[str, str], reshaped: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Say why names are left that the file has a tensor for: for their own sake or for another's in their layer."""
    reasons = {}
    for name in left:
        first = broken.get(name, name)
        if first in reshaped:
            here, there = reshaped[first]
            reasons[name] = f"{first} is {there} in the file, {here} here{_turned(here, there)}"
        elif first != name:
            reasons[name] = f"{first} is not in the file"
    return reasons


def _turned(here: str, there: str) -> str:
    return ": transposed" if here.split("×") == there.split("×")[::-1] else ""


def _is_below(name: str, paths: Iterable[str]) -> bool:
    return any(inside(name, path) for path in paths)


def _advice(report: LoadReport, strict: str, head: str, asked: str | None) -> str | None:
    """Suggest what would let more weights through than was asked for."""
    if asked is None:
        return None
    looser, ways = {"exact": "complete or matching", "complete": "matching"}.get(strict), list[str]()
    if looser and report.loaded:
        ways.append(f"{asked}strict={looser}")
    if head == "refuse" and report.loaded:
        ways.append(f"{asked}head=keep or reset")
    return ", ".join(ways) + (", or " if ways else "") + "a mapping of names" + (f" ({asked}mapping)" if asked else "")


def _refuse(report: LoadReport, strict: str, *, head: str, head_fits: bool, fix: str | None) -> None:
    """Raise unless the report is good enough."""
    names = "the names or shapes differ"
    refusals = {
        "exact": (bool(report.missing or report.unexpected or report.reshaped), names),
        "complete": (bool(report.missing or report.reshaped), "the model does not find all its tensors in the file"),
        "matching": (False, ""),
    }
    refused, why = refusals[strict]
    if not report.loaded:
        refused, why = True, "not one tensor fits"
    elif not head_fits and not refused:
        refused, why = True, f"its last layer has another shape, {head}"
    if refused:
        what = f"the weights were not loaded: {why} ({report.summary()})\n{report.text()}"
        raise UserError(what.rstrip(), key=report.source, fix=fix, family="weights")


def _kind(tensor: torch.Tensor) -> tuple[torch.Size, bool, bool]:
    """Return what two tensors have in common where one can be copied into the other."""
    return tensor.shape, tensor.is_floating_point(), tensor.is_complex()


def _differing(one: torch.Tensor, other: torch.Tensor) -> tuple[str, str]:
    if one.shape != other.shape:
        return shape_text(one.shape), shape_text(other.shape)
    return format_text(one), format_text(other)


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _torn(
    names: Iterable[str], fitting: Iterable[str], *, unfit: Collection[str], alone: Iterable[str]
) -> dict[str, str]:
    """Find tensors that fit, in layers of which another does not.

    Args:
        names: Names of all tensors of the model.
        fitting: Names of those that fit.
        unfit: Names of those that do not.
        alone: Names of those that are layers by themselves.

    Returns:
        Name of each that fits → the first of its layer that does not.
    """
    layers = _layers(names)
    layers |= {name: name for name in alone if name in layers}
    first: dict[str, str] = {}
    for name in unfit:
        first.setdefault(layers[name], name)
    return {name: first[layers[name]] for name in fitting if layers[name] in first}


def _layers(names: Iterable[str]) -> dict[str, str]:
    """Find the layer of each tensor: its module, if that holds no others, or what it has in common with its bias.

    The class token of a transformer and its positions are no layer, `in_proj_weight` and `in_proj_bias` are one.
    """
    plain = {name: _PARAMETRIZED.sub(r"\1", name) for name in names}
    modules = {own.rpartition(".")[0] for own in plain.values()}
    holding: set[str] = set()  # the modules above another one, with the empty path of the network
    for parts in (module.split(".") for module in modules if module):
        holding |= {".".join(parts[:count]) for count in range(len(parts))}
    layers = {}
    for name, own in plain.items():
        module, _, last = own.rpartition(".")
        layers[name] = f"{module}.{_ROLE.sub('', last)}" if module in holding else module
    return layers


def check_finite(
    values: Mapping[str, torch.Tensor], *, built: Mapping[str, torch.Tensor], source: str, fix: str | None = None
) -> None:
    """Refuse NaN and infinities.

    Args:
        values: Tensors by name.
        built: Those of the model as it was built; an infinity that stands there too belongs there, as in a causal mask.
        source: Where the values come from, for the message.
        fix: What else can be done than to take other weights.

    Raises:
        UserError: There are some; the message names the tensors and counts the values.
    """
    faults = [text for name, tensor in values.items() if (text := _fault(name, tensor, built[name]))]
    if faults:
        many = f"{len(faults)} tensor(s) with values that are not finite"
        what = f"the weights were not loaded: {many}{listed(faults, limit=5)}"
        other = "weights from before they diverged"
        raise UserError(what, key=source, fix=f"{other}, or {fix}" if fix else other, family="weights")


def _fault(name: str, tensor: torch.Tensor, built: torch.Tensor) -> str | None:
    """Say what is wrong with the values of a tensor; None where nothing is."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    if tensor.element_size() == 1:
        tensor = tensor.float()
    else:  # the sum is not finite where a value is not: one pass without a copy
        wide = None if tensor.is_complex() or tensor.element_size() > 4 else torch.float32
        if torch.isfinite(tensor.sum(dtype=wide)):
            return None
    odd = ~torch.isfinite(tensor)
    if built.shape == tensor.shape:
        odd &= tensor != built.to(tensor)
    nan = torch.isnan(tensor) & odd
    kinds = [kind for kind, odds in (("NaN", nan), ("infinite", odd & ~nan)) if odds.any()]
    return f"{name}: {int(odd.sum()):,} of {tensor.numel():,} values are {' or '.join(kinds)}" if kinds else None
