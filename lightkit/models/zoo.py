"""Models of torchvision and timm by name.

Neither package is imported before one of these functions is called. A model that was given pretrained weights has an
attribute `fresh_parameters`: the names of those that the weights had nothing for, which have to train.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.common.argument_checks import check_choice
from lightkit.common.downloads import checked_downloads
from lightkit.common.errors import UserError
from lightkit.common.hub import installed
from lightkit.models.parts import check_sizes

_LOADING = re.compile(r"pretrained|checkpoint|weights(_|$)|cache_dir$")
"""Options of the two packages that name files or addresses to load; their names begin so."""
_MOBILENET_OPTIONS = ["width_mult", "reduced_tail", "dilated"]
"""Options that torchvision's MobileNetV3 takes before its class is called."""
_OF_DENSE_HEADS = re.compile(r"classifier|predictor|classification_head")
"""In the names of the heads of models of segmentation and detection, which have several."""


def torchvision_model(
    name: str,
    num_classes: int,
    *,
    weights: str | None = None,
    in_channels: int = 3,
    options: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Build a model of torchvision (https://pytorch.org/vision/stable/models.html) by name.

    It is one of classification, of segmentation such as `deeplabv3_resnet50`, or of detection such as
    `fasterrcnn_resnet50_fpn`, which count the background as the first class.

    Pretrained weights are loaded into everything that fits; a head for another number of classes starts new, and the
    first convolution is adapted to another number of channels.

    Args:
        name: Such as `resnet18` or `vit_b_16`.
        num_classes: Size of the output.
        weights: `DEFAULT` or the name of a set of weights such as `IMAGENET1K_V1`; None starts from random weights.
        in_channels: Channels of the images.
        options: Further arguments of the model's function, but for those that load files.

    Raises:
        UserError: torchvision is missing, the name, the weights or an option are unknown, an option would load a file,
            or the weights cannot be fetched.
    """
    check_sizes(num_classes=num_classes, in_channels=in_channels)
    _refuse_loading(options, own="model.weights")
    models = _package("torchvision.models", "torchvision")
    names = models.list_models(module=models)
    dense = [own for part in (models.segmentation, models.detection) for own in models.list_models(module=part)]
    check_choice("name", name, [*names, *dense], "torchvision has no such model")
    chosen = None
    if weights is not None:
        entries = models.get_model_weights(name)
        valid = ["DEFAULT", *(entry.name for entry in entries)]
        check_choice("weights", weights, valid, f"{name} has no such weights")
        chosen = entries[weights]
    settings = dict(options or {})
    if name in ("googlenet", "inception_v3"):  # no auxiliary heads: with them outputs in training are tuples
        settings = {"aux_logits": False, "init_weights": True, "transform_input": chosen is not None, **settings}
    if name in dense:  # by default the weights of their backbones are downloaded
        settings |= {"weights_backbone": None}
    model = _call(models.get_model, name, settings, num_classes=num_classes)
    # Some models of torchvision take any keyword and ignore it.
    takers = type(model), models.get_model_builder(name)
    accepted = [argument for taker in takers for argument in inspect.signature(taker).parameters] + _MOBILENET_OPTIONS
    for option in options or ():
        check_choice("options", option, accepted, f"{name} has no such option")
    if in_channels != 3:
        _set_channels(model, in_channels)
    if chosen is not None:
        # torchvision renames keys of some old files while it loads them, so a model of its own does the loading.
        source = _fetch(lambda: _call(models.get_model, name, options, weights=chosen, progress=False), name)
        model.fresh_parameters = _load(model, source.state_dict())  # type: ignore[assignment]
    return model


def timm_model(
    name: str,
    num_classes: int,
    *,
    pretrained: bool = False,
    in_channels: int = 3,
    options: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Build a model of timm (https://huggingface.co/docs/timm).

    Args:
        name: Such as `resnet18` or, with the tag of a set of weights, `resnet18.a1_in1k`.
        num_classes: Size of the output.
        pretrained: Load pretrained weights; a head for another number of classes starts new.
        in_channels: Channels of the images.
        options: Further arguments of the model, but for those that load files.

    Raises:
        UserError: timm is missing, the name or an option is unknown, an option would load a file, or the weights cannot
            be fetched.
    """
    check_sizes(num_classes=num_classes, in_channels=in_channels)
    _refuse_loading(options, own="model.pretrained")
    timm = _package("timm", "timm")
    names = timm.list_models()
    if name.partition(".")[0] not in names:
        raise UserError("timm has no such model", argument="name", received=name, choices=names, family="wrong-value")
    sizes = {"num_classes": num_classes, "in_chans": in_channels, "pretrained": pretrained}
    if not pretrained:
        return _call(timm.create_model, name, options, **sizes)
    model = _fetch(lambda: _call(timm.create_model, name, options, **sizes), name)
    facts: Any = getattr(model, "pretrained_cfg", None) or {}
    classifiers = facts.get("classifier") or ()
    paths = (classifiers,) if isinstance(classifiers, str) else classifiers
    if facts.get("num_classes") == num_classes:
        paths = ()
    # timm has no weights for a classifier of other classes.
    model.fresh_parameters = tuple(n for n, _ in model.named_parameters() if n.rpartition(".")[0] in paths)
    return model


def _refuse_loading(options: Mapping[str, Any] | None, *, own: str) -> None:
    """Refuse options that load a file from anywhere: neither trust nor a checksum would be asked for."""
    for option in options or {}:
        if _LOADING.match(option):
            what = "weights are not loaded by way of the options"
            fix = f"finetune.weights.path=FILE for a file, {own} for the weights that the package offers"
            raise UserError(what, argument=f"options.{option}", fix=fix, family="contradiction")


def _package(module: str, package: str) -> Any:
    return installed(module, f'pip install "lightkit[vision]" (or pip install {package})')


def _call(make: Any, name: str, options: Mapping[str, Any] | None, **sizes: Any) -> nn.Module:
    try:
        return make(name, **sizes, **(options or {}))
    except (TypeError, ValueError) as error:
        if not options:
            raise
        what = f"{name} does not take these options: {error}"
        raise UserError(what, argument="options", received=options, family="wrong-arguments") from error


def _fetch(fetch: Any, name: str) -> Any:
    try:
        with checked_downloads():
            return fetch()
    except UserError:
        raise
    except (OSError, RuntimeError) as error:
        what = f"the weights of {name} cannot be fetched: {error}"
        fix = "check the network, put the file into the cache (TORCH_HOME, HF_HOME), or start from random weights"
        raise UserError(what, argument="", fix=fix, family="weights") from error


def _set_channels(model: nn.Module, channels: int) -> None:
    """Replace the first convolution by one for another number of input channels."""
    for path, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            parent, _, name = path.rpartition(".")
            keys = ("out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
            same = {key: getattr(module, key) for key in keys}
            widened = nn.Conv2d(channels, bias=module.bias is not None, **same)
            setattr(model.get_submodule(parent), name, widened)
            return
    raise UserError("the model has no convolution to adapt", argument="in_channels", expected="3", received=channels)


def _load(model: nn.Module, weights: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Load what fits, refuse what lacks more than head and input channels, and return what was not reached."""
    own, fitting = model.state_dict(), {}
    for name, tensor in weights.items():
        if name not in own:
            continue
        value = _adapted(tensor, own[name].shape)
        if value is not None:
            fitting[name] = value
    missing = [name for name in own if name not in fitting]
    heads = {name.rpartition(".")[0] for name in missing}
    if len(heads) > 1 and not all(map(_OF_DENSE_HEADS.search, heads)):
        raise UserError("the weights do not fit the model", argument="weights", received=missing, family="weights")
    model.load_state_dict(fitting, strict=False)
    return tuple(missing)


def _adapted(tensor: Tensor, shape: torch.Size) -> Tensor | None:
    """Fit a tensor to a shape by adding up or repeating its input channels; None when it does not fit."""
    if tensor.shape == shape:
        return tensor
    same_but_channels = tensor.ndim == 4 and tensor.shape[:1] + tensor.shape[2:] == shape[:1] + shape[2:]
    if not same_but_channels or tensor.shape[1] != 3:
        return None
    if shape[1] == 1:  # a grey image is then seen as its copy in three colours would be
        return tensor.sum(1, keepdim=True)
    # Repeated channels keep the size of the output when their weights shrink with their number.
    repeated = tensor.repeat(1, math.ceil(shape[1] / 3), 1, 1)[:, : shape[1]]
    return repeated * (3 / shape[1])
