"""The output layer is found in networks of every origin by what computes their outputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tests.finetune.strange as strange
from lightkit.assembly import build
from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.finetune.head import find_head, guess_head
from lightkit.finetune.new_head import outputs_of
from lightkit.models import CNN, MLP, TransformerClassifier, TransformerLM
from lightkit.models.zoo import timm_model, torchvision_model
from lightkit.runner import Runner
from tests.conftest import Outcome
from tests.finetune.whole import SHORT, notes, weights

Cli = Callable[..., Outcome]
WINE = ("data=wine", "model=custom", "trust=[tests]")
OWN: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "mlp": (lambda: MLP(in_features=4, num_classes=3, hidden=[5]), torch.rand(2, 4)),
    "cnn": (lambda: CNN((1, 8, 8), 3), torch.rand(2, 1, 8, 8)),
    "transformer": (lambda: TransformerClassifier((6,), 3, dim=8, depth=1, heads=2), torch.rand(2, 6)),
    "transformer_lm": (lambda: TransformerLM(7, 5, dim=8, depth=1, heads=2), torch.zeros(2, 5, dtype=torch.long)),
    "tied": (lambda: TransformerLM(7, 5, dim=8, depth=1, heads=2, tie=True), torch.zeros(2, 5, dtype=torch.long)),
}


def ran(model: nn.Module, x: Tensor) -> str | None:
    """Path of the output layer that a forward pass tells."""
    head = find_head(model, forwards=[lambda twin: twin(x)])
    assert head is None or head.found == "computed", head
    return head and head.path


@pytest.mark.thorough
@pytest.mark.parametrize("name", OWN)
def test_own_models_end_in_their_head(name: str) -> None:
    make, x = OWN[name]
    guessed = guess_head(make())
    assert guessed is not None
    assert guessed.path == "head"
    assert ran(make(), x) == "head"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("resnet18", "fc"),
        ("mobilenet_v3_small", "classifier.3"),
        ("squeezenet1_1", "classifier.1"),
        ("vgg11", "classifier.6"),
        ("densenet121", "classifier"),
        ("convnext_tiny", "classifier.2"),
    ],
)
def test_heads_of_torchvision(name: str, head: str) -> None:
    with torch.device("meta"):
        model = torchvision_model(name, 7)
        assert ran(model, torch.rand(2, 3, 64, 64)) == head
    guessed = guess_head(model)
    assert guessed is not None
    assert guessed.path == head
    assert outputs_of(model, head) == 7


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("resnet18", "fc"),
        ("vit_tiny_patch16_224", "head"),
        ("convnext_atto", "head.fc"),
        ("deit_tiny_distilled_patch16_224", "head"),
    ],
)
def test_heads_of_timm(name: str, head: str) -> None:
    with torch.device("meta"):
        model = timm_model(name, 7)
        assert ran(model, torch.rand(2, 3, 224, 224)) == head
    guessed = guess_head(model)
    assert guessed is not None
    assert guessed.path == head


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "head", "trained"),
    [
        ("Unusual", "zz", ["zz.weight", "zz.bias"]),
        ("Projected", "answer", ["answer.weight", "answer.bias"]),
        ("Bare", "out", ["out", "shift"]),
        ("Auxiliary", "main", ["main.weight", "main.bias"]),
        ("Angles", "angles", ["angles.weight", "angles.scale"]),
        ("Prototypes", "prototypes", ["prototypes"]),
        ("Cool", "cool", ["cool.weight"]),
        ("Quiet", "last", ["last.weight", "last.bias"]),
        ("Named", "two", ["two.weight", "two.bias"]),
        ("Averaged", "ends.0", [f"ends.{n}.{name}" for n in range(3) for name in ("weight", "bias")]),
        ("WideAndDeep", "wide", ["last.weight", "last.bias", "wide.weight", "wide.bias"]),
        ("Listed", "ws.1", ["ws.1"]),
        ("BareLinear", "out", ["out", "shift"]),
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
    done = cli("train", *WINE, "model._target_=tests.finetune.strange.Averaged", "finetune=head", "trainer.steps=2")
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
