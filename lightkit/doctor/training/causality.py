"""Whether a language model sees the tokens that it is to predict."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lightkit.doctor.finding import Finding
from lightkit.doctor.patient import Patient
from lightkit.doctor.training.probing import compute, percent, plain_batch, seeded

NAME = "causality"
_ROWS = 4
_TOLERANCE = 1e-4


def check(patient: Patient) -> Iterator[Finding]:
    """Change the last tokens of some texts: what is predicted before them must stay."""
    if patient.shared.data.info.task != "language_modeling":
        return
    learner = patient.learner()
    x, y = plain_batch(learner, patient.rows(_ROWS))
    if x.ndim != 2 or x.shape[1] < 2:
        return
    place = x.shape[1] // 2
    other = x.clone()
    other[:, place:] = (other[:, place:] + 1) % max(2, learner.data.info.vocab_size or int(x.max()) + 1)
    learner.network.eval()
    found = []
    with torch.no_grad():
        for tokens in (x, other):
            seeded(learner, 0)
            found.append(compute(learner, (tokens, y)).preds)
    if found[0] is None or found[1] is None or found[0].ndim < 3:
        return
    before = (found[0][:, :place] - found[1][:, :place]).abs().max()
    difference = float(before / found[0].abs().max().clamp_min(1e-12))
    numbers = {"difference": difference, "place": place}
    if difference <= _TOLERANCE:
        yield Finding(
            NAME, "ok", f"what is predicted up to token {place} does not depend on those after it", numbers=numbers
        )
        return
    measured = f"other tokens from place {place} on change what is predicted before them by {percent(difference)}"
    why = "the network reads the answer: its loss comes near 0, and it can write nothing"
    fix = "a causal mask in the attention (is_causal=True, or a triangle of -inf); no bidirectional=True"
    yield Finding(NAME, "error", measured, why, "model", fix, numbers)
