"""The output layer: found by what computes the outputs, named, replaced, or refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tests.finetune.strange as strange
from lightkit.assembly import build
from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.finetune.head import Head, find_head, guess_head
from lightkit.finetune.new_head import outputs_of, replace_head
from lightkit.models import CNN
from lightkit.models.zoo import timm_model, torchvision_model
from lightkit.runner import Runner
from tests.conftest import Outcome
from tests.finetune.strange import Angles, Cool, Cosine, Tempered
from tests.finetune.whole import SHORT, notes, weights

Cli = Callable[..., Outcome]
WINE = ("data=wine", "model=custom", "trust=[tests]")
BRIEF = ("trainer.steps=2", "logger.tensorboard.enabled=false", "metrics.figures=[]")


def ran(model: nn.Module, x: Tensor) -> str | None:
    """Path of the output layer that a forward pass tells."""
    head = find_head(model, forwards=[lambda twin: twin(x)])
    assert head is None or head.found == "computed", head
    return head and head.path


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("make", "name", "head", "size"),
    [
        (torchvision_model, "squeezenet1_1", "classifier.1", 64),
        (torchvision_model, "resnet18", "fc", 64),
        (torchvision_model, "convnext_tiny", "classifier.2", 64),
        (timm_model, "convnext_atto", "head.fc", 224),
        (timm_model, "deit_tiny_distilled_patch16_224", "head", 224),
    ],
)
def test_heads_of_torchvision_and_timm(make: Callable[..., nn.Module], name: str, head: str, size: int) -> None:
    with torch.device("meta"):
        model = make(name, 7)
        assert ran(model, torch.rand(2, 3, size, size)) == head
    guessed = guess_head(model)
    assert guessed is not None
    assert guessed.path == head
    assert outputs_of(model, head) == 7


@pytest.mark.parametrize(
    ("name", "head", "trained"),
    [
        ("Bare", "out", ["out", "shift"]),
        ("Quiet", "last", ["last.weight", "last.bias"]),
        ("Named", "two", ["two.weight", "two.bias"]),
        ("Averaged", "ends.0", [f"ends.{n}.{name}" for n in range(3) for name in ("weight", "bias")]),
    ],
)
def test_strange_networks_are_planned_by_what_computes_their_outputs(
    cli: Cli, name: str, head: str, trained: list[str]
) -> None:
    task = ["trainer.task._target_=tests.finetune.strange.Both"] if name == "Named" else []
    asked = [*WINE, f"model._target_=tests.finetune.strange.{name}", "finetune=head", *task]
    done = cli("plan", *asked, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["head"]["name"] == head
    assert found["head"]["found"] == "computed"
    assert not found["head"]["new"]
    groups = found["phases"][0]["groups"]
    assert sorted(name for group in groups if not group["frozen"] for name in group["names"]) == sorted(trained)
    together = "; together they make the outputs" * bool(found["head"]["beside"])
    shown = ", ".join([head, *found["head"]["beside"]])
    line = f"\noutput layer: {shown} (found by a forward pass{together}); another one: finetune.head.name=PATH\n"
    assert line in cli("plan", *asked).out


def test_training_says_what_it_took_where_several_layers_make_the_outputs(cli: Cli) -> None:
    done = cli("train", *WINE, "model._target_=tests.finetune.strange.Averaged", "finetune=head", *BRIEF)
    assert done.code == 0, done.err
    assert "output layer: ends.0, ends.1, ends.2 (found by a forward pass; together they make the outputs)" in done.out
    assert "81 of 193 parameters train" in done.out


def test_one_of_several_may_be_named(cli: Cli) -> None:
    asked = (*WINE, "model._target_=tests.finetune.strange.Averaged", "finetune=head")
    done = cli("plan", *asked, "finetune.head.name=ends.1")
    assert "output layer: ends.1 (as finetune.head.name says)\n" in done.out, done.err
    done = cli("plan", *asked, "finetune.head.name=ends")
    assert "output layer: ends.0, ends.1, ends.2 (as finetune.head.name says; together they" in done.out, done.err


def test_the_advice_that_a_plan_gives_can_be_taken(cli: Cli) -> None:
    asked = (*WINE, "model._target_=tests.finetune.strange.Projected", "finetune=head")
    done = cli("plan", *asked, "finetune.head.name=head")
    assert "output layer: head (as finetune.head.name says; a forward pass" in done.out, done.err
    done = cli("plan", *(text.replace("Projected", "Bare") for text in asked), "finetune.head.name=out")
    assert "output layer: out, shift (as finetune.head.name says; together they make the outputs)\n" in done.out, (
        done.err
    )


def test_a_run_of_before_goes_on_with_the_layer_it_had_guessed(tmp_path: Path) -> None:
    changed = [*WINE, *SHORT, "model._target_=tests.finetune.strange.Projected", "+model.between=3", "finetune=head"]
    Runner(compose([*changed, "finetune.head.name=head", "trainer.epochs=1"]).cfg, tmp_path).run()
    before = weights(tmp_path)
    kept = notes(tmp_path)
    del kept["head"]
    (tmp_path / "finetune.json").write_text(json.dumps(kept), encoding="utf-8")
    cfg = compose(changed).cfg  # as if nobody had named it
    parts = build(cfg, tmp_path, pretrained=False)
    parts.data.close()
    assert parts.made.head is not None
    assert (parts.made.head.path, parts.made.head.found) == ("head", "guessed")
    assert set(before) == set(parts.model.state_dict())


def test_without_a_forward_pass_it_is_guessed_and_the_reason_told() -> None:
    found = find_head(strange.Stubborn(4, 3), forwards=[lambda twin: twin(torch.rand(2, 4))])
    assert found is not None
    assert (found.path, found.found) == ("body.0", "guessed")
    assert "guessed by the order of definition, as a forward pass fails: RuntimeError: only for" in found.describe()
    found = find_head(strange.Stubborn(4, 3))
    assert found is not None
    assert "as no sample of the inputs is known" in found.describe()


def test_a_part_that_ends_in_it_may_be_named() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)), nn.Linear(2, 2))
    assert [getattr(find_head(model, name), "path", None) for name in ("1", "1.0")] == ["1.2", "1.0"]


@pytest.mark.parametrize(
    ("name", "text"), [("haed", "no such module"), ("", "no such module"), ("pool", "not an output layer")]
)
def test_a_name_that_is_none_is_refused(name: str, text: str) -> None:
    model = CNN((1, 8, 8), 3)
    model.add_module("pool", nn.ReLU())
    with pytest.raises(UserError, match=text):
        find_head(model, name)


# Another in its place


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(4, 9),
        nn.Linear(4, 9, bias=False),
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
    done = cli("plan", *WINE, "finetune=head", f"model._target_=tests.finetune.strange.{network}", *other)
    assert done.code == 2
    assert f"finetune.head.replace: the output layer cannot be replaced: {reason}" in done.err
    assert "(found by a forward pass" in done.err
    assert "); another one: finetune.head.name=PATH" in done.err
    assert "let the network's class take num_classes" in done.err
    assert cli("plan", *WINE, "finetune=head", f"model._target_=tests.finetune.strange.{sized}").code == 0


def test_a_head_of_the_wrong_size_is_replaced_where_it_is_and_nothing_else(cli: Cli) -> None:
    done = cli("plan", *WINE, "finetune=head", "model._target_=tests.finetune.strange.Projected", "+model.classes=5")
    assert done.code == 0, done.err
    assert "output layer: a new answer (found by a forward pass)" in done.out
    assert "21 of 187 parameters train" in done.out


def test_layers_that_share_the_outputs_cannot_take_another_number_of_them(cli: Cli) -> None:
    done = cli("plan", *WINE, "finetune=head", "model._target_=tests.finetune.strange.Beside")
    assert done.code == 0, done.err
    done = cli(
        "plan", *WINE, "finetune=head", "model._target_=tests.finetune.strange.Beside", "finetune.head.replace=always"
    )
    assert done.code == 2
    assert "its parts make 3 outputs together, and how many each is to make is not known" in done.err


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["Bare", "WideAndDeep"])
def test_a_base_of_other_classes_gives_all_but_what_makes_the_outputs(cli: Cli, tmp_path: Path, name: str) -> None:
    asked = ("model=custom", "trust=[tests]", f"model._target_=tests.finetune.strange.{name}", *BRIEF)
    base = cli("train", "data.dataset.classes=[0,1,2,3]", *asked, f"hydra.run.dir={tmp_path}/base")
    assert base.code == 0, base.err
    done = cli(
        "train", "data.dataset.classes=[5,6,7]", *asked, "finetune=head", f"finetune.weights.path={tmp_path}/base"
    )
    assert done.code == 0, done.err
    assert "the classes of the base are" in done.out
    assert "2 loaded" in done.out


def test_another_layer_than_the_output_layer_is_named_but_not_replaced(cli: Cli) -> None:
    asked = [*WINE, "finetune=head", "model._target_=tests.finetune.strange.Projected", "finetune.head.name=head"]
    done = cli("plan", *asked)
    assert done.code == 0, done.err
    assert "output layer: head (as finetune.head.name says; a forward pass has its outputs from answer)\n" in done.out
    done = cli("plan", *asked, "+model.classes=5")
    assert done.code == 2
    assert "finetune.head.name: a new head would not change the outputs, which answer computes" in done.err
    assert "finetune.head.name=answer, or finetune.head.replace=never" in done.err
    assert cli("plan", *asked[:-1], "finetune.head.name=answer", "+model.classes=5").code == 0
