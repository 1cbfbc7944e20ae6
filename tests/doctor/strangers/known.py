"""What the doctor does not tell yet: faults without a sentence that names their cause, and healthy projects accused."""

from __future__ import annotations

KNOWN_MISSES = {
    "a parameter is part of another",
    "batch statistics in evaluation",
    "half as rate for a CNN with AdamW",
    "loss broadcasts",
    "loss broadcasts a column of targets",
    "losses kept with their graphs",
    "memory of the step before",
    "optimizer holds one of six",
    "optimizer without the first layers",
    "rate 600 times too high",
    "rate 600 times too low",
    "rows are scaled by their batch",
    "small weights in deep tanh",
    "ten sigmoids",
    "tensor that is no buffer",
    "two parameters on one memory",
    "weight decay of SGD is one",
    "weight decay of fifty",
}
KNOWN_ACCUSED = {
    "autoencoder",
    "density with a negative loss",
    "heavy weight of a rare class",
    "series in time",
    "weights of classes",
}
