"""Modules that compute twice instead of keeping what lies between: the same to the last bit."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from lightkit.device.recompute import recompute
from lightkit.device.switches import Compiled
from tests.refused import refused


class Counting(nn.Module):
    """Counts how often it computes, and has an output that depends on a buffer it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[bool] = []
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("table", torch.ones(1 << 17))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(torch.is_grad_enabled())
        self.seen += 1
        return x.exp() * self.seen * self.table[0]


class Block(nn.Module):
    """What blocks are made of: norms with averages, dropout, a skip, an argument by name."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(width, width), nn.BatchNorm1d(width), nn.Dropout(0.4)
        self.count = Counting()

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        return x + self.count(self.drop(self.norm(self.linear(x)).tanh())) * scale


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.head(x)


def trained(model: nn.Module, backward=lambda loss: loss.backward()) -> list[Tensor]:
    """Outputs, gradients and buffers of two steps without an optimizer in between."""
    outputs = []
    for step in range(2):
        torch.manual_seed(step)
        outputs.append(model(torch.randn(8, 6)))
        backward(outputs[-1].float().square().sum())
    return [*outputs, *(p.grad for p in model.parameters()), *model.buffers(), torch.get_rng_state()]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("patterns", [["blocks.*"], ["blocks.0", "re:blocks[.]2$"], ["blocks.1.norm"], ["head"]])
def test_gradients_buffers_and_random_numbers_are_the_same_to_the_bit(patterns):
    plain, model = Network(), Network()
    recompute(model, patterns)
    assert same(trained(plain), trained(model))


def test_they_are_the_same_under_autocast_and_of_two_backward_passes():
    def twice(loss):
        loss.backward(retain_graph=True)
        loss.backward()

    networks = [Network() for _ in range(4)]
    for model in networks[1::2]:
        recompute(model, ["blocks.*"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same(*map(trained, networks[:2]))
    assert same(*(trained(model, twice) for model in networks[2:]))


def test_the_outermost_modules_compute_twice():
    model = Network()
    assert recompute(model, ["blocks.*", "head"]) == ["blocks.0", "blocks.1", "blocks.2", "head"]
    trained(model)
    assert len(model.blocks[0].count.calls) == 2 * 2
    model.eval()
    model(torch.ones(2, 6))
    with torch.no_grad():
        model.train()(torch.ones(2, 6))
    assert len(model.blocks[0].count.calls) == 4 + 1 + 1, "without a backward pass there is nothing to save"


def test_names_classes_copies_and_files_stay():
    model, plain = Network(), Network()
    names, looks = list(model.state_dict()), repr(model)
    assert recompute(model, []) == []
    assert type(model.blocks[0]) is Block
    recompute(model, ["blocks.*"])
    kind = type(model.blocks[0])
    recompute(model, ["blocks.*"])
    assert type(model.blocks[0]) is kind, "asking twice is asking once"
    assert list(model.state_dict()) == names
    assert repr(model) == looks
    assert isinstance(model.blocks[0], Block)
    assert [type(each.blocks[0]) for each in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)))] == [Block] * 2
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.blocks[0].linear.weight.zero_()
    assert not torch.equal(copied.eval()(torch.ones(1, 6)), model.eval()(torch.ones(1, 6))), "it has its own weights"
    plain.load_state_dict(model.state_dict())


def test_a_replica_computes_with_its_own_weights():
    model = nn.Sequential(nn.Linear(2, 2))
    recompute(model, ["0"])
    replica = model[0]._replicate_for_data_parallel()
    replica.weight, replica.bias = torch.ones(2, 2, requires_grad=True), torch.zeros(2)
    assert torch.equal(replica(torch.ones(1, 2)), torch.full((1, 2), 2.0))


def test_parametrized_modules():
    plain, model = Network(), Network()
    for each in (plain, model):
        torch.manual_seed(5)
        parametrizations.weight_norm(each.head)
        parametrizations.spectral_norm(each.blocks[0].linear)
    recompute(model, ["head", "blocks.0.linear"])
    assert same(trained(plain), trained(model))
    assert parametrize.type_before_parametrizations(model.head) is nn.Linear
    parametrize.remove_parametrizations(model.head, "weight")
    assert type(model.head) is nn.Linear


def test_it_compiles():
    torch._dynamo.reset()
    plain, model = (nn.Sequential(Network().blocks[0].linear, nn.Dropout(0.0), nn.Linear(6, 2)) for _ in range(2))
    model.load_state_dict(plain.state_dict())
    recompute(model, ["0", "2"])
    code = torch.compile(model, backend="aot_eager")
    assert same(trained(plain), trained(Compiled(model, code, copies=False, tell=pytest.fail)))


def test_a_pattern_is_for_whole_names_and_one_that_matches_nothing_is_refused():
    assert recompute(nn.Sequential(*(nn.Linear(2, 2) for _ in range(12))), ["0", "1?"]) == ["0", "10", "11"]
    assert recompute(Network(), ["*.norm"]) == ["blocks.0.norm", "blocks.1.norm", "blocks.2.norm"]
    for pattern in ("layers.*", "norm"):
        text = "device.activation_checkpointing: the pattern matches no module … blocks.0"
        refused(lambda pattern=pattern: recompute(Network(), [pattern]), text)
