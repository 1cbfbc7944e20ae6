from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from lightkit.checkpoint.fitting import fit
from lightkit.checkpoint.weights import LoadReport, Weights, load_weights
from lightkit.common.errors import UserError
from tests.checkpoint.parts import net, same


def given(state: dict) -> Weights:
    return Weights(dict(state), Path("x.pt"), "state dict")


def without(state: dict, *names: str) -> dict:
    return {name: tensor for name, tensor in state.items() if not name.startswith(names)}


THREE = net(1).state_dict()
FIVE = {**THREE, "head.weight": torch.ones(5, 5), "head.bias": torch.ones(5)}
HALF = {**THREE, "head.weight": torch.ones(5, 5)}
EXTRA = {**THREE, "criterion.weight": torch.ones(3)}
BODY = without(THREE, "head")

# State, strict, head -> names that keep the model's own values, or the message of the refusal
CASES = {
    "same": (THREE, "exact", "refuse", ()),
    "an extra name": (EXTRA, "exact", "refuse", "the names or shapes differ .*1 unexpected"),
    "an extra name, complete": (EXTRA, "complete", "refuse", ()),
    "a missing name": (without(THREE, "layers.a"), "exact", "refuse", "2 missing"),
    "a missing name, complete": (without(THREE, "layers.a"), "complete", "refuse", "does not find all its tensors"),
    "a missing name, matching": (without(THREE, "layers.a"), "matching", "refuse", ("layers.a",)),
    "no counter": (without(THREE, "layers.norm.num"), "exact", "refuse", ("layers.norm.num",)),
    "other head": (FIVE, "exact", "refuse", "2 reshaped"),
    "other head, matching": (FIVE, "matching", "refuse", "its last layer has another shape"),
    "other head, keep": (FIVE, "exact", "keep", ("head",)),
    "other head, reset": (FIVE, "exact", "reset", ("head",)),
    "same head, reset": (THREE, "exact", "reset", ("head",)),
    "half a head, keep": (HALF, "exact", "keep", ("head",)),
    "a transposed head, keep": (THREE | {"head.weight": torch.ones(5, 3)}, "exact", "keep", ("head",)),
    "a bias without its weight, keep": (without(THREE, "head.weight"), "exact", "keep", ("head",)),
    "a weight without its bias, keep": (without(THREE, "head.bias"), "exact", "keep", ("head.bias",)),
    "a bias without its weight, matching": (without(THREE, "layers.a.weight"), "matching", "refuse", ("layers.a",)),
    "no head": (BODY, "exact", "refuse", "2 missing"),
    "no head, keep": (BODY, "exact", "keep", ("head",)),
    "another body": (THREE | {"layers.a.weight": torch.ones(5, 9)}, "exact", "keep", "1 reshaped"),
    "another body, matching": (THREE | {"layers.a.weight": torch.ones(5, 9)}, "matching", "keep", ("layers.a.",)),
    "whole numbers": (THREE | {"head.bias": torch.ones(3, dtype=torch.int64)}, "exact", "refuse", "1 reshaped"),
    "nothing fits": ({"x": torch.ones(2)}, "matching", "keep", "not one tensor fits"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_all_that_fits_or_nothing(case):
    state, strict, head, expected = CASES[case]
    model, before, bits = net(2), net(2), {name: t.clone() for name, t in state.items()}
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected) as caught:
            load_weights(model, given(state), strict=strict, head=head)
        assert caught.value.exit_code == 2
        assert same(model, before)  # not one tensor was touched
        return
    report = load_weights(model, given(state), strict=strict, head=head)
    own, old = model.state_dict(), before.state_dict()
    for name in own:
        kept = name.startswith(expected) if expected else False
        assert torch.equal(own[name], old[name] if kept else THREE[name]), name
        assert (name in report.loaded) == (not kept)
    assert all(torch.equal(state[name], bits[name]) for name in state)


def test_the_report_names_everything():
    state = {
        "layers.a.weight": torch.ones(5, 4),
        "layers.a.bias": torch.ones(5),
        "layers.norm.weight": torch.ones(6),
        "head.bias": torch.ones(3, dtype=torch.int32),
        "fc.weight": torch.ones(3, 5),
    }
    with pytest.raises(UserError, match="its last layer has another shape"):
        load_weights(net(), given(state), strict="matching")
    report = load_weights(net(), given(state), strict="matching", head_name="layers.a")
    assert report.loaded == ("layers.a.weight", "layers.a.bias")
    assert report.reshaped == {"head.bias": ("float32", "int32"), "layers.norm.weight": ("5", "6")}
    assert report.unexpected == ("fc.weight",)
    assert report.missing[:2] == ("layers.norm.bias", "layers.norm.running_mean")
    assert report.nearest == {"head.weight": "fc.weight"} | {
        n: "fc.weight" for n in report.nearest if n != "head.weight"
    }
    assert report.summary() == "2 loaded, 4 missing, 1 unexpected, 2 reshaped"
    columns, rows = report.table()
    assert columns == ["what", "tensor", "shape", "note"]
    assert ["missing", "head.weight", "3×5", "nearest in the file: fc.weight"] in rows
    assert ["unexpected", "fc.weight", "3×5", ""] in rows
    assert ["reshaped", "layers.norm.weight", "5", "in the file: 6"] in rows
    assert report.text(limit=2).splitlines()[-1] == "    … and 5 more"


def test_the_report_says_why_a_layer_was_left():
    state = THREE | {"head.weight": torch.ones(5, 3)}
    report = load_weights(net(), given(state), head="keep")
    why = "head.weight is 5×3 in the file, 3×5 here: transposed"
    assert report.reasons == {"head.weight": why, "head.bias": why}
    assert report.left == ("head.weight", "head.bias")
    assert ["left", "head.bias", "", f"{why}; keeps the values the model was built with"] in report.table()[1]
    report = load_weights(net(), given(without(THREE, "layers.a.weight")), strict="matching")
    assert report.reasons == {"layers.a.bias": "layers.a.weight is not in the file"}
    with pytest.raises(UserError, match=r"reshaped +head\.weight +3×5 +in the file: 5×3: transposed"):
        load_weights(net(), given(state))


def test_a_refusal_shows_the_nearest_names():
    state = without(THREE, "head") | {"fc.weight": THREE["head.weight"], "fc.bias": THREE["head.bias"]}
    with pytest.raises(UserError) as caught:
        load_weights(net(), given(state))
    text = str(caught.value)
    assert text.startswith(
        "x.pt: the weights were not loaded: the names or shapes differ (7 loaded, 2 missing, 2 unexp"
    )
    assert "missing     head.weight  3×5  nearest in the file: fc.weight" in text
    assert "fix:      strict=complete or matching, head=keep or reset, or a mapping of names" in text
    with pytest.raises(UserError) as caught:
        fit(net(), state, source="x.pt")
    assert "fix:" not in str(caught.value), "a command without these choices does not offer them"


def test_a_shared_prefix_is_told():
    state = {f"model.{name}": t for name, t in THREE.items()} | {"loss.w": torch.ones(1)}
    report = load_weights(net(), given(state), strict="complete")
    assert report.prefix == "'model.' taken off the names in the file"
    assert report.unexpected == ("loss.w",)
    model = nn.ModuleDict({"backbone": net(2), "other": nn.Linear(1, 1)})
    report = load_weights(model, given(THREE), strict="matching")
    assert report.prefix == "'backbone.' put in front of the names in the file"
    assert same(model["backbone"], net(1))


def test_values_take_the_precision_of_the_model():
    model = net(2).double()
    load_weights(model, given({name: t.half() if t.is_floating_point() else t for name, t in THREE.items()}))
    assert model.head.weight.dtype == torch.float64
    assert torch.equal(model.head.weight, THREE["head.weight"].half().double())
    assert model.head.weight.requires_grad


def test_tied_weights_need_one_name():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(4, 3)
            self.lm_head = nn.Linear(3, 4, bias=False)
            self.lm_head.weight = self.embed.weight

    model = Tied()
    assert load_weights(model, given({"embed.weight": torch.ones(4, 3)})).missing == ()
    assert model.lm_head.weight.unique().tolist() == [1.0]


@pytest.mark.parametrize("name", ["heads", "fc", "classifier"])
def test_the_usual_names_of_heads_are_known(name):
    model = nn.ModuleDict({name: nn.Linear(2, 3), "zbody": nn.Linear(2, 2)})
    state = {n: torch.ones(1) if n.startswith(name) else torch.ones_like(t) for n, t in model.state_dict().items()}
    assert load_weights(model, given(state), head="keep").left == (f"{name}.weight", f"{name}.bias")


def test_a_head_of_another_name_can_be_named():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
    other = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 9)).state_dict()
    assert load_weights(model, given(other), head="keep").left == ("1.weight", "1.bias")  # the last module
    assert load_weights(model, given(other), head="keep", head_name="1").left == ("1.weight", "1.bias")
    with pytest.raises(UserError, match="head_name: the model has no such layer"):
        load_weights(model, given(other), head="keep", head_name="top")


