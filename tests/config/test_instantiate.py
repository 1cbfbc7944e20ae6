from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import DictConfig, ListConfig, OmegaConf

from lightkit.common.errors import UserError
from lightkit.config import compose, instantiate
from tests.config.conftest import Write


def test_arguments_come_from_the_configuration_first(toy: Path) -> None:
    net = instantiate({"_target_": "toy.Net", "hidden": [1]}, key="model", num_classes=3, in_channels=1)
    assert (net.num_classes, net.hidden) == (3, [1])
    assert (
        instantiate({"_target_": "toy.Net", "hidden": [], "num_classes": 9}, key="model", num_classes=3).num_classes
        == 9
    )


def test_what_is_built_sees_plain_values(toy: Path) -> None:
    cfg = OmegaConf.create({"w": 2, "model": {"_target_": "toy.Net", "hidden": ["${w}", 3], "num_classes": 1}})
    net = instantiate(cfg.model, key="model")
    assert type(net.hidden) is list
    assert net.hidden == [2, 3]


def test_nested_targets_are_built_and_get_sizes(toy: Path) -> None:
    body = {"_target_": "toy.Net", "hidden": []}
    net = instantiate({"_target_": "toy.Net", "hidden": [], "body": [body, {"a": body}]}, key="model", num_classes=5)
    assert net.body[0].num_classes == 5
    assert net.body[1]["a"].num_classes == 5


def test_lists_of_floats_hold_floats(toy: Path, write: Write) -> None:
    write(
        "pairs.py", "def pair(betas: tuple[float, float], sizes: list[int], any=None):\n    return betas, sizes, any\n"
    )
    node = {"_target_": "pairs.pair", "betas": [0, 0.9], "sizes": [1, 2], "any": [3, 0.5]}
    assert repr(instantiate(node, key="model")) == "([0.0, 0.9], [1, 2], [3, 0.5])"


def test_own_keys_are_no_arguments(toy: Path) -> None:
    node = compose(["optim._target_=toy.anything", "optim.rules=[{match: a}]", "optim.no_decay=true"]).cfg.optim
    assert instantiate(node, key="optim") == {"lr": 0.1, "momentum": 0.9}


def test_objects_are_handed_on_untouched(toy: Path) -> None:
    marker = [{"params": [object()]}]
    schedule = instantiate(
        {"_target_": "toy.Schedule"}, key="scheduler", optimizer=marker, total_steps=3, unused=object()
    )
    assert schedule.optimizer is marker


def test_an_argument_of_the_same_name_that_means_something_else_is_not_filled_in(toy: Path) -> None:
    torch = "torch.optim.lr_scheduler"
    rates = {"_partial_": True, "base_lr": 0.01, "max_lr": 0.1}
    made = instantiate(
        {"_target_": "toy.anything", "cyclic": {"_target_": f"{torch}.CyclicLR", **rates}},
        key="scheduler",
        mode="max",
    )
    assert "mode" not in made["cyclic"].keywords
    plateau = {"_target_": f"{torch}.ReduceLROnPlateau", "_partial_": True}
    made = instantiate({"_target_": "toy.anything", "plateau": plateau}, key="scheduler", mode="max")
    assert made["plateau"].keywords["mode"] == "max"


def test_arguments_by_position_and_partial(toy: Path) -> None:
    assert instantiate({"_target_": "toy.Net", "_args_": [2, [1]]}, key="model", num_classes=7).num_classes == 2
    made = instantiate({"_target_": "toy.Net", "_partial_": True, "hidden": [1]}, key="model", num_classes=7)
    assert made().num_classes == 7


