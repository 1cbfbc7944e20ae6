"""Which layers are gathered by themselves, and tensors that are whole."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from lightkit.common.modules import part
from lightkit.common.strategies import STRATEGIES
from lightkit.device.engine import Engine
from lightkit.device.ranks import joined
from lightkit.device.sharding import layers, shard
from lightkit.device.stepping import arguments, implementation_of
from lightkit.finetune.peft.injected import Injected
from tests.refused import refused
from tests.runner.processes import together


def test_layers_of_sequences_and_lists_from_the_inside_out() -> None:
    inner = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 2))
    blocks = nn.ModuleList([nn.Linear(10, 10), nn.Linear(10, 10)])
    model = nn.ModuleDict({"a": nn.Sequential(inner, nn.Linear(2, 2)), "b": blocks})
    own = layers(model, 100)
    assert {id(layer) for layer in own} == {id(layer) for layer in (inner, inner[0], *blocks)}
    assert own.index(inner[0]) < own.index(inner)
    assert layers(model, 10_000) == []
    first, second = nn.Linear(10, 10), nn.Linear(10, 10)
    second.weight = first.weight  # tied weights stay in one piece
    assert layers(nn.Sequential(first, second), 1) == []


def test_what_a_fine_tuning_puts_into_a_layer_stays_with_it() -> None:
    class Inserted(Injected):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(10, 10))

    host = nn.Sequential(nn.Linear(10, 10))
    host.add_module("adapter", Inserted())
    assert layers(nn.Sequential(host), 1) == [host[0], host]


def test_parameters_that_cannot_be_cut_are_named() -> None:
    number = nn.Linear(2, 2)
    number.scale = nn.Parameter(torch.tensor(1.0))
    turned = nn.Conv2d(2, 2, 3).to(memory_format=torch.channels_last)
    for model, text in (
        (number, "parallel: a number by itself … scale … shape (1,)"),
        (turned, "usual order in memory only … weight"),
    ):
        refused(lambda model=model: shard(model, torch.device("cpu"), min_parameters=1, reshard=True), text)


class TwoLayers(nn.Module):
    """Two layers that are gathered by themselves."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def test_two_processes_with_a_part_each(tmp_path: Path) -> None:
    """Weights are read anew after an evaluation, all step or none, and each optimizer gets what it can."""

    def job() -> None:
        with joined(STRATEGIES["fsdp"], "cpu", batch_size=8) as ranks:
            options = {"min_parameters": 1, "reshard": False}
            engine = Engine("cpu", parallel="fsdp", ranks=ranks, parallel_options=options, precision="fp16")
            model = TwoLayers()
            network, x = engine.wrap(model), torch.ones(2, 3)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **engine.implementation(model))
            assert implementation_of(optimizer) == "fused"
            with torch.no_grad():
                network(x)
                kept = [part(parameter).clone() for parameter in model.parameters()]
                for parameter in model.parameters():
                    part(parameter).zero_()
                assert network(x).abs().max() == 0
                for parameter, values in zip(model.parameters(), kept, strict=True):
                    part(parameter).copy_(values)

            engine.backward(network(x).square().mean())
            if ranks.rank == 1:
                part(next(model.parameters()).grad).fill_(torch.inf)
            engine.step(optimizer)
            assert engine.skipped() == 1  # in both processes
            assert all(torch.equal(part(p), own) for p, own in zip(model.parameters(), kept, strict=True))
            assert engine.precision.state_dict()["scale"] == 2.0**15
            engine.backward(network(x).square().mean())
            engine.step(optimizer, want_norm=True)
            assert engine.skipped() == 1
            assert not any(torch.equal(part(p), own) for p, own in zip(model.parameters(), kept) if own.numel())

            with engine.accumulating(network, True):
                engine.backward(network(x).sum())
            with engine.accumulating(network, False):
                engine.waste(network(x).sum() * torch.nan)
            engine.discard(optimizer)
            engine.backward(network(x).sum() * 0.0)
            assert not any(part(parameter.grad).any() for parameter in model.parameters()), "of a window given up"
            engine.discard(optimizer)

            assert engine.implementation(model, "SGD") == {"foreach": True}
            no_kernel = "optimizer: PyTorch has no kernel of SGD … foreach, loop"
            refused(lambda: arguments("fused", model, engine.device, kind="SGD"), no_kernel)
            assert arguments("loop", model, engine.device, kind="SGD") == {"foreach": False}

    assert together(job, 2, tmp_path / "log") == [0, 0], (tmp_path / "log-0").read_text()
