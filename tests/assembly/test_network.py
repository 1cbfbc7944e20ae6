"""Networks that are built over and over again are those that are built once each."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from lightkit.assembly import build_model, build_shared
from lightkit.assembly.network import model_maker
from lightkit.config import compose


class Growing(nn.Sequential):
    """Changes the list that it is given."""

    def __init__(self, in_features: int, num_classes: int, widths: list[int]) -> None:
        widths.insert(0, in_features)
        widths.append(num_classes)
        super().__init__(*(nn.Linear(*pair) for pair in pairwise(widths)))


@pytest.mark.parametrize(
    ("target", "again"),
    [
        (f"_target_: {__name__}.Growing, widths: [4]", True),
        (
            "_target_: torch.nn.Sequential, _args_: [{_target_: torch.nn.Linear, in_features: 13, out_features: 3}]",
            False,
        ),
        ("_target_: torch.nn.LazyLinear, out_features: 3", False),
        ("_target_: torch.nn.Linear, in_features: 13, out_features: '${trainer.epochs}'", False),  # that of each member
    ],
)
def test_a_maker_builds_what_is_built_of_the_configuration(target: str, again: bool) -> None:
    cfg = compose(["data=wine", f"model={{{target}}}", "device=cpu"]).cfg
    shared = build_shared(cfg, Path("unused"))
    make = model_maker(cfg, shared.data.info)
    assert (make is not None) == again
    once = build_model(cfg, shared.data.info, shared.engine, shared.data).state_dict()
    for _ in range(2 if make else 0):
        shared.engine.seed_init()
        assert make is not None
        found = make().state_dict()
        assert all(torch.equal(tensor, found[name]) for name, tensor in once.items())