def test_the_project_is_named_and_the_working_directory_was_removed(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTKIT_PROJECT", str(toy))
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert instantiate({"_target_": "toy.Data", "rows": 3}, key="data.dataset") is not None


def test_methods_and_compiled_targets(toy: Path) -> None:
    assert instantiate({"_target_": "toy.Task.make", "weight": 2.0}, key="trainer.task").weight == 2.0
    cfg = OmegaConf.create({"trust": ["math"], "x": {"_target_": "math.sqrt", "_args_": [4]}})
    assert instantiate(cfg.x, key="x", num_classes=1) == 2.0


def test_an_error_of_the_target_names_key_and_target(toy: Path) -> None:
    with pytest.raises(
        UserError, match=r"data.augment\[0\]: toy.Noise could not be built: ValueError: too loud"
    ) as caught:
        instantiate({"_target_": "toy.Noise", "scale": 101}, key="data.augment[0]")
    assert type(caught.value.__cause__) is ValueError
    assert str(caught.value.origin).startswith("toy.py:")
    assert "LIGHTKIT_DEBUG=1" in str(caught.value)


def test_an_error_of_a_nested_target_names_its_own_key(toy: Path) -> None:
    node = {"_target_": "toy.Net", "num_classes": 1, "hidden": [], "body": {"_target_": "toy.Noise", "scale": 101}}
    with pytest.raises(UserError, match=r"^model.body: .*too loud") as caught:
        instantiate(node, key="model")
    assert type(caught.value.__cause__) is ValueError


def test_user_errors_pass_through(toy: Path, write: Write) -> None:
    write(
        "rude.py", "from lightkit.common.errors import UserError\ndef f(x=1):\n    raise UserError('no', key='mine')\n"
    )
    for node in ({"_target_": "rude.f"}, {"_target_": "toy.Net", "num_classes": 1, "hidden": {"_target_": "rude.f"}}):
        with pytest.raises(UserError, match=r"^mine: no$") as caught:
            instantiate(node, key="model")
        assert caught.value.__cause__ is not caught.value


def test_nothing_to_build() -> None:
    for node in ({}, {"_target_": 3}, None, [1]):
        with pytest.raises(UserError, match="model: nothing to build"):
            instantiate(node, key="model")


def test_what_goes_wrong_in_an_import_is_told_with_its_line(toy: Path, write: Write) -> None:
    write("sick.py", "import nowhere_at_all\ndef f(): ...\n")
    with pytest.raises(UserError, match=r"model: sick.f could not be built"):
        instantiate({"_target_": "sick.f"}, key="model")
    write("poor.py", "raise ModuleNotFoundError('no torchvision', name='torchvision')\ndef f(): ...\n")
    with pytest.raises(UserError, match=r"model: poor.f could not be built[\s\S]*pip install 'lightkit\[vision\]'"):
        instantiate({"_target_": "poor.f"}, key="model")
    write("ill.py", "import os\n\nlength = len(os)\n\n\ndef f(): pass\n")
    with pytest.raises(UserError, match=r"model: ill\.f could not be built: TypeError: object of") as caught:
        instantiate({"_target_": "ill.f"}, key="model")
    assert caught.value.origin == "ill.py:3"
    assert "installed" not in str(caught.value)


def test_an_error_of_a_library_names_no_line(toy: Path) -> None:
    with pytest.raises(UserError, match="LIGHTKIT_DEBUG=1") as caught:
        instantiate({"_target_": "torch.nn.Linear", "in_features": -1, "out_features": 2}, key="model")
    assert caught.value.origin is None


def test_sizes_the_data_set_has_not_got(toy: Path, write: Write) -> None:
    write("lm.py", "class LM:\n    def __init__(self, vocab_size, context_length, dim=1):\n        self.dim = dim\n")
    sizes = {"in_features": 13, "num_classes": 3}
    text = (
        r"(?s)model: lm\.LM needs vocab_size and context_length, which this data set does not provide"
        r".*data=text.*in_features=13, num_classes=3.*model\.vocab_size=VALUE"
    )
    with pytest.raises(UserError, match=text):
        instantiate({"_target_": "lm.LM"}, key="model", **sizes)
    with pytest.raises(UserError, match=r"an attribute `classes` of the data set.*or loss\.num_classes=VALUE"):
        instantiate({"_target_": "torchmetrics.classification.MulticlassF1Score"}, key="loss", task="custom")
    given = {"_target_": "lm.LM", "vocab_size": 3, "context_length": 2}
    assert instantiate(given, key="model", **sizes).dim == 1
    assert instantiate({"_target_": "lm.LM", "_args_": [1, 2]}, key="model", **sizes).dim == 1
    assert callable(instantiate({"_target_": "lm.LM", "_partial_": True}, key="model", **sizes))


def test_hydras_keys_say_how_a_node_is_built(toy: Path) -> None:
    inner = {"_target_": "toy.Net", "num_classes": 1, "hidden": [1]}
    kept = instantiate({"_target_": "toy.anything", "_recursive_": False, "a": [inner]}, key="loss")
    assert kept == {"a": [inner]}
    made = instantiate({"_target_": "toy.anything", "_convert_": "none", "a": {"b": [1, inner]}}, key="loss")
    assert isinstance(made["a"], DictConfig)
    assert isinstance(made["a"].b, ListConfig)
    assert isinstance(made["a"].b[1].hidden, ListConfig)
    later = instantiate({"_target_": "toy.anything", "a": {**inner, "_partial_": True}}, key="loss")["a"]
    assert later().hidden == [1]
    text = OmegaConf.create({"loss": {"_target_": "toy.anything", "a": "\\${nope}"}})
    assert instantiate(text.loss, key="loss") == {"a": "${nope}"}
