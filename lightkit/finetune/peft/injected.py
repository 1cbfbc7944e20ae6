"""What all modules have in common that tuning puts into a network."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


class Injected(nn.Module):
    """A module that is no part of the plain network: none of the tensors below it are the plain network's.

    Names, adapter files and merging rest on this: whatever is put into a network is put there as a submodule of this
    class.
    """

    label = "injected module"
    """What users call it."""
    mergeable = False
    """Whether its effect can be put into weights of the plain network."""
    stands_alone = False
    """Whether calling it is all that uses its parameters: it belongs to its host, whose hooks use them."""


def injected_modules(model: nn.Module) -> Iterator[tuple[str, Injected]]:
    """Paths of all modules that were put into a network, a shared one under each of its paths."""
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, Injected):
            yield path, module