def test_other_ways_are_refused():
    for wrong in ({"strict": "exactly"}, {"head": "drop"}):
        with pytest.raises(UserError, match="no such way to load weights"):
            load_weights(net(), given(THREE), **wrong)
    assert (LoadReport("x.pt").summary(), LoadReport("x.pt").text()) == ("0 loaded", "")


def diverged(name: str, value: float) -> dict:
    state = {name: tensor.clone() for name, tensor in THREE.items()}
    state[name].view(-1)[:2] = value
    return state


@pytest.mark.parametrize(
    ("value", "kind"),
    [("nan", torch.float32), ("inf", torch.float16), ("-inf", torch.bfloat16), ("nan", torch.float64)],
)
def test_weights_that_diverged_are_no_start(value, kind):
    state = diverged("layers.a.weight", float(value))
    state = {name: t.to(kind) if t.is_floating_point() else t for name, t in state.items()}
    model = net(2)
    with pytest.raises(UserError, match="x.pt: the weights were not loaded: 1 tensor") as caught:
        load_weights(model, given(state), asked="finetune.weights.")
    assert f"layers.a.weight: 2 of 20 values are {'NaN' if value == 'nan' else 'infinite'}" in str(caught.value)
    assert "finetune.weights.mapping={NAME: null}" in str(caught.value)
    assert same(model, net(2))


def test_what_is_not_loaded_may_have_diverged():
    state = diverged("head.weight", float("nan"))
    assert load_weights(net(2), given(state), head="reset").left == ("head.weight", "head.bias")
    assert fit(net(2), state, source="a run that goes on").loaded
    huge = THREE | {"layers.a.weight": torch.full((5, 4), 3e38)}
    assert load_weights(net(2), given(huge)).loaded


def test_infinities_that_belong_there():
    def masked() -> nn.Module:
        model = net()
        model.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))
        return model

    state = masked().state_dict()
    assert "mask" in load_weights(masked(), given(state)).loaded
    state["mask"] = state["mask"].t()
    with pytest.raises(UserError, match="mask: 3 of 9 values are infinite"):
        load_weights(masked(), given(state))
