"""Which tensor of a run is not finite."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError
from lightkit.trainer.nonfinite import bad_parameter
from tests.trainer.parts import network, trainer
from tests.trainer.test_guard import Reciprocal, spoilt

INF, NAN = float("inf"), float("nan")


def test_the_first_bad_tensor_is_named() -> None:
    run = trainer()
    with torch.no_grad():
        run.model[4].bias.fill_(INF)
    with pytest.raises(UserError, match=r"parameter 4\.bias is not finite"):
        run.fit()

    run = trainer()
    run.model[2] = Reciprocal()
    with pytest.raises(UserError, match=r"the output of 2 is the first that is not finite"):
        run.fit()


@pytest.mark.parametrize("tensor", [0, 1])
def test_the_bad_tensor_of_a_batch_is_named(tensor: int) -> None:
    run = trainer()
    spoilt(run, 10, tensor)
    with pytest.raises(UserError, match=rf"samples from 10 on\); tensor {tensor} of the batch is not finite"):
        run.fit()


def test_names_are_those_of_the_bare_model() -> None:
    model = network()
    with torch.no_grad():
        model[0].weight.fill_(NAN)
    run = trainer(model, **({} if torch.cuda.is_available() else {"network": nn.DataParallel(model)}))
    with pytest.raises(UserError, match=r"; parameter 0\.weight is not finite"):
        run.fit()


def test_bad_parameters_are_found_by_name() -> None:
    model = network()
    assert bad_parameter(model) is None
    model[4].weight.requires_grad_(False).fill_(INF)
    model.register_buffer("mask", torch.full((2,), -INF))
    assert bad_parameter(model) is None, "what is not trained may hold what it likes"
    with torch.no_grad():
        model[4].bias.fill_(INF)
        model[1].weight[0] = -INF
    assert bad_parameter(model) == "1.weight", "also where infinities cancel out"
    assert bad_parameter(nn.ReLU()) is None


def test_large_weights_are_not_bad() -> None:
    model = nn.Linear(4, 4)
    with torch.no_grad():
        model.weight.fill_(3e38)
    assert bad_parameter(model) is None
