"""Layers of a model in the order in which they run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchinfo
from torch import Tensor, nn

from lightkit.diagnostics.layers import Call, Layer, first_call, layers_of, runs_of_alike
from lightkit.models import CNN, TransformerLM


def layers(model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, Layer]:
    return {layer.name: layer for _, layer in layers_of(model, Call(args, kwargs)).walk()}


def test_shapes_and_parameters_as_torchinfo_has_them() -> None:
    model, image = CNN((1, 8, 8), 10), torch.rand(2, 1, 8, 8)
    theirs = torchinfo.summary(model, input_data=image, depth=9, verbose=0)
    found = layers(model, image)
    for info in theirs.summary_list:
        parents, above = [info.var_name], info.parent_info
        while above is not None and above.parent_info is not None:
            parents, above = [above.var_name, *parents], above.parent_info
        layer = found["" if info.depth == 0 else ".".join(parents)]
        assert (layer.kind, layer.parameters, layer.trainable) == (
            info.class_name,
            info.num_params,
            info.trainable_params,
        )
        assert (layer.input, layer.output) == (tuple(info.input_size), tuple(info.output_size))
    assert found[""].parameters == theirs.total_params


def test_names_are_those_of_modules() -> None:
    model = TransformerLM(20, 8, dim=16, depth=2, heads=2)
    found = layers(model, torch.zeros(1, 8, dtype=torch.long))
    modules = dict(model.named_modules())
    assert set(found) <= set(modules)
    assert all(type(modules[name]).__name__ == layer.kind for name, layer in found.items())
    assert found["blocks"].output is None  # a list does not run by itself
    assert found["blocks.0.dropout"].calls == 2
    assert found[""].parameters == sum(p.numel() for p in model.parameters())  # tied ones count once


def test_frozen_layers() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    found = layers(model, torch.rand(1, 3))
    assert [found[name].trainable for name in ("", "0", "1")] == [10, 0, 10]


def test_operations_of_lists_are_those_of_their_layers() -> None:
    model = TransformerLM(20, 8, dim=16, depth=2, heads=2)
    top = layers_of(model, Call((torch.zeros(1, 8, dtype=torch.long),))).counted(
        {"": 70, "blocks.0": 30, "blocks.1": 30}
    )
    assert {layer.name: layer.flops for _, layer in top.walk() if layer.flops} == {
        "": 70,
        "blocks": 60,
        "blocks.0": 30,
        "blocks.1": 30,
    }


def test_neighbours_that_are_alike() -> None:
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)), nn.Linear(4, 4), nn.Linear(4, 4)
    )
    model[2].requires_grad_(False)
    top = layers_of(model, Call((torch.rand(1, 4),)))
    # The frozen one is another, and single layers are shown one by one.
    assert [[layer.label for layer in run] for run in runs_of_alike(top.children)] == [["0", "1"], ["2"], ["3"], ["4"]]


class Several(nn.Module):
    """Takes what is no tensor, by place and by name, and gives several things."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor, times: int, mask: Tensor | None = None, *, scale: float = 1.0) -> dict[str, Any]:
        assert mask is None
        return {"logits": self.linear(x) * times * scale, "state": None}


def test_inputs_that_are_no_tensors() -> None:
    found = layers(Several(), torch.rand(5, 3), 2, None, scale=0.5)
    assert found[""].output == (5, 2)
    assert found["linear"].input == (5, 3)


def test_a_model_that_looks_at_values_runs_with_them() -> None:
    class Looking(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if float(x.sum()) > 0 else x

    model, state = Looking(3, 2), torch.get_rng_state()
    assert layers(model, torch.ones(1, 3))[""].output == (1, 2)
    assert torch.equal(torch.get_rng_state(), state)
    assert not model._forward_hooks


def test_what_is_done_to_arguments_before_the_call_is_done() -> None:
    def scaled(_module: nn.Module, args: Any, kwargs: Any) -> Any:
        return args, {"scale": args[0]["scale"], "x": args[0]["x"]}

    class Scaling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, _mapping: Any, x: Tensor, scale: Tensor) -> Tensor:
            return self.linear(x) * scale

    model = Scaling()
    model.register_forward_pre_hook(scaled, with_kwargs=True)
    assert layers(model, {"x": torch.ones(4, 3), "scale": torch.ones(1)})["linear"].output == (4, 2)


def test_how_a_step_calls_its_model() -> None:
    model, ran = Several(), list[int]()
    model.linear.register_forward_hook(lambda *_: ran.append(1))
    x = torch.rand(5, 3)
    call = first_call(model, lambda given: given(x, 2, scale=0.5)["logits"].sum())
    assert call.args[0] is x
    assert (call.args[1:], call.kwargs) == ((2,), {"scale": 0.5})
    assert not ran  # nothing was computed
    assert not model._forward_pre_hooks
    assert call.run(model)["logits"].shape == (5, 2)
    with pytest.raises(RuntimeError, match="does not call the model"):
        first_call(model, lambda given: None)
    with pytest.raises(ZeroDivisionError):
        first_call(model, lambda given: 1 / 0)
