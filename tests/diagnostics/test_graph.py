"""Pictures of models."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.diagnostics import graph as module
from lightkit.diagnostics.graph import Graph, draw
from lightkit.diagnostics.layers import Call
from lightkit.models import CNN, SoftTree, TransformerClassifier, TransformerLM

pytest.importorskip("torchview")
NEEDS_DOT = pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz")


def source(found: Graph) -> str:
    return str(found.picture.source)


def of(model: nn.Module, *args: Any, **options: Any) -> Graph:
    return draw(model, Call(args), **options)


def test_boxes_and_frames_have_the_names_of_modules() -> None:
    model = CNN((1, 8, 8), 10, channels=(4, 8))
    model.stages[0].requires_grad_(False)
    found = of(model, torch.rand(1, 1, 8, 8))
    text = source(found)
    boxes = re.findall(r"\[label=<<B>([\w.]+)</B><BR/>(\w+)<", text)
    modules = dict(model.named_modules())
    assert all(type(modules[name]).__name__ == kind for name, kind in boxes)
    assert {name for name, _ in boxes} == {name for name, part in modules.items() if not [*part.children()]}
    assert found.boxes == len(boxes) + 3  # input, output, and flattening
    assert 'label="stages.0  Sequential"' in text
    assert re.search(r"stages.0.conv0.*36 parameters, frozen.*fillcolor=\"#e4e4e4\"", text)
    assert re.search(r"stages.1.conv0.*288 parameters<.*fillcolor=\"#d6e6f7\"", text)
    assert "depth:" not in text  # nothing is left of torchview's own boxes


def test_what_trains_in_part() -> None:
    model = TransformerClassifier((1, 8, 8), 10, dim=8, depth=1, heads=2)
    model.blocks[0].fc1.requires_grad_(False)
    assert "872 parameters, 584 train" in source(of(model, torch.rand(1, 1, 8, 8), depth=1))


@pytest.mark.parametrize(
    ("model", "x"),
    [(SoftTree(13, 3), torch.rand(1, 13)), (TransformerLM(20, 8), torch.zeros(1, 8, dtype=torch.long))],
    ids=["soft_tree", "transformer_lm"],
)
def test_own_models(model: nn.Module, x: Tensor) -> None:
    found = of(model, x)
    for name, child in model.named_children():
        assert name in source(found) or not [*child.parameters()]
    assert found.boxes <= module.MOST


def test_as_deep_as_boxes_let() -> None:
    model, x = TransformerLM(20, 8, dim=16, depth=4, heads=2), torch.zeros(1, 8, dtype=torch.long)
    shallow, deep = of(model, x, most=10), of(model, x, most=60)
    assert (shallow.depth, deep.depth) == (1, 2)
    assert shallow.boxes <= 10 < deep.boxes <= 60
    assert of(model, x, most=1).depth == 1
    assert of(model, x, depth=3).boxes > deep.boxes
    assert "rankdir=LR" in source(of(model, x, depth=1, direction="LR"))


def test_a_model_that_looks_at_values() -> None:
    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor, *, scale: float) -> Tensor:
            out: Tensor = self.linear(x) * scale
            return out if float(out.sum()) < 1e9 else x

    model, x, state = Looking().train(), torch.rand(1, 4), torch.get_rng_state()
    assert "<B>linear</B>" in source(draw(model, Call((x,), {"scale": 2.0})))
    assert model.training
    assert model.linear.weight.device.type == "cpu"
    assert torch.equal(torch.get_rng_state(), state)


def test_a_model_that_cannot_be_run() -> None:
    with pytest.raises(UserError, match="the model cannot be drawn: .*mat1 and mat2"):
        of(nn.Linear(4, 4), torch.rand(1, 5))


def test_names_that_look_like_markup(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module("a<b>&c", nn.Linear(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self._modules["a<b>&c"](x)  # type: ignore[misc]
            return out

    found = of(Odd(), torch.rand(1, 4))
    assert "a&lt;b&gt;&amp;c" in source(found)
    if shutil.which("dot"):
        found.write(tmp_path / "odd.svg")


@NEEDS_DOT
def test_written_files(tmp_path: Path) -> None:
    found = of(nn.Linear(4, 4), torch.rand(1, 4))
    for kind, begins in (("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")):
        found.write(tmp_path / f"model.{kind}")
        assert (tmp_path / f"model.{kind}").read_bytes().startswith(begins)
    assert len([*tmp_path.iterdir()]) == 3


def test_without_graphviz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = of(nn.Linear(4, 4), torch.rand(1, 4))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"(?s)not installed on this machine.*apt install graphviz.*--output model.dot"):
        found.write(tmp_path / "model.svg")
    assert not [*tmp_path.iterdir()]
    with pytest.raises(UserError, match="cannot write the file: No such file"):
        found.write(tmp_path / "nowhere" / "model.dot")
    with pytest.raises(UserError, match="not a picture"):
        found.write(tmp_path / "model.gif")
    found.write(tmp_path / "model.dot")
    assert (tmp_path / "model.dot").read_text().startswith("strict digraph")


def test_without_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    found = module.find_spec
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "torchview" else found(name))
    with pytest.raises(UserError, match=r"(?s)torchview is not installed.*pip install 'lightkit\[graph\]'"):
        of(nn.Linear(4, 4), torch.rand(1, 4))
