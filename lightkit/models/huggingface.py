"""Models of transformers by name; the package is not imported before `huggingface_model` is called."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.common.argument_checks import check_choice
from lightkit.common.errors import UserError
from lightkit.common.hub import KINDS, load_by, local


def huggingface_model(
    name: str,
    *,
    pretrained: bool = True,
    task: str | None = None,
    config: Mapping[str, Any] | None = None,
    revision: str = "main",
    trust_remote_code: bool = False,
    info: Any = None,
) -> nn.Module:
    """Build a model of transformers (https://huggingface.co/docs/transformers), with an output layer for the data.

    It takes a batch of inputs, or a dict of its arguments, and gives its outputs by name. An output layer of another
    size than that of the weights starts new.

    Args:
        name: Name on the Hub, or a folder; without weights also a kind of model, such as `bert`.
        pretrained: Load its weights, from safetensors alone; otherwise it is built from its configuration.
        task: `sequence_classification`, `token_classification`, `causal_lm`, `masked_lm` or `image_classification`;
            None goes by the data.
        config: Keys of its configuration to change, such as `{hidden_size: 32}`.
        revision: Commit, branch or tag on the Hub.
        trust_remote_code: Run the code that the name brings, in which there may be anything: that of a folder, or of
            the commit that `revision` names.
        info: Facts about the data (`lightkit.data.DataInfo`).

    Raises:
        UserError: transformers is missing, there is no such model, task or key, the weights are none in safetensors, or
            the data have more tokens, or longer texts, than the model.
    """
    usual = "image_classification" if len(info.input_shape) == 3 else "sequence_classification"
    kind = task or info.more.get("objective") or (usual if info.vocab_size is None else "causal_lm")
    check_choice("task", kind, KINDS, "no such task")

    def build(package: Any) -> nn.Module:
        package.logging.set_verbosity_error()
        own = name in package.CONFIG_MAPPING and not pretrained
        make = getattr(package, f"AutoModelFor{kind.title().replace('_', '').replace('Lm', 'LM')}")
        if not own:
            _judge_code(package, name, revision, trusted=trust_remote_code, pretrained=pretrained)
        plain = package.AutoConfig.for_model(name) if own else package.AutoConfig.from_pretrained(where, **from_hub)
        given = dict(config or {})
        for key in given:
            if not hasattr(plain, key):
                what, choices = f"the configuration of {name} has no such key", sorted(plain.to_dict())
                raise UserError(what, argument=f"config.{key}", received=key, choices=choices)
        if not pretrained and "num_tokens" in info.more:
            given.setdefault("vocab_size", info.more["num_tokens"])
        settings = type(plain)(**given) if own else type(plain).from_dict({**plain.to_dict(), **given})
        _suit(settings, info, classifies=not kind.endswith("lm"))
        if not pretrained:
            return make.from_config(settings, trust_remote_code=trust_remote_code)
        how = {"use_safetensors": True, "ignore_mismatched_sizes": True, "output_loading_info": True, **from_hub}
        model, report = make.from_pretrained(where, config=settings, dtype=torch.float32, **how)
        new = {*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}
        model.fresh_parameters = tuple(key for key, _ in model.named_parameters() if key in new)
        return model.train()

    where, from_hub = local(name), {"revision": revision, "trust_remote_code": trust_remote_code}
    model = load_by("transformers", build, "name", name)
    model.register_forward_pre_hook(_by_name, with_kwargs=True)
    if kind == "token_classification":
        model.register_forward_hook(_classes_first)
    return model


def _judge_code(package: Any, name: str, revision: str, *, trusted: bool, pretrained: bool) -> None:
    """Refuse code that comes with a model, unless it is trusted, and is that of a folder or of one commit."""
    facts, _ = package.PretrainedConfig.get_config_dict(local(name), revision=revision)
    files = ", ".join(sorted({f"{code.rpartition('.')[0]}.py" for code in facts.get("auto_map", {}).values()}))
    # Without weights, transformers takes the newest code; with --, that of another name.
    fixed = "--" not in files and (Path(local(name)).exists() or (pretrained and len(revision) == 40))
    if files and not (trusted and fixed) and (trusted or facts.get("model_type") not in package.CONFIG_MAPPING):
        what, expected = f"{name} brings code that would run", "code that you have read: of a folder, or of one commit"
        fix = "model.trust_remote_code=true 'trust=[lightkit.models.huggingface_model]' (Hub: model.revision=COMMIT)"
        raise UserError(what, argument="name", received=files, expected=expected, fix=fix, family="target-not-trusted")


def _classes_first(_module: nn.Module, _args: Any, outputs: Any) -> Any:
    """Give logits `(B, C, T)`, as the losses of PyTorch take them, in place of `(B, T, C)`."""
    outputs["logits"] = outputs["logits"].movedim(-1, 1)
    return outputs


def _suit(settings: Any, info: Any, *, classifies: bool) -> None:
    """Set what a configuration takes from the data; refuse more tokens, or longer texts, than the model takes."""
    for key, limit, argument in (
        ("num_tokens", "vocab_size", "tokenizer"),
        ("longest", "max_position_embeddings", "max_length"),
    ):
        found, most = info.more.get(key), getattr(settings, limit, None)
        if found is not None and most is not None and found > most:
            what, expected = f"more than the {limit} of the model", f"at most {most}"
            raise UserError(what, key=f"data.dataset.{argument}", received=found, expected=expected)
    if classifies:
        names = [*info.class_names] or [f"LABEL_{number}" for number in range(info.num_classes)]
        settings.id2label, settings.label2id = dict(enumerate(names)), {name: i for i, name in enumerate(names)}
    if "pad_token_id" in info.more:
        settings.pad_token_id = info.more["pad_token_id"]
    settings.use_cache = False  # of keys and values, for texts that grow


def _by_name(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Hand the entries of a dict on as arguments; refuse tokens that the model has no vector for."""
    first = args[0] if args else None
    if isinstance(first, Mapping):
        args, kwargs, first = (), {**first, **kwargs}, first.get("input_ids")
    elif isinstance(first, Tensor) and not first.is_floating_point() and module.config.pad_token_id is not None:
        kwargs = {"attention_mask": (first != module.config.pad_token_id).long(), **kwargs}
    tokens: Any = kwargs.get("input_ids") if first is None else first
    # On a GPU, a look would wait for all that it is at.
    plain = isinstance(tokens, Tensor) and tokens.device.type == "cpu" and not torch.compiler.is_compiling()
    if plain and not tokens.is_floating_point():
        wrong = tokens[(tokens < 0) | (tokens >= module.config.vocab_size)]
        if len(wrong):
            what, expected = "a token is beyond the vocabulary of the model", f"0 to {module.config.vocab_size - 1}"
            raise UserError(what, key="data.dataset", expected=expected, received=int(wrong[0]))
    return args, kwargs
