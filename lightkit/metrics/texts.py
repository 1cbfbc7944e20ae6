"""Outputs of a language model as texts, for the metrics of `torchmetrics.text`.

Shapes: B samples, T positions, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Decode = Callable[[list[int]], str]
"""Makes the text of token numbers; the data set's own."""
TEXTS, REFERENCES, ANSWERS = "texts", "references", "answers"
"""What a metric compares: two texts of a sample; a text with one or several; answers to questions."""
_KINDS = {
    **dict.fromkeys(("CharErrorRate", "EditDistance", "MatchErrorRate", "WordErrorRate", "InfoLM"), TEXTS),
    **dict.fromkeys(("WordInfoLost", "WordInfoPreserved"), TEXTS),
    "Perplexity": "raw",
    "SQuAD": ANSWERS,
}


def kind_of_text(names: Sequence[str]) -> str:
    """Tell what a metric of `torchmetrics.text` takes, by the names of its class and those above it."""
    return next((_KINDS[name] for name in names if name in _KINDS), REFERENCES)


def as_texts(kind: str, preds: Any, target: Any, decode: Decode | None) -> tuple[list[Any], list[Any]]:
    """Make what the metrics of a kind compare; lists that a task has made already are only brought into its form.

    Args:
        kind: What they compare.
        preds: Logits `(B, T, V)` or `(B, V, T)`, tokens `(B, T)`, or a list with a text for each sample.
        target: Tokens `(B, T)`; those below 0 count for nothing, and are left out of the predictions too where these
            are for the same positions. Or a list with a text, or several, for each sample.
        decode: Makes a text of tokens.

    Raises:
        TypeError: They are neither.
    """
    if isinstance(preds, Tensor) or isinstance(target, Tensor):
        if decode is None:
            what = "it compares texts, and the data set has no method decode(tokens) that makes them of tokens"
            raise TypeError(what)
        preds, target = _decoded(preds, target, decode)
    given, known = [*preds], [*target]
    if kind == REFERENCES:
        return given, [[one] if isinstance(one, str) else one for one in known]
    known = [one[0] if isinstance(one, list) and len(one) == 1 else one for one in known]
    if kind == TEXTS and any(isinstance(one, list) for one in known):
        raise TypeError("it compares with one text for each sample, not with several")
    if kind == ANSWERS and all(isinstance(one, str) for one in (*given, *known)):
        named = list(enumerate(zip(given, known)))
        given = [{"id": str(number), "prediction_text": text} for number, (text, _) in named]
        known = [{"id": str(number), "answers": {"answer_start": [0], "text": [right]}} for number, (_, right) in named]
    return given, known


def _decoded(preds: Any, target: Any, decode: Decode) -> tuple[list[str], list[str]]:
    """Decode outputs and targets, sample by sample."""
    if not (isinstance(preds, Tensor) and isinstance(target, Tensor)) or target.is_floating_point():
        raise TypeError("it takes tokens or texts, both for output and target")
    if preds.ndim == target.ndim + 1:
        preds = preds.argmax(-1 if preds.shape[:-1] == target.shape else 1)
    if preds.is_floating_point() or preds.ndim != 2 or target.ndim != 2:
        raise TypeError("it takes logits (B, T, V) or tokens (B, T), and tokens (B, T) as targets")
    counted = target >= 0
    own = counted if preds.shape == target.shape else preds >= 0
    parts = (preds, own), (target, counted)
    predicted, right = (
        [decode(row[there].tolist()) for row, there in zip(*map(torch.Tensor.cpu, part))] for part in parts
    )
    return predicted, right
