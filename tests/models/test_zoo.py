from __future__ import annotations

import builtins
import sys

import pytest
import torch

from lightkit.common import hub
from lightkit.common.errors import UserError
from lightkit.models import timm_model, torchvision_model, zoo


@pytest.fixture
def vision():
    return pytest.importorskip("torchvision.models")


@pytest.mark.parametrize(("name", "channels"), [("resnet18", 3), ("mobilenet_v3_small", 1), ("googlenet", 3)])
def test_torchvision_by_name(vision, name, channels):
    model = torchvision_model(name, 5, in_channels=channels)
    output = model.train()(torch.randn(2, channels, 64, 64))
    assert output.shape == (2, 5)


def test_torchvision_options(vision):
    model = torchvision_model("mobilenet_v3_small", 5, options={"dropout": 0.7})
    assert model.classifier[2].p == 0.7
    with pytest.raises(UserError, match=r"(?s)options: mobilenet_v3_small has no such option.*nearest: dropout"):
        torchvision_model("mobilenet_v3_small", 5, options={"droput": 0.7})
    with pytest.raises(UserError, match=r"options: resnet18 does not take these options"):
        torchvision_model("resnet18", 5, options={"droput": 0.7})


@pytest.mark.parametrize("option", ["weights", "weights_backbone", "pretrained", "pretrained_backbone"])
def test_torchvision_options_load_no_files(vision, monkeypatch, option):
    monkeypatch.setattr(vision, "get_model", None)
    match = rf"options\.{option}: weights are not loaded by way of the options\n.*finetune\.weights\.path=FILE"
    with pytest.raises(UserError, match=match):
        torchvision_model("resnet18", 5, options={"zero_init_residual": True, option: "DEFAULT"})


@pytest.mark.parametrize(
    "option",
    ["checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained_strict", "cache_dir", "pretrained"],
)
def test_timm_options_load_no_files(monkeypatch, tmp_path, option):
    timm = pytest.importorskip("timm")
    assert timm_model("vit_tiny_patch16_224", 5, options={"weight_init": "skip", "depth": 1}) is not None
    monkeypatch.setattr(timm, "create_model", None)
    match = rf"(?s)options\.{option}: weights are not loaded .* model\.pretrained for the weights that"
    with pytest.raises(UserError, match=match):
        timm_model("resnet18", 5, pretrained=True, options={option: str(tmp_path / "evil.pth")})


def test_names_of_timm_are_no_places_to_load_from():
    pytest.importorskip("timm")
    for name in ("hf-hub:somebody/resnet18", "hf_hub:somebody/resnet18", "local-dir:weights/resnet18"):
        with pytest.raises(UserError, match="timm has no such model"):
            timm_model(name, 5)


def test_unknown_names(vision):
    pytest.importorskip("timm")
    with pytest.raises(UserError, match=r"(?s)torchvision has no such model.*nearest: resnet18"):
        torchvision_model("resnet81", 5)
    with pytest.raises(UserError, match=r"(?s)resnet18 has no such weights.*IMAGENET1K_V1"):
        torchvision_model("resnet18", 5, weights="IMAGENET")
    with pytest.raises(UserError, match=r"(?s)timm has no such model.*nearest: resnet18"):
        timm_model("resnet_18", 5)


def test_pretrained_weights_fit_another_head_and_other_channels(vision, monkeypatch):
    torch.manual_seed(0)
    source = vision.resnet18()
    fetched = []

    def fake(name, *, weights=None, progress=True, **options):
        fetched.append(weights)
        return source if weights is not None else vision.resnet18(**options)

    monkeypatch.setattr(vision, "get_model", fake)
    model = torchvision_model("resnet18", 5, weights="DEFAULT", in_channels=4)
    assert fetched[1] == vision.ResNet18_Weights.IMAGENET1K_V1
    assert torch.equal(model.layer4[1].conv2.weight, source.layer4[1].conv2.weight)
    assert model.fc.out_features == 5
    assert model.fresh_parameters == ("fc.weight", "fc.bias")
    grey = torch.randn(1, 1, 32, 32)
    theirs, ours = source.conv1(grey.expand(1, 3, 32, 32)), model.conv1(grey.expand(1, 4, 32, 32))
    assert ours.std().item() == pytest.approx(theirs.std().item(), rel=0.5)
    same = torchvision_model("resnet18", 1000, weights="IMAGENET1K_V1")
    assert torch.equal(same.fc.weight, source.fc.weight)
    assert same.fresh_parameters == ()


