"""Members in a stack under the eyes of `trainer.watch`: each is looked at as if it trained alone.

Shapes: M members, T tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress

import torch
from torch import Tensor, nn

from lightkit.ensemble.stack import Stack
from lightkit.finetune.audit.fingerprints import row_fingerprints
from lightkit.trainer.watch import WatchedModel


class WatchedStack(WatchedModel):
    """What a watch reads of the members in training.

    Args:
        stack: The members.
    """

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack.learner)
        self._model = stack.model
        self.members = [member.name for member in stack.active]

    @staticmethod
    def largest(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the largest absolute value of each gradient of each member, `(M,)`."""
        return [gradient.reshape(len(gradient), -1).abs().amax(1) for gradient in gradients]

    @property
    def modules(self) -> nn.Module:
        """See `WatchedModel.modules`; the layers are those of the first member."""
        return self._model.template

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        """See `WatchedModel.buffers`."""
        return self._model.states

    def of_member(self, tensors: Mapping[str, Tensor], member: str) -> dict[str, Tensor]:
        """See `WatchedModel.of_member`."""
        row = self.members.index(member)
        return {name: tensor[row] for name, tensor in tensors.items()}

    def fingerprints(self, tensors: Mapping[str, Tensor]) -> StackFingerprints:
        """See `WatchedModel.fingerprints`."""
        return StackFingerprints(self.members, tensors)

    def changed(self, before: StackFingerprints, now: StackFingerprints) -> dict[str, set[str]]:
        """See `WatchedModel.changed`."""
        return before.changed(now)


class StackFingerprints:
    """Fingerprints of the tensors of each member at one moment.

    Args:
        members: Their names.
        tensors: Tensors `(M, ...)` by name, on one device.
    """

    def __init__(self, members: Sequence[str], tensors: Mapping[str, Tensor]) -> None:
        self.members = list(members)
        self._sums = {name: row_fingerprints(tensor) for name, tensor in tensors.items()}

    def changed(self, now: StackFingerprints) -> dict[str, set[str]]:
        """Return the names of the tensors that are not the same bits, for each member of `now`; waits once."""
        names = [name for name in self._sums if name in now._sums]
        if not names:
            return {member: set() for member in now.members}
        before, after = (torch.stack([moment._sums[name] for name in names]) for moment in (self, now))
        if self.members != now.members:  # some have left the stack meanwhile
            before = before[:, [self.members.index(member) for member in now.members]]
        differs = (before != after).any(2).T.tolist()
        return {member: {*compress(names, own)} for member, own in zip(now.members, differs)}
