from __future__ import annotations

import pytest

from lightkit.checkpoint.names import nearest_names, renamed, shared_prefix, unwrapped
from lightkit.common.errors import UserError


@pytest.mark.parametrize(
    ("names", "own"),
    [
        (["module.a.w", "module.b"], ["a.w", "b"]),
        (["_orig_mod.a.w", "_orig_mod.b"], ["a.w", "b"]),
        (["module._orig_mod.a", "module._orig_mod.b"], ["a", "b"]),
        (["backbone._orig_mod.a", "head.b"], ["backbone.a", "head.b"]),
        (["_fsdp_wrapped_module.a", "b._checkpoint_wrapped_module.c"], ["a", "b.c"]),
        (["module.a", "b"], ["module.a", "b"]),  # a module somebody called `module`
        (["modules.a", "modulelist.b"], ["modules.a", "modulelist.b"]),
        (["a", "_orig_mod.a"], ["a", "_orig_mod.a"]),  # would be one name
    ],
)
def test_prefixes_of_wrappers(names, own):
    assert list(unwrapped(names).items()) == list(zip(names, own))


QUERY = "attention.self.query.weight"
BERT = [f"bert.encoder.layer.0.{QUERY}", "bert.encoder.layer.11.output.bias", "cls.bias"]


@pytest.mark.parametrize(
    ("mapping", "new"),
    [
        ({"bert.encoder.layer.*": "blocks.*"}, [f"blocks.0.{QUERY}", "blocks.11.output.bias", BERT[2]]),
        ({"bert.*.layer.*.output.*": "*_*.*"}, [BERT[0], "encoder_11.bias", BERT[2]]),
        ({r"re:^bert\.encoder\.": ""}, [f"layer.0.{QUERY}", "layer.11.output.bias", BERT[2]]),
        ({r"re:layer\.(\d+)": r"l\1"}, [f"bert.encoder.l0.{QUERY}", "bert.encoder.l11.output.bias", BERT[2]]),
        ({"re:layer": "l", "re:l.0": "one"}, [f"bert.encoder.one.{QUERY}", "bert.encoder.l.11.output.bias", BERT[2]]),
        ({"cls.*": None}, BERT[:2]),
        ({"cls.bias": "head.bias"}, [*BERT[:2], "head.bias"]),
        ({"cls.bias": r"a\1.\b"}, [*BERT[:2], r"a\1.\b"]),
    ],
)  # fmt: skip
def test_renaming(mapping, new):
    assert list(renamed(BERT, mapping).values()) == new


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"bert.encodr.*": "x.*"}, "mapping: the pattern matches no tensor"),
        ({"cls": "head"}, "the pattern matches no tensor"),  # a glob is over the whole name
        ({"bert.*": "*.*"}, r"the replacement has more `\*` than the pattern"),
        ({"re:(": "x"}, "not a regular expression"),
        ({"*": "same"}, f"two tensors get the name same\n.*{BERT[0]} and {BERT[1]}"),
    ],
)
def test_wrong_mappings(mapping, message):
    with pytest.raises(UserError, match=message):
        renamed(BERT, mapping)


NET = {"a.weight": (2, 3), "a.bias": (2,), "head.weight": (5, 2), "head.bias": (5,)}


@pytest.mark.parametrize(
    ("saved", "prefixes"),
    [
        (NET, ("", "")),
        ({f"model.{name}": shape for name, shape in NET.items()}, ("model.", "")),
        ({f"net.inner.{name}": shape for name, shape in NET.items()} | {"criterion.w": (1,)}, ("net.inner.", "")),
        ({"weight": (2, 3), "bias": (2,)}, ("", "a.")),
        ({f"{who}.{name}": shape for who in ("student", "teacher") for name, shape in NET.items()}, ("", "")),
        ({"model.a.weight": (2, 3), "model.a.bias": (2,), "model.head.weight": (9, 2)}, ("model.", "")),
        ({"other": (1,)}, ("", "")),
    ],
    ids=["same", "model.", "two parts", "backbone", "two that fit", "other head", "nothing"],
)
def test_a_prefix_that_all_names_share(saved, prefixes):
    assert shared_prefix(saved, NET) == prefixes


def test_nearest_names_prefer_the_same_shape():
    wanted = {"head.weight": (5, 2), "head.bias": (5,), "zzz": (7,)}
    pool = {"fc.weight": (5, 2), "heads.weight": (1, 1), "head_bias": (9,)}
    assert nearest_names(wanted, pool) == {"head.weight": "fc.weight", "head.bias": "head_bias"}
    assert nearest_names(wanted, {}) == {}
