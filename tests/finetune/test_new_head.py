"""Another output layer comes in the place of the old one, or it is said why none can."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError
from lightkit.finetune.head import Head
from lightkit.finetune.new_head import outputs_of, replace_head
from tests.conftest import Outcome
from tests.finetune.strange import Angles, Cool, Cosine, Tempered

Cli = Callable[..., Outcome]
WINE = ("data=wine", "model=custom", "trust=[tests]", "finetune=head")


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(4, 9),
        nn.Linear(4, 9, bias=False),
        nn.Conv2d(4, 9, 1),
        nn.Conv3d(4, 9, 1),
        nn.Conv2d(4, 6, 1, groups=2),
        nn.ConvTranspose2d(4, 9, 2, stride=2),
    ],
)
def test_the_new_one_has_the_inputs_of_the_old(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Identity(), layer)
    before = {name: value for name, value in vars(layer).items() if isinstance(value, (int, tuple, str))}
    replace_head(model, Head("1"), 4)
    new: Any = model[1]
    assert type(new) is type(layer)
    assert outputs_of(model, "1") == 4
    assert (new.bias is None) == (layer.bias is None)
    assert {name: vars(new)[name] for name in before if not name.startswith("out_")} == {
        name: value for name, value in before.items() if not name.startswith("out_")
    }
    x = torch.randn(2, 4, *(2 for _ in new.weight.shape[2:]))
    assert model(x).shape[1] == 4


def test_type_mode_and_number_of_classes_go_along() -> None:
    model = nn.Sequential(nn.Linear(4, 9)).double().eval()
    model.num_classes = 9
    replace_head(model, Head("0"), 2)
    assert model[0].weight.dtype == torch.float64
    assert not model[0].training
    assert model.num_classes == 2


def test_ways_to_start() -> None:
    model = nn.Sequential(nn.Linear(400, 9))
    replace_head(model, Head("0"), 50, init="zeros")
    assert model(torch.randn(1, 400)).abs().max() == 0
    replace_head(model, Head("0"), 50, init="normal")
    assert 0.008 < model[0].weight.std() < 0.012
    assert model[0].bias.abs().max() == 0
    with pytest.raises(UserError, match="no such way to start"):
        replace_head(model, Head("0"), 50, init="ones")


def test_a_linear_layer_of_a_class_of_its_own_keeps_it() -> None:
    model: Any = Cool(4, 9)
    replace_head(model, Head("cool"), 2)
    assert type(model.cool) is Tempered
    assert model.cool.temperature == 0.5
    assert model(torch.rand(3, 4)).shape == (3, 2)
    assert not model.cool.weight.isnan().any()


def test_what_cannot_be_built_anew_is_refused_with_the_reason() -> None:
    with pytest.raises(
        UserError, match="angles is a Cosine, and how one is built for another number of outputs is not"
    ):
        replace_head(Angles(4), Head("angles"), 2)
    model = nn.Sequential(nn.Conv2d(4, 4, 1, groups=2))
    with pytest.raises(UserError, match="0 has 2 groups, which cannot share 3 outputs"):
        replace_head(model, Head("0"), 3)

    class Scaled(Tempered):
        def __init__(self) -> None:
            super().__init__(4, 9, 1.0)
            self.gain = nn.Parameter(torch.ones(9))

    with pytest.raises(UserError, match="0 is a Scaled, whose gain depends on the number of outputs too"):
        replace_head(nn.Sequential(Scaled()), Head("0"), 3)
    assert isinstance(Angles(4).angles, Cosine)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("network", "sized", "reason"),
    [
        ("Bound", "Bare", "out is a parameter that no layer holds alone"),
        ("Angles", "SizedAngles", "angles is a Cosine, and how one is built"),
    ],
)
def test_the_way_out_of_a_head_that_cannot_be_replaced_leads_out(
    cli: Cli, network: str, sized: str, reason: str
) -> None:
    other = ["+model.classes=5"] if network == "Angles" else []
    done = cli("plan", *WINE, f"model._target_=tests.finetune.strange.{network}", *other)
    assert done.code == 2
    assert f"finetune.head.replace: the output layer cannot be replaced: {reason}" in done.err
    assert "(found by a forward pass" in done.err
    assert "); another one: finetune.head.name=PATH" in done.err
    assert "let the network's class take num_classes" in done.err
    assert cli("plan", *WINE, f"model._target_=tests.finetune.strange.{sized}").code == 0


def test_a_head_of_the_wrong_size_is_replaced_where_it_is_and_nothing_else(cli: Cli) -> None:
    done = cli("plan", *WINE, "model._target_=tests.finetune.strange.Projected", "+model.classes=5")
    assert done.code == 0, done.err
    assert "output layer: a new answer (found by a forward pass)" in done.out
    assert "21 of 187 parameters train" in done.out


@pytest.mark.thorough
def test_all_layers_that_make_the_outputs_are_replaced(cli: Cli) -> None:
    asked = (*WINE, "model._target_=tests.finetune.strange.Averaged", "+model.classes=5")
    done = cli("train", *asked, "finetune.head.replace=always", "trainer.steps=2")
    assert done.code == 0, done.err
    assert "output layer: a new ends.0, ends.1, ends.2" in done.out


def test_layers_that_share_the_outputs_cannot_take_another_number_of_them(cli: Cli) -> None:
    done = cli("plan", *WINE, "model._target_=tests.finetune.strange.Beside")
    assert done.code == 0, done.err
    done = cli("plan", *WINE, "model._target_=tests.finetune.strange.Beside", "finetune.head.replace=always")
    assert done.code == 2
    assert "its parts make 3 outputs together, and how many each is to make is not known" in done.err


@pytest.mark.parametrize("name", ["BareLinear", "Bare", "Loose", "WideAndDeep"])
def test_a_base_of_other_classes_gives_all_but_what_makes_the_outputs(cli: Cli, tmp_path: Path, name: str) -> None:
    asked = ("model=custom", "trust=[tests]", f"model._target_=tests.finetune.strange.{name}", "trainer.steps=2")
    base = cli("train", "data.dataset.classes=[0,1,2,3]", *asked, f"hydra.run.dir={tmp_path}/base")
    assert base.code == 0, base.err
    done = cli(
        "train", "data.dataset.classes=[5,6,7]", *asked, "finetune=head", f"finetune.weights.path={tmp_path}/base"
    )
    assert done.code == 0, done.err
    assert "the classes of the base are" in done.out
    assert "2 loaded" in done.out


def test_another_layer_than_the_output_layer_is_named_but_not_replaced(cli: Cli) -> None:
    asked = [*WINE, "model._target_=tests.finetune.strange.Projected", "finetune.head.name=head"]
    done = cli("plan", *asked)
    assert done.code == 0, done.err
    assert "output layer: head (as finetune.head.name says; a forward pass has its outputs from answer)\n" in done.out
    done = cli("plan", *asked, "+model.classes=5")
    assert done.code == 2
    assert "finetune.head.name: a new head would not change the outputs, which answer computes" in done.err
    assert "finetune.head.name=answer, or finetune.head.replace=never" in done.err
    assert cli("plan", *asked[:-1], "finetune.head.name=answer", "+model.classes=5").code == 0
