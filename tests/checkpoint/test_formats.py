"""How files are opened, and which are not."""

from __future__ import annotations

import ast
import json
import os
import pickle
import re
from contextlib import suppress
from pathlib import Path

import pytest
from safetensors.torch import save_file

from lightkit.checkpoint.weights import load_weights, read_weights
from lightkit.common.errors import UserError
from tests.checkpoint.parts import net, same
from tests.checkpoint.test_weights import written
from tests.conftest import ROOT


class Evil:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return (os.system, (f"touch {self.target}",))


def raw_pickle(path: Path, value: object) -> Path:
    path.write_bytes(pickle.dumps(value))
    return path


@pytest.mark.parametrize(
    "write",
    [written, lambda path, value: written(path, value, _use_new_zipfile_serialization=False), raw_pickle],
    ids=["archive", "old format", "pickle"],
)
@pytest.mark.parametrize("name", ["x.pt", "model.safetensors"])
def test_a_malicious_pickle_never_runs(tmp_path, write, name):
    mark = tmp_path / "ran"
    path = write(tmp_path / name, {"state_dict": net(1).state_dict(), "x": Evil(mark)})
    with pytest.raises(UserError) as caught:
        read_weights(path)
    assert caught.value.exit_code == 5
    assert not mark.exists()
    with suppress(UserError):
        read_weights(path, trust=True)
    assert mark.exists()  # the code is there and would have run


def test_a_whole_model_opens_only_when_trusted(tmp_path):
    original, model = net(1), net(2)
    path = written(tmp_path / "x.pt", original)
    match = r"the file holds Python objects, which run code .* it was not opened \(it asks for .*parts\.Net"
    with pytest.raises(UserError, match=match) as caught:
        read_weights(path)
    assert "trust=True (--trust)" in str(caught.value)
    weights = read_weights(path, trust=True)
    assert weights.kind == "whole model"
    load_weights(model, weights)
    assert same(model, original)
    nested = read_weights(written(tmp_path / "y.pt", {"epoch": 3, "model": original}), trust=True)
    assert nested.key == "model"
    assert nested.state.keys() == original.state_dict().keys()


def test_the_source_opens_untrusted_files_nowhere_else():
    """`weights_only=False` stands once, in the function behind the trust flag, and nothing unpickles by itself."""
    flags = []
    for path in (ROOT / "lightkit").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\b(pickle|cloudpickle|dill|joblib|jit)\.(load|loads|Unpickler)\(", text), path
        nodes = ast.walk(ast.parse(text)) if "torch.load" in text else ()
        flags += [(path.name, _flag(node)) for node in nodes if isinstance(node, ast.Call) and _loads(node)]
    assert [(name, flag) for name, flag in flags if flag is not True] == [("formats.py", False)]


def _loads(call: ast.Call) -> bool:
    return ast.unparse(call.func) == "torch.load"


def _flag(call: ast.Call) -> object:
    return next((ast.literal_eval(word.value) for word in call.keywords if word.arg == "weights_only"), None)


UNREADABLE = {
    "gone": (lambda path: None, "No such file"),
    "empty": (lambda path: path.write_bytes(b""), "the file is empty"),
    "text": (lambda path: path.write_text("hello world"), "neither a safetensors file nor one written by torch.save"),
    "cut": (lambda path: (written(path, net().state_dict()), os.truncate(path, 900)), "not a whole archive"),
    "flipped": (lambda path: _flip(written(path, net().state_dict())), "the checksum of its part .* differs"),
    "list": (lambda path: written(path, [1, 2]), "it holds a list, not tensors by name"),
    "numbers": (lambda path: written(path, {"a": 1}), "there are no weights in the usual places"),
    "elsewhere": (
        lambda path: written(path, {"generator": net().state_dict(), "x": 1}),
        "there are no weights in the usual places\n.*by its key: generator",
    ),
    "safetensors, cut": (
        lambda path: (save_file(net().state_dict(), path), os.truncate(path, path.stat().st_size - 9)),
        "no weights can be read",
    ),
    "a folder": (lambda path: path.mkdir(), "neither a lightkit run nor a folder with model.safetensors"),
}  # fmt: skip


def _flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[raw.index(net().head.weight.detach().numpy().tobytes()[:8])] ^= 4
    path.write_bytes(raw)


@pytest.mark.parametrize("fault", UNREADABLE)
def test_what_cannot_be_read_is_told(tmp_path, fault):
    make, message = UNREADABLE[fault]
    make(tmp_path / "x.pt")
    with pytest.raises(UserError, match=message) as caught:
        read_weights(tmp_path / "x.pt")
    assert caught.value.exit_code == 5
    assert str(caught.value).startswith(str(tmp_path / "x.pt"))


def test_an_index_is_whole_and_stays_in_its_folder(tmp_path):
    outside = [json.dumps({"weight_map": {"w": name}}) for name in ("../x.safetensors", "/etc/passwd", "a/b", 3)]
    cases = dict.fromkeys(outside, "which is not a file beside it")
    cases |= dict.fromkeys(["", "[]", "{}", '{"weight_map": 3}'], "not an index of weights")
    for text, message in cases.items():
        (tmp_path / "model.safetensors.index.json").write_text(text)
        with pytest.raises(UserError, match=message):
            read_weights(tmp_path)
