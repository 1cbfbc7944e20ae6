"""What is known of the run that pretrained weights come from: its vocabulary, classes, and how it scaled its inputs."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import nn

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.hub import commit_of
from lightkit.common.patterns import named
from lightkit.common.reading import TEXTS, yaml_or_nothing
from lightkit.config.project import located
from lightkit.data import Data, DataInfo
from lightkit.data.normalize import Normalizer
from lightkit.data.preprocessing import Preprocessing, reader_of
from lightkit.data.targets import TargetTransform
from lightkit.data.text import UNKNOWN
from lightkit.finetune.head import Head, guess_head
from lightkit.optim.layers import layer_depths
from lightkit.runs.reading import read_config, read_json

_SCALED = ("normalize", "normalize_rows")
_FILLED = tuple(f"dataset.{name}" for name in ("missing", "fill_value", "add_indicator"))
_SHOWN, _WRITTEN = 10, 200
_UNKNOWN: Any = object()
_parsed = lru_cache(maxsize=4)(lambda text: OmegaConf.create(yaml_or_nothing(text)))  # of a run, key after key


def run_of(path: Path) -> Path | None:
    """Find the folder of the run that weights belong to: the path itself, or that of a checkpoint or exported file."""
    places = [path, path.parent, path.parent.parent]
    return next((place for place in places if (place / run_files.CONFIG).is_file()), None)


def check_vocabulary(path: Path, info: DataInfo, *, key: str) -> None:
    """Refuse weights of a run in which the numbers of tokens stood for other characters.

    Nothing is said of files that are not in the folder of a run.

    Args:
        path: Where the weights are.
        info: Facts about the data of the run that begins.
        key: Configuration key that names the weights.

    Raises:
        UserError: The two vocabularies differ.
    """
    run = run_of(path)
    known = _texts(run, "vocabulary") if run and info.vocabulary else ()
    if not known or known == info.vocabulary:
        return
    text = "".join(known)
    if len(text) != len(known) or len(text) > _WRITTEN:
        own = f'data.dataset.vocabulary as it stands in {run}/{run_files.ENVIRONMENT} under "vocabulary"'
    else:
        own = f"data.dataset.vocabulary: {json.dumps(text.replace(UNKNOWN, ''), ensure_ascii=False)}"
    same = "the same number of other tokens" if len(known) == len(info.vocabulary) else f"{len(known)} tokens"
    what = "the weights belong to another vocabulary: the numbers of its tokens stand for others here"
    expected = f"the {len(info.vocabulary)} tokens of this data; not in the weights: {_some(info.vocabulary, known)}"
    received = f"{same}; not in this data: {_some(known, info.vocabulary)}"
    fix = f"the base's own in a YAML file of yours, {own}; or train the base with one for all texts, such as "
    fix += "data.dataset.vocabulary=ascii"
    raise UserError(what, key=key, expected=expected, received=received, fix=fix, family="weights")


def embeds_tokens(model: nn.Module, info: DataInfo, names: Collection[str]) -> bool:
    """Tell whether any of these tensors is an embedding with a row for each token."""
    tables = [path for path, module in model.named_modules() if isinstance(module, nn.Embedding)]
    sizes = {path: model.get_submodule(path).num_embeddings for path in tables}
    return any(f"{path}.weight" in names and size == info.vocab_size for path, size in sizes.items())


def other_classes(path: Path, info: DataInfo) -> str | None:
    """Name the classes of a base where they are not those of the data; return None where they are.

    Args:
        path: Where the weights are.
        info: Facts about the data of the run that begins.
    """
    run = run_of(path)
    known = _texts(run, "classes") if run and info.class_names else ()
    if not known or known == info.class_names:
        return None
    return f"{_listed(known)}, not {_listed(info.class_names)}"


def check_same_classes(run: Path, info: DataInfo, override: Sequence[str]) -> None:
    """Refuse data whose classes are not those that a run has learnt: each number would stand for another class.

    Args:
        run: The folder of the run.
        info: Facts about the data as they are now.
        override: Keys that may differ from those of the run: `resume.override`.

    Raises:
        UserError: The classes differ, and `resume.override` does not name `data.dataset`.
    """
    others = _texts(run, "classes") if info.class_names else ()
    if others in ((), info.class_names) or named("data.dataset", override):
        return
    what = "the classes of the data are not those that this run has learnt: its outputs would stand for others"
    fix = "name them as they were, each class in its place; 'resume.override=[data.dataset]' takes the classes as "
    fix += "they are now, in this order, where there are as many"
    raise UserError(what, key="data.dataset", expected=_listed(others), received=_listed(info.class_names), fix=fix)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_SHOWN]) + (f", … ({len(names)} in all)" if len(names) > _SHOWN else "")


def scaling_of_base(path: str | None, folder: Path | None) -> Normalizer | None:
    """Return the scaling that `data.normalize=base` takes over; None where the base did not scale its inputs.

    Args:
        path: Where the weights of the base are.
        folder: That of a run that has begun, which keeps the scaling itself; None asks the base.

    Raises:
        UserError: There is no base that knows its scaling.
    """
    run = run_of(located(path)) if path else None
    kept = next((facts["scaling"] for facts in map(_facts, (folder, run)) if "scaling" in facts), _UNKNOWN)
    if kept is None or (kept is _UNKNOWN and run and _scaling(run) == "none"):
        return None
    try:
        return Normalizer(torch.tensor(kept["shift"]), torch.tensor(kept["scale"]))
    except (LookupError, TypeError, ValueError) as error:
        what, key = "it is not known how the base scaled its inputs", "data.normalize"
        expected = "finetune.weights.path in the folder of a run of lightkit that keeps its scaling"
        fix = "data.normalize=standard, or another that is fitted on the rows of this run"
        raise UserError(what, key=key, expected=expected, received=path, fix=fix, family="weights") from error


def fitted_before(cfg: DictConfig, folder: Path | None, like: Data | None = None) -> dict[str, Any]:
    """Return what was fitted to training rows before, as arguments of `build_data`; without what is set differently.

    Args:
        cfg: The configuration at hand.
        folder: That of the run; None for one that has not begun.
        like: Data to whose training rows all is fitted; None goes by the run, or the base of a new one.
    """
    if like is not None:
        found = {"normalize": like.normalizer, "transform": like.info.transform, "vocabulary": like.info.vocabulary}
        return {**found, "filling": like.filling and like.filling.state_dict()}
    if cfg.data.normalize == "base":
        return {"normalize": scaling_of_base(cfg.finetune.get("weights", {}).get("path"), folder)}
    return {} if folder is None else _fitted_by(cfg.data, folder)


def _fitted_by(data: DictConfig, folder: Path) -> dict[str, Any]:
    """Return what a run fitted to its training rows; without what is now set differently."""
    facts, found = _facts(folder), dict[str, Any](vocabulary=_texts(folder, "vocabulary"))
    if facts.get("filling") and as_before(data, folder, _FILLED):
        found["filling"] = facts["filling"]
    if facts.get("inputs", {}).get("transform") and as_before(data, folder, ("dataset.target_transform",)):
        with suppress(LookupError, TypeError, ValueError):
            found["transform"] = TargetTransform(**facts["inputs"]["transform"])
    if facts.get("scaling") and as_before(data, folder, _SCALED):
        with suppress(LookupError, TypeError, ValueError):  # somebody has edited it
            found["normalize"] = Normalizer(*(torch.tensor(facts["scaling"][name]) for name in ("shift", "scale")))
    return found


def pinned_before(data: DictConfig, folder: Path | None) -> dict[str, Any]:
    """Return what a data set took when a run began, such as a commit, as its argument `pinned`; nothing for new runs.

    Args:
        data: The node of the data at hand; where it names another data set, nothing is pinned.
        folder: That of the run.
    """
    kept = _facts(folder).get("pinned")
    same = folder is not None and as_before(data, folder, [f"dataset.{name}" for name in ("path", "name", "revision")])
    return {"pinned": kept} if kept and same else {}


_ON_HUB = {"model": ("name", "revision"), "data.dataset": ("tokenizer", "tokenizer_revision")}
"""Parts of lightkit that take something from the Hub, with the arguments that name it."""


def commits(cfg: DictConfig) -> dict[str, str]:
    """Return the commits that branches and tags of the Hub are now, by the keys of a configuration that name these."""
    found = dict[str, str]()
    for key, (name, revision) in _ON_HUB.items():
        node = OmegaConf.select(cfg, key)
        chosen = node.get(name) and node.get(revision) and not node.get("trust_remote_code")  # a commit that was read
        if chosen and node._target_.startswith("lightkit."):
            found[f"{key}.{revision}"] = commit_of(node[name], node[revision])
    return found


def as_before(data: DictConfig, run: Path, keys: Iterable[str]) -> bool:
    """Tell whether these keys of the node of the data have the values that they have in the configuration of a run."""
    return all(OmegaConf.select(data, key) == written(run, f"data.{key}") for key in keys)


def head_of_run(run: Path, model: nn.Module) -> Head | None:
    """Return the output layer that was chosen when a run was fine-tuned; None where it is not known.

    Args:
        run: The folder of the run.
        model: Its network, before fine-tuning changes anything.
    """
    facts = _facts(run, run_files.FINETUNE)
    if "head" not in facts:
        return guess_head(model, "earlier versions did") if "plan" in facts else None
    kept = facts["head"]
    with suppress(AttributeError, LookupError, TypeError):  # somebody has edited it
        return Head(kept["name"], kept["found"], kept["why"], tuple(kept["beside"]))
    return None


def depths_of_run(run: Path, model: nn.Module) -> dict[str, int] | None:
    """Return the layer of each parameter as it was when a run was fine-tuned; None where it is not known.

    Args:
        run: The folder of the run.
        model: Its network, before fine-tuning changes anything.
    """
    facts = _facts(run, run_files.FINETUNE)
    if "layers" not in facts:  # earlier versions went by the order of definition
        return layer_depths(model) if "plan" in facts else None
    kept = facts["layers"]
    known = isinstance(kept, dict) and all(isinstance(depth, int) for depth in kept.values())
    return kept if known and kept else None


def facts_of(data: Data) -> dict[str, Any]:
    """Collect what a run records of its data, for new inputs and for runs that will be fine-tuned from it."""
    info = data.info
    found: dict[str, Any] = {"inputs": preprocessing_of(data).state_dict()}
    names = {"vocabulary": info.vocabulary, "classes": info.class_names, "class_shares": info.class_shares}
    found |= {name: value for name, value in names.items() if value}
    found |= {"filling": data.filling.state_dict()} if data.filling else {}
    more = {name: loader.source.info.fingerprint for name, loader in data.more.items()}
    found |= {"further sets": more} if more else {}
    found["pinned"] = getattr(getattr(data.source, "base", None), "pinned", None)
    state = data.normalizer.state_dict() if data.normalizer else None
    return {**found, "scaling": state and {name: tensor.tolist() for name, tensor in state.items()}}


def preprocessing_of(data: Data) -> Preprocessing:
    """Return what a run does to inputs before its network sees them."""
    return Preprocessing(data.info, reader_of(data.source), data.filling, data.normalizer)


def recorded_preprocessing(folder: Path) -> Preprocessing | None:
    """Return what a run recorded of its inputs; None where an earlier version did not record enough."""
    return Preprocessing.restored(_facts(folder))


def notes_on_base(cfg: DictConfig, data: Data) -> list[str]:
    """Note where a run differs from the one its weights come from: in its classes, or in how inputs are scaled."""
    path, weights = cfg.finetune.get("weights", {}).get("path"), cfg.finetune.get("weights", {})
    others = other_classes(located(path), data.info) if path and weights.get("head", "keep") == "keep" else None
    kept = cfg.finetune.get("head", {}).get("replace") == "never"
    done = "stays, as finetune.head.replace=never" if kept else "starts anew; finetune.head.replace=never keeps it"
    lines = [f"the classes of the base are {others}: its output layer {done}"] if others else []
    return [*lines, *filter(None, [scaling_note(cfg, len(data.rows["train"]))])]


def scaling_note(cfg: DictConfig, rows: int) -> str | None:
    """Note where a run scales its inputs in another way than the one its weights come from did; None where not.

    Args:
        cfg: The configuration of the run that begins.
        rows: Rows that its scaling was fitted on.
    """
    path = cfg.finetune.get("weights", {}).get("path")
    run = run_of(located(path)) if path else None
    before, now = _scaling(run) if run else None, cfg.data.normalize
    if before is None or before == now == "none":
        return None
    if now == "base":
        return f"inputs are scaled as those of the base were (data.normalize={before})"
    if before != now:
        return f"the base saw its inputs with data.normalize={before}, this run has {now}"
    return f"data.normalize={now} is fitted on the {rows:,} training rows of this run; base takes over that of the base"


def _scaling(run: Path) -> str | None:
    found = written(run, "data.normalize")
    return found if isinstance(found, str) else None


def written(run: Path, key: str) -> Any:
    """Read a value from the configuration of a run; None where it cannot be read."""
    try:
        return OmegaConf.select(_parsed(read_config(run)), key)
    except (ValueError, OmegaConfBaseException):  # of others, or of an older lightkit
        return None


def _facts(run: Path | None, file: str = run_files.ENVIRONMENT) -> dict[str, Any]:
    return read_json(run / file) if run else {}


def _texts(run: Path, name: str) -> tuple[str, ...]:
    found: Any = _facts(run).get(name)
    return tuple(found) if TEXTS.fits(found) else ()


def _some(tokens: Collection[str], others: Collection[str]) -> str:
    """Show the first few tokens that are not among the others."""
    only = sorted(set(tokens) - set(others))
    more = f" and {len(only) - _SHOWN} more" if len(only) > _SHOWN else ""
    return ("".join(f"{token!r} " for token in only[:_SHOWN]).rstrip() + more) or "none, but in another order"