@pytest.mark.parametrize(
    ("known", "classifier", "fresh"),
    [
        (3, "fc", ()),
        (1000, "fc", ("fc.weight", "fc.bias")),
        (0, ("fc", "head_dist"), ("fc.weight", "fc.bias")),
        (1000, None, ()),
    ],
)
def test_timm_leaves_classifiers_of_other_classes_out(monkeypatch, known, classifier, fresh):
    timm = pytest.importorskip("timm")
    real = timm.create_model

    def fake(name, *, pretrained=False, **options):
        model = real(name, **options)
        model.pretrained_cfg = {**model.pretrained_cfg, "num_classes": known, "classifier": classifier}
        return model

    monkeypatch.setattr(timm, "create_model", fake)
    assert timm_model("resnet10t", 3, pretrained=True).fresh_parameters == fresh
    assert not hasattr(timm_model("resnet10t", 3), "fresh_parameters")


def test_weights_of_another_model_are_refused(vision, monkeypatch):
    wrong = vision.mobilenet_v3_small()
    monkeypatch.setattr(
        vision, "get_model", lambda name, weights=None, progress=True, **o: wrong if weights else vision.resnet18(**o)
    )
    with pytest.raises(UserError, match="the weights do not fit the model"):
        torchvision_model("resnet18", 5, weights="DEFAULT")


def test_weights_that_cannot_be_fetched(vision, monkeypatch):
    timm = pytest.importorskip("timm")

    def refuse(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr("torchvision._internally_replaced_utils.load_state_dict_from_url", refuse, raising=False)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", refuse)
    with pytest.raises(UserError, match=r"the weights of resnet18 cannot be fetched: no route to host"):
        torchvision_model("resnet18", 5, weights="DEFAULT")
    monkeypatch.setattr(timm, "create_model", refuse)
    with pytest.raises(UserError, match=r"the weights of resnet18 cannot be fetched: no route to host"):
        timm_model("resnet18", 5, pretrained=True)


def test_timm_by_name():
    pytest.importorskip("timm")
    model = timm_model("resnet10t", 5, in_channels=1, options={"drop_rate": 0.1})
    assert model(torch.randn(2, 1, 32, 32)).shape == (2, 5)
    with pytest.raises(UserError, match=r"options: resnet10t does not take these options"):
        timm_model("resnet10t", 5, options={"droprate": 0.1})


@pytest.mark.parametrize(("make", "package"), [(torchvision_model, "torchvision"), (timm_model, "timm")])
def test_a_missing_package(make, package, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(hub.importlib, "import_module", lambda name: without(name))
    with pytest.raises(UserError, match=rf"{package} is not installed(.|\n)*lightkit\[vision\]"):
        make("resnet18", 5)


def test_a_grey_image_is_seen_as_in_three_colours():
    weight, image = torch.randn(4, 3, 3, 3), torch.randn(2, 1, 5, 5)
    grey = zoo._adapted(weight, torch.Size((4, 1, 3, 3)))
    assert grey is not None
    expected = torch.nn.functional.conv2d(image.expand(-1, 3, -1, -1), weight)
    torch.testing.assert_close(torch.nn.functional.conv2d(image, grey), expected)


def test_a_model_without_convolution_keeps_its_channels():
    with pytest.raises(UserError, match="no convolution to adapt"):
        zoo._set_channels(torch.nn.Linear(2, 2), 1)
