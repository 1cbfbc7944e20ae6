"""Layers are numbered in the order in which they run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from lightkit.optim.layers import NetworkLayer, in_order, layer_depths, order_notes


def order(*names: str, **more: Any) -> Any:
    """An order in which parameters are used one after the other."""
    uses: dict[str, list[int]] = {}
    for moment, name in enumerate(names):
        uses.setdefault(name, []).append(moment)
    return SimpleNamespace(uses=uses, **{"products": set(), "unsteady": set(), **more})


def test_layers_are_sorted_and_those_that_do_not_run_stay_behind_their_neighbour() -> None:
    layers = [NetworkLayer(name, (f"{name}.w",)) for name in ("out", "idle", "b", "a")]
    found = in_order(layers, order("a.w", "b.w", "out.w"))
    assert [layer.path for layer in found] == ["a", "b", "out", "idle"]


def test_what_modules_hold_directly_goes_where_it_is_used() -> None:
    layers = [
        NetworkLayer("out", ("out.w",), held=("token", "unused")),
        NetworkLayer("b", ("b.w",)),
        NetworkLayer("a", ("a.w",)),
    ]
    found = in_order(layers, order("a.w", "token", "b.w", "out.w"))
    assert [(layer.path, layer.held) for layer in found] == [("a", ("token",)), ("b", ()), ("out", ("unused",))]


def test_bare_matrices_are_layers() -> None:
    model = nn.Module()
    model.w2, model.b2, model.w1, model.b1 = (nn.Parameter(torch.rand(2)) for _ in range(4))
    known = order("w1", "b1", "w2", "b2", products={"w1", "w2"})
    assert layer_depths(model, known) == {"w1": 0, "b1": 0, "w2": 1, "b2": 1}
    listed = nn.Module()
    listed.ws = nn.ParameterList([torch.rand(2, 2) for _ in range(3)])
    known = order("ws.2", "ws.0", "ws.1", products={"ws.0", "ws.1", "ws.2"})
    assert layer_depths(listed, known) == {"ws.2": 0, "ws.0": 1, "ws.1": 2}


def test_a_norm_belongs_to_the_layer_that_runs_before_it() -> None:
    model = nn.ModuleDict({"b": nn.Linear(2, 2), "norm": nn.LayerNorm(2), "a": nn.Linear(2, 2)})
    depths = layer_depths(model, order("a.weight", "norm.weight", "norm.bias", "b.weight"))
    assert {name: depths[f"{name}.weight"] for name in ("a", "norm", "b")} == {"a": 0, "norm": 0, "b": 1}


def test_what_cannot_be_told_is_said() -> None:
    model = nn.ModuleDict({name: nn.Linear(1, 1, bias=False) for name in ("a", "b", "c", "d", "idle")})
    names = ("a.weight", "b.weight", "a.weight", "c.weight", "d.weight")
    notes = order_notes(model, order(*names, unsteady={"c.weight", "d.weight"}))
    assert notes == [
        "order of the layers: idle: not used in a forward pass, so placed behind the layer that is defined before",
        "order of the layers: c, d: run in an order that depends on the samples, so placed as the first of them tell",
        "order of the layers: a: used again after later layers, so placed where first used",
    ]
    assert order_notes(model, None, "no sample is known") == [
        "order of the layers: that of their definition, as no sample is known"
    ]
    assert order_notes(model, order("a.weight", "b.weight", "c.weight", "d.weight", "idle.weight")) == []
