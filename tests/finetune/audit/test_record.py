"""What is made of a phase at its end: what moved, and which gradients came."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from lightkit.common.errors import UserError
from lightkit.finetune.phases import Phase
from lightkit.trainer.audit.phases import FinetuneAudit
from tests.finetune.audit.running import (
    HEAD,
    Run,
    grouped,
    names,
    network,
    phases,
)


def test_branch_that_no_gradient_reaches() -> None:
    model = network()

    class Cut(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.detach()

    model[2] = Cut()
    optimizer = SGD(
        [{"params": list(model[index].parameters()), "name": f"layer {index}"} for index in (0, 1, 3, 5)], lr=0.1
    )
    run = Run(model, optimizer, [Phase(names(model), epoch=0)])
    with pytest.raises(UserError, match=r"epoch 0, after step 32\)\n.*no gradient has reached group layer 0 in 32 ste"):
        run.go(40)
    assert run.lines[0] == "audit: epoch 0: no gradient has reached group layer 0 in 2 steps"
    with pytest.raises(UserError, match="layer 1: no gradient reached it, and it did not move: 1.weight, 1.bias"):
        Run(model, optimizer, [Phase(names(model), epoch=0)]).go(8)


def with_spare() -> tuple[nn.Sequential, Phase]:
    """A network with a parameter that it does not use, and one without elements."""
    model = network()
    model.register_parameter("spare", nn.Parameter(torch.ones(2)))
    model.register_parameter("none", nn.Parameter(torch.ones(0)))
    return model, Phase(frozenset(dict(model.named_parameters())), epoch=0)


def test_single_parameter_without_gradient() -> None:
    model, phase = with_spare()
    unused = "no gradient reached spare; if it is not meant to be used, freeze it: finetune.freeze"
    run = Run(model, SGD(model.parameters(), lr=0.1), [phase])
    run.go(2)
    assert run.lines == [
        "audit: epoch 0: no gradient has reached spare of group group 0 in 2 steps",
        f"audit: epoch 0: group 0: {unused}",
    ]
    with pytest.raises(UserError, match=rf"epoch 0, until step 4\)\n.*group 0: {unused}\n"):
        Run(model, SGD(model.parameters(), lr=0.1), [phase]).go(4)
    with pytest.raises(UserError, match=r"after step 32\)\n.*no gradient has reached spare of group group 0 in 32 st"):
        Run(model, SGD(model.parameters(), lr=0.1), [phase]).go(40)


def test_half_of_a_group_that_no_gradient_reaches() -> None:
    model = network()
    model[2].register_forward_hook(lambda module, args, output: output.detach())
    run = Run(model, SGD(model.parameters(), lr=0.1), [Phase(names(model), epoch=0)])
    with pytest.raises(UserError, match="group 0: no gradient reached 0.weight, 0.bias, 1.weight, 1.bias; if"):
        run.go(6)


def test_half_of_what_trains_with_gradients_of_zero() -> None:
    model = network()
    model[3].register_forward_hook(lambda module, args, output: output.detach() + output * 0)
    groups = [{"params": [p for p in model.parameters() if (p.dim() > 1) is wide]} for wide in (False, True)]
    dull = "only gradients of 0 reached"
    with pytest.raises(UserError, match=f"{dull} half of what trains or more: 0.bias, 1.weight, 1.bias, 3.bias, 0.we"):
        Run(model, SGD(groups, lr=0.1), [Phase(names(model), epoch=0)]).go(6)
    model = network()
    model[0].bias.register_hook(torch.zeros_like)
    run = Run(model, SGD(model.parameters(), lr=0.1), [Phase(names(model), epoch=0)])
    run.go(6)
    assert run.lines == [f"audit: epoch 0: group 0: {dull} 0.bias"]


@pytest.mark.parametrize(("kind", "lr"), [(SGD, 0.1), (AdamW, 0.01)])
def test_single_parameter_that_never_moves(kind: type[Optimizer], lr: float) -> None:
    model = network()
    kept = model[5].bias.detach().clone()

    def put_back(step: int) -> None:
        model[5].bias.data.copy_(kept)

    run = Run(model, kind(model.parameters(), lr=lr), [Phase(names(model), epoch=0)])
    run.optimizer.register_step_post_hook(lambda *_: put_back(0))
    with pytest.raises(UserError, match="should move but did not, although gradients reached them: 5.bias\n"):
        run.go(6)


def test_single_parameter_whose_steps_are_below_its_resolution() -> None:
    model = network()
    model[0].bias.data.fill_(1e6)
    model[0].bias.register_hook(lambda gradient: gradient * 1e-6)
    run = Run(model, SGD(model.parameters(), lr=0.1), [Phase(names(model), epoch=0)])
    run.go(6)
    assert run.lines == [
        "audit: epoch 0: group 0: did not move, as their steps were too small for their numbers: 0.bias"
    ]


def test_only_gradients_of_zero() -> None:
    model = network()
    optimizer = grouped(model, weight_decay=0.1)
    run = Run(model, optimizer, [Phase(names(model), epoch=0)])

    def forward(x: Tensor) -> Tensor:
        return nn.Sequential.forward(model, x) * 0 + model[5].bias

    model.forward = forward  # type: ignore[method-assign]
    with pytest.raises(UserError, match="body: only gradients of 0 reached it: 0.weight, 0.bias"):
        run.go(8)


def test_what_starts_at_zero_holds_back_the_gradients_of_others() -> None:
    model = network()
    nn.init.zeros_(model[5].weight)
    run = Run(model, grouped(model), [Phase(names(model), epoch=0)])
    run.go(1)
    assert run.lines == [
        "audit: epoch 0: body: only gradients of 0 reached it, and it did not move: "
        "0.weight, 0.bias, 1.weight, 1.bias, 3.weight and 1 more"
    ]
    model = network()
    nn.init.zeros_(model[5].weight)
    run = Run(model, grouped(model), [Phase(names(model), epoch=0)])
    run.go(4)
    assert run.lines == []


def test_steps_too_small_for_any_bit_are_a_note_at_first() -> None:
    model = network()
    optimizer = grouped(model, lr=1e-12)
    run = Run(model, optimizer, [Phase(names(model, "5"), epoch=0, frozen_norms=frozenset({"1", "4"}))])
    run.go(2)
    assert run.lines == [
        "audit: epoch 0: head: should move but did not, as a learning rate of 1e-12 is too small to change float32 "
        "weights of 0.34; raise it: 5.weight, 5.bias"
    ]
    with pytest.raises(UserError, match="head: should move but did not"):
        run.go(3)


def test_statistics_that_should_go_on() -> None:
    model = network()
    run = Run(model, grouped(model), [Phase(names(model, "5"), epoch=0)])

    def rest(step: int) -> None:
        model.eval()

    with pytest.raises(UserError, match="body: statistics of its norm layers should go on but rest: 1"):
        run.go(4, after_entering=rest)
    model.train()
    model[1].eval()
    with pytest.raises(UserError, match="norm layer that should be in train mode but is in eval mode: 1"):
        FinetuneAudit(model, grouped(model)).begin(Phase(names(model), epoch=0), epoch=0, step=0)


def test_other_buffers_of_frozen_modules_are_a_note() -> None:
    model = network()
    model[0].register_buffer("counter", torch.zeros(1))
    run = Run(model, grouped(model), phases(model))

    def count(step: int) -> None:
        model[0].counter += 1

    run.go(8, before=count)
    changed = "buffers of frozen modules changed"
    assert run.lines == [f"audit: epoch 0: {changed}: 0.counter; finetune.dropout=off would hold these in eval mode"]
    listed = [Phase(names(model, *HEAD), epoch=0, frozen_norms=frozenset(("1", "4")), eval_modules=frozenset("0"))]
    run = Run(model, grouped(model), listed)
    run.go(8, before=count)
    assert run.lines == [f"audit: epoch 0: {changed} although in eval mode: 0.counter"]


def test_buffers_are_not_those_of_frozen_modules_where_nothing_is_frozen() -> None:
    model = network()
    model[2].register_buffer("counter", torch.zeros(1))  # a module without parameters
    for phase in (Phase(names(model), epoch=0), phases(model)[0]):
        run = Run(model, grouped(model), [phase])
        run.go(4, before=lambda step: model[2].counter.add_(1))
        assert run.lines == []


def test_norm_that_never_changes_its_statistics() -> None:
    class FrozenBatchNorm1d(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("running_mean", torch.zeros(8))
            self.register_buffer("running_var", torch.ones(8))

        def forward(self, x: Tensor) -> Tensor:
            return (x - self.running_mean) / self.running_var

    model = network()
    model[4] = FrozenBatchNorm1d()
    run = Run(model, grouped(model), [Phase(names(model), epoch=0)])
    run.go(8)
    # The bias before a norm gets gradients of rounding alone, which processors round to 0 or not.
    assert [line for line in run.lines if not line.endswith(": 0.bias")] == []
