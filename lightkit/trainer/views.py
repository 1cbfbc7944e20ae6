"""A task for several views of each sample, which a network learns to draw together, without labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lightkit.common.errors import UserError
from lightkit.common.modules import shape_of
from lightkit.trainer.tasks import Criterion, StepOutput, Task


class TwoViews(Task):
    """Learns from views of the same sample (SimCLR, Chen et al. 2020, https://arxiv.org/abs/2002.05709).

    In training, `lightkit.data.transforms.Views` makes the views of each sample, and labels are not looked at: the loss
    gets the embeddings of all views, `(V * B, D)`, and the number of the sample that each is of, `(V * B,)`. With
    `lightkit.losses.SupervisedContrastive` that is NT-Xent: the other views of a sample are to be nearer than those of
    the other samples in the batch. Of several processes each compares the samples of its own part of the batch.

    Validation and test see samples as they are: their loss compares embeddings with the labels, which metrics get, too.
    """

    def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
        """Compute the loss of the views in training, or loss and metric inputs of plain samples; see `Task.step`."""
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            what, expected = "the samples are not an input and a label", "(x, y); labels may be all 0"
            raise UserError(what, key="trainer.task", expected=expected, received=shape_of(batch))
        views, labels = batch
        if isinstance(views, (tuple, list)):
            samples = torch.arange(len(labels), device=labels.device).repeat(len(views))
            return StepOutput(criterion(model(torch.cat([*views])), samples))
        if model.training:
            fix = "data.augment=[{_target_: lightkit.data.transforms.Views, augment: [...]}]"
            raise UserError("the task compares views of each sample", key="data.augment", received="one view", fix=fix)
        embeddings = model(views)
        return StepOutput(criterion(embeddings, labels), embeddings, labels)
