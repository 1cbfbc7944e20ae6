"""What the arguments of an allowed `_target_` may not reach: addresses to fetch from, and folders of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightkit.common.errors import UserError
from lightkit.config import instantiate
from lightkit.config.policy import DATASETS

pytest.importorskip("timm")
pytest.importorskip("torchvision")

RESNET = "model._target_=timm.models.resnet.resnet18"
CFG = "{url: 'http://127.0.0.1:9/resnet18-f37072fd.pth', source: timm}"
FETCHING = {
    "model.pretrained_cfg": (RESNET, "+model.pretrained=true", f"+model.pretrained_cfg={CFG}"),
    "model.pretrained_cfg_overlay": ("model._target_=timm.models.resnet18", "+model.pretrained_cfg_overlay={file: x}"),
    "model.checkpoint_path": (RESNET, "+model.checkpoint_path=x.pth"),
    "model.cache_dir": (RESNET, "+model.cache_dir=/tmp/elsewhere"),
    "model.body.pretrained_cfg": (f"+model.body={{_target_: timm.models.resnet.resnet18, pretrained_cfg: {CFG}}}",),
    "data.augment[0].body.pretrained_cfg": (
        "data.augment=[{_target_: torch.nn.Identity, body: "
        f"{{_target_: timm.models.resnet18, pretrained_cfg: {CFG}}}}}]",
    ),
    "metrics.val.fid.feature_extractor_weights_path": (
        "+metrics.val.fid={_target_: torchmetrics.image.FrechetInceptionDistance, "
        "feature_extractor_weights_path: x.pth}",
    ),
    "metrics.val.clip.model_name_or_path": (
        "+metrics.val.clip={_target_: torchmetrics.multimodal.CLIPScore, model_name_or_path: ./jinaai}",
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("key", FETCHING)
def test_no_target_fetches_from_where_its_arguments_say(cli: Callable[..., Any], key: str) -> None:
    refusal = cli("train", "data=digits", *FETCHING[key])
    assert refusal.code == 2, refusal.err
    argument = key.rpartition(".")[2]
    assert f"{key}: " in refusal.err
    assert f"would load what {argument} names, from anywhere" in refusal.err
    assert not Path("outputs").exists()


def test_trust_in_the_target_is_trust_in_its_arguments(cli: Callable[..., Any]) -> None:
    composed = cli("config", "model=custom", RESNET, "+model.pretrained_cfg_overlay={tag: x}", "trust=[timm]")
    assert composed.code == 0, composed.err


def test_a_node_that_was_never_checked_is_refused_when_it_is_built() -> None:
    node = {"_target_": "timm.models.resnet.resnet18", "pretrained": True, "pretrained_cfg": {"url": "http://x/y.pth"}}
    with pytest.raises(UserError, match=r"model\.pretrained_cfg: .* would load what pretrained_cfg names"):
        instantiate(node, key="model")


WRITING = {
    "by its class": ("data.dataset={_target_: torchvision.datasets.MNIST, root: OUT, download: true}",),
    "by its name": (
        "data=torchvision",
        "data.dataset.name=MNIST",
        "data.dataset.root=OUT",
        "data.dataset.download=true",
    ),
    "by its options": (
        *("data=torchvision", "data.dataset.name=EMNIST", "data.dataset.root=OUT"),
        "+data.dataset.options={split: letters, download: true}",
    ),
    "by position": ("data.dataset={_target_: torchvision.datasets.CIFAR10, _args_: [OUT, true, null, null, true]}",),
    "by two dots": (
        "data=torchvision",
        "data.dataset.name=MNIST",
        "data.dataset.root=../out",
        "data.dataset.download=true",
    ),
    "without a download": ("data.dataset={_target_: torchvision.datasets.ImageNet, root: OUT}",),
}


@pytest.mark.thorough
@pytest.mark.parametrize("way", WRITING)
def test_data_sets_write_in_the_project_only(cli: Callable[..., Any], tmp_path: Path, way: str) -> None:
    out = tmp_path / "out"
    refusal = cli("train", *(text.replace("OUT", str(out)) for text in WRITING[way]))
    assert refusal.code == 2, refusal.err
    assert "would write outside of the project" in refusal.err
    assert "data.dataset.root" in refusal.err
    assert DATASETS in refusal.err
    assert not out.exists()


@pytest.mark.thorough
def test_data_sets_write_where_somebody_has_agreed(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, download, trusted = tmp_path / "out", "data.dataset.download=true", "trust=[torchvision.datasets.MNIST]"
    out.mkdir()
    Path("linked").symlink_to(out)

    def composed(root: object, *more: str) -> int:
        return cli("config", "data=torchvision", "data.dataset.name=MNIST", f"data.dataset.root={root}", *more).code

    assert [composed("datasets", download), composed("linked/sets", download), composed(out)] == [0, 0, 0]
    assert [composed(out, download), composed(out, download, trusted)] == [2, 0]
    monkeypatch.setenv(DATASETS, str(out))
    assert composed(out / "sets", download) == 0


def test_a_trace_of_a_run_is_nothing_to_build(cli: Callable[..., Any], tmp_path: Path) -> None:
    trace = f"{{_target_: lightkit.runner.trace.RunTrace, path: {tmp_path}/out, checkpoints: x}}"
    refusal = cli("train", f"+trainer.callbacks.trace={trace}")
    assert refusal.code == 2
    assert "lightkit.runner.trace.RunTrace is not among what may be built" in refusal.err
    assert not (tmp_path / "out").exists()
