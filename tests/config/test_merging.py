"""Nodes that are copied and merged faster are those that OmegaConf makes."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lightkit.config import compose
from lightkit.config.loader import make_loader
from lightkit.config.merging import copy_node, copy_only, from_plain


@dataclass
class Part:
    size: int = 3
    names: list[str] = field(default_factory=lambda: ["a"])


@dataclass
class Typed:
    part: Part = field(default_factory=Part)
    rate: Optional[float] = None
    missing: str = "???"


def facts(node: Any) -> dict[str, Any]:
    """What a node knows of itself, without what its resolvers have kept."""
    return {**vars(node._metadata), "resolver_cache": None}


def test_a_copy_is_the_one_that_deepcopy_makes() -> None:
    cfg = OmegaConf.create({"a": {"b": [1, None, "???", "${a.c}", {"d": 1.5}], "c": True}, 1: "x"})
    OmegaConf.set_struct(cfg.a, True)
    typed = OmegaConf.structured(Typed)
    for node in (cfg, typed):
        made, usual = copy_node(node), copy.deepcopy(node)
        assert made == usual
        assert facts(made) == facts(usual)
    made = copy_node(cfg)
    assert made.a.b[3] is True
    assert made.a.b._get_parent()._get_parent() is made
    with pytest.raises(Exception, match="struct"):
        made.a.new = 1
    OmegaConf.set_struct(made.a, False)
    made.a.c, made.a.b[4].d = False, 2
    assert cfg.a.c
    assert cfg.a.b[4].d == 1.5
    assert OmegaConf.is_struct(cfg.a)


def test_a_part_is_a_configuration_of_its_own() -> None:
    cfg = OmegaConf.create({"a": {"b": 1}, "c": 2, True: 3})
    made = copy_only(cfg, "a", True)
    made.a.b = 5
    assert made == {"a": {"b": 5}, True: 3}
    assert cfg.a.b == 1
    assert made.a._get_root() is made


def test_plain_values_become_the_nodes_that_omegaconf_makes() -> None:
    plain = {"a": {"b": [1, None, "???", "${a.c}", {"d": 1.5}], "c": True}, "e": [], "f": {}, "g": ""}

    def told(node: Any) -> list[Any]:
        inside = vars(node).get("_content")
        below = inside.values() if isinstance(inside, dict) else inside or ()
        return [facts(node), *vars(node), [(told(one), one._get_parent() is node) for one in below]]

    made, usual = from_plain(plain), OmegaConf.create(plain)
    assert made == usual
    assert told(made) == told(usual)
    for odd in ({1: "x"}, {"a": "${"}, {"a": {None: 1}}, {"a": {1, 2}}):
        with pytest.raises((LookupError, TypeError, OmegaConfBaseException)):
            from_plain(odd)


@pytest.mark.parametrize("struct", [True, False])
def test_values_are_read_as_omegaconf_reads_them(struct: bool) -> None:
    plain = {"a": {"b": [1, None, "???", "${c}"], "n": None}, "c": True, "d": "???", "e": "${c}", "f": "${d}", "g": "x"}
    made, usual = from_plain(plain), OmegaConf.create(plain)
    made.h, usual.h = "${a.b}", "${a.b}"
    for cfg in (made, usual):
        OmegaConf.set_struct(cfg, struct)

    def told(read: Callable[[Any, Any], Any], cfg: Any, key: Any) -> Any:
        try:
            found = read(cfg, key)
        except Exception as error:
            return type(error), str(error)
        return type(found) if isinstance(found, dict | list) else found

    ways = (getattr, operator.getitem, lambda cfg, key: cfg.get(key), lambda cfg, key: cfg.get(key, {}))
    for key in (*plain, "h", "missing", "", 1, None, 0.5):
        for read in ways[isinstance(key, str) is False :]:
            assert told(read, made, key) == told(read, usual, key), key
    assert made.a._get_root() is made
    assert made.a.b is made["a"].get("b")
    made.c = False
    assert made.e is False, "what is changed is read"


def test_a_file_counts_as_it_is_at_each_composition(project: Path) -> None:
    file = project / "conf/optim/mine.yaml"
    file.parent.mkdir(parents=True)
    for rate in (0.25, 0.5, 0.125):
        file.write_text(f"_target_: torch.optim.SGD\nlr: {rate}\n")
        for typed in (None, 0.75):
            texts = ["optim=mine", *([] if typed is None else [f"optim.lr={typed}"])]
            assert make_loader(texts).compose(texts).optim.lr == (typed or rate)
    assert compose(["optim=mine"]).cfg.optim.lr == 0.125


@pytest.mark.parametrize("texts", [[], ["experiment=wine"], ["hydra/launcher=joblib", "finetune=[head,lora]"]])
def test_files_are_merged_as_by_hydra(texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ours = make_loader().compose(texts)
    usual = make_loader()
    monkeypatch.setattr(
        type(usual), "_compose_config_from_defaults_list", ConfigLoaderImpl._compose_config_from_defaults_list
    )
    monkeypatch.setattr(type(usual), "_embed_result_config", staticmethod(ConfigLoaderImpl._embed_result_config))
    theirs = usual.compose(texts)
    assert OmegaConf.to_yaml(ours) == OmegaConf.to_yaml(theirs)
    assert facts(ours) == facts(theirs)
    assert facts(ours.hydra) == facts(theirs.hydra)
