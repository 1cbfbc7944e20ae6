"""What the doctor does not tell yet: faults without a sentence that names their cause, and healthy projects accused."""

from __future__ import annotations

ALLOWED_MISSES, ALLOWED_ACCUSED = 35, 8
"""So many names may stand below, of 54 faults and 25 healthy projects; neither number may ever rise."""

KNOWN_MISSES = {
    "a parameter is part of another",
    "a step that raises after some time",
    "a third of yes and no are swapped",
    "ages as 63 classes",
    "batch statistics in evaluation",
    "blue channel is empty",
    "days of a stay as classes",
    "first layer overwrites its input",
    "fourth channel is opacity",
    "half as rate for a CNN with AdamW",
    "input changed in place",
    "loss broadcasts",
    "loss broadcasts a column of targets",
    "losses add up from step to step",
    "losses kept with their graphs",
    "memory of the step before",
    "norm is always in evaluation",
    "norm with a momentum of zero",
    "optimizer holds one of six",
    "optimizer without the first layers",
    "pictures as height, width, channels",
    "rate 600 times too high",
    "rate 600 times too low",
    "rows are scaled by their batch",
    "small weights in deep tanh",
    "ten sigmoids",
    "tensor that is no buffer",
    "two fifths of the labels are wrong",
    "two parameters on one memory",
    "uint8 that wrapped",
    "validation of one row",
    "validation of three rows",
    "weight decay of SGD is one",
    "weight decay of fifty",
    "wide pictures with channels last",
}
KNOWN_ACCUSED = {
    "autoencoder",
    "density with a negative loss",
    "heavy weight of a rare class",
    "series in time",
    "weights of classes",
}
