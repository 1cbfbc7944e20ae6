from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.common.errors import UserErrors
from lightkit.config import compose
from lightkit.config.missing import PACKAGES, package_of


def said(*overrides: str) -> str:
    with pytest.raises(UserErrors) as raised:
        compose(overrides)
    return str(raised.value)


@pytest.mark.parametrize(
    ("target", "package"),
    [
        ("segmentation_models_pytorch.Unet", "segmentation-models-pytorch"),
        ("cv2.dnn.Net", "opencv-python"),
        ("monai.networks.nets.UNet", "monai"),
        ("skimage.Net", "scikit-image"),
    ],
)
def test_a_package_that_is_not_installed_is_named_as_on_pypi(target: str, package: str) -> None:
    text = said(f"model._target_={target}")
    assert f"{target} needs the package {target.partition('.')[0]}, which is not installed" in text
    assert f"fix:      pip install {package}\n" in text
    assert "choices" not in text


def test_the_usual_names_are_known() -> None:
    assert (package_of("sklearn"), package_of("PIL"), package_of("yaml")) == ("scikit-learn", "pillow", "pyyaml")
    assert package_of("timm") == "'lightkit[vision]'"
    assert package_of("zebra") is None
    assert not [name for name, package in PACKAGES.items() if " " in name + package]


def test_of_a_module_that_nobody_knows_no_package_is_made_up() -> None:
    text = said("model._target_=zebra_of_mine.Net")
    assert "pip install PACKAGE" in text
    assert "choices" not in text


def test_a_class_without_its_module_is_found_in_the_project(project: Path) -> None:
    (project / "conf").mkdir(exist_ok=True)
    (project / "parts").mkdir()
    (project / "parts" / "nets.py").write_text("from torch import nn\n\n\nclass Zebra(nn.Module):\n    pass\n")
    (project / "outputs").mkdir(exist_ok=True)
    (project / "outputs" / "copy.py").write_text("class Zebra:\n    pass\n")
    text = said("model._target_=Zebra")
    assert "did you mean parts.nets.Zebra?" in text
    assert "copy" not in text
    assert "write the full path: package.module.Name" in said("model._target_=Giraffe")


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ("optim._target_=SGD", "torch.optim.SGD"),
        ("model._target_=MLP", "lightkit.models.MLP"),
        ("loss._target_=L1Loss", "torch.nn.L1Loss"),
        ("metrics.val.f1._target_=F1Score", "torchmetrics.F1Score"),
    ],
)
def test_so_it_is_in_the_packages_that_such_classes_come_from(override: str, path: str) -> None:
    assert f"did you mean {path}?" in said(override)
