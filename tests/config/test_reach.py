"""What the arguments of an allowed `_target_` may not reach: addresses to fetch from, and folders of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightkit.common.errors import UserError, UserErrors
from lightkit.config import compose, instantiate
from lightkit.config.policy import DATASETS


@pytest.fixture(scope="module", autouse=True)
def _packages() -> None:
    for name in ("timm", "torchvision"):
        pytest.importorskip(name)


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


def test_no_target_fetches_from_where_its_arguments_say(project: Path) -> None:
    for key, typed in FETCHING.items():
        with pytest.raises(UserErrors) as caught:
            compose(["data=digits", *typed])
        what = f"would load what {key.rpartition('.')[2]} names, from anywhere"
        assert [error.key for error in caught.value.errors if what in error.what] == [key]


def test_trust_in_the_target_is_trust_in_its_arguments(project: Path) -> None:
    compose(["model=custom", RESNET, "+model.pretrained_cfg_overlay={tag: x}", "trust=[timm]"])


def test_a_node_that_was_never_checked_is_refused_when_it_is_built() -> None:
    node = {"_target_": "timm.models.resnet.resnet18", "pretrained": True, "pretrained_cfg": {"url": "http://x/y.pth"}}
    with pytest.raises(UserError, match=r"model\.pretrained_cfg: .* would load what pretrained_cfg names"):
        instantiate(node, key="model")


NAMED = ("data=torchvision", "data.dataset.name=MNIST", "data.dataset.download=true")
WRITING = {
    "by its class": ("data.dataset={_target_: torchvision.datasets.MNIST, root: OUT, download: true}",),
    "by its name": (*NAMED, "data.dataset.root=OUT"),
    "by two dots": (*NAMED, "data.dataset.root=../out"),
    "by its options": (
        *("data=torchvision", "data.dataset.name=EMNIST", "data.dataset.root=OUT"),
        "+data.dataset.options={split: letters, download: true}",
    ),
    "by position": ("data.dataset={_target_: torchvision.datasets.CIFAR10, _args_: [OUT, true, null, null, true]}",),
    "without a download": ("data.dataset={_target_: torchvision.datasets.ImageNet, root: OUT}",),
}


@pytest.mark.parametrize("way", WRITING)
def test_data_sets_write_in_the_project_only(project: Path, tmp_path: Path, way: str) -> None:
    out = tmp_path / "out"
    with pytest.raises(UserErrors) as caught:
        compose([text.replace("OUT", str(out)) for text in WRITING[way]])
    (error,) = [error for error in caught.value.errors if "would write outside of the project" in error.what]
    assert error.key == "data.dataset.root"
    assert DATASETS in str(error)


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


def test_a_trace_of_a_run_is_nothing_to_build(project: Path) -> None:
    with pytest.raises(UserErrors, match=r"lightkit\.runner\.trace\.RunTrace is not among what may be built"):
        compose(["+trainer.callbacks.trace={_target_: lightkit.runner.trace.RunTrace, path: out, checkpoints: x}"])
