from __future__ import annotations

import pytest

from lightkit.config import compose
from lightkit.doctor.checks import examined
from lightkit.doctor.training.outputs import check

NETS = """
import torch
from torch import nn

class Positive(nn.Module):
    '''Outputs near 0.5 before anything is learnt.'''
    def __init__(self, in_features, num_classes):
        super().__init__()
        self.head = nn.Linear(in_features, num_classes)
        nn.init.normal_(self.head.weight, std=0.001)
        nn.init.constant_(self.head.bias, 0.5)

    def forward(self, x):
        return self.head(x)

class Rectified(Positive):
    def forward(self, x):
        return self.head(x).relu()

class Squashed(Positive):
    def forward(self, x):
        return self.head(x).sigmoid()
"""


@pytest.mark.parametrize(("name", "found"), [("Positive", False), ("Rectified", True), ("Squashed", True)])
def test_outputs_that_lie_between_0_and_1_by_chance_raise_no_alarm(name, found, project) -> None:  # type: ignore[no-untyped-def]
    (project / "nets.py").write_text(NETS)
    overrides = ["data=wine", "model=custom", f"model._target_=nets.{name}"]
    with examined(compose(overrides).cfg, 60) as run:
        assert ("outputs" in {each.check for each in check(run)}) is found
