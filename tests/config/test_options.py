from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lightkit.cli.config import group_text
from lightkit.common.errors import UserError, UserErrors
from lightkit.config import compose
from lightkit.config.describe import Argument, describe_key, option_arguments
from lightkit.config.loader import make_loader
from tests.config.conftest import Write
from tests.waiting import PATIENCE_SECONDS


def arguments(group: str, option: str) -> dict[str, Argument]:
    return {item.key: item for item in option_arguments(make_loader(), group, option)}


def test_values_of_the_file_and_what_it_is_based_on(write: Write) -> None:
    write("conf/model/base2.yaml", "_target_: toy.Net\nhidden: [4, 4]\nact: relu\n")
    write("conf/model/wider.yaml", "# Wider.\ndefaults:\n  - base2\nhidden: [64]\n")
    found = arguments("model", "wider")
    assert list(found) == ["model.hidden", "model.act", "model.body"]
    assert found["model.hidden"].value == "[64]"
    assert found["model.act"].type == "one of relu, gelu"
    assert not found["model.body"].written
    assert found["model.body"].value == "null"


def test_what_lightkit_fills_in_or_reads_itself_is_no_argument(toy: Path) -> None:
    assert not {"model.num_classes", "model._target_"} & set(arguments("model", "net"))
    assert not {"optim.params", "optim.rules"} & set(arguments("optim", "sgd"))
    assert "optimizer" not in str(arguments("scheduler", "flat"))


def test_arguments_of_a_node_inside(toy: Path) -> None:
    assert list(arguments("data", "toy")) == ["data.dataset.rows", "data.dataset.path"]


def test_meanings_come_from_docstrings(write: Write) -> None:
    text = '    """A net.\n\n    Args:\n        wide: How wide,\n            in all.\n        deep: Layers.\n    """\n'
    write("toy2.py", f"class N:\n{text}\n    def __init__(self, wide, deep=1):\n        pass\n")
    write("conf/model/doc.yaml", "# N.\n_target_: toy2.N\nwide: 3\n")
    found = arguments("model", "doc")
    assert found["model.wide"].meaning == "How wide, in all."
    assert found["model.deep"].meaning == "Layers."
    assert arguments("optim", "sgd")["optim.lr"].meaning.startswith("learning rate")


def test_a_target_that_is_not_there_or_not_chosen(write: Write) -> None:
    write("conf/model/gone.yaml", "_target_: toy.Gone\nwidth: 1\n")
    assert list(arguments("model", "gone")) == ["model.width"]
    assert arguments("model", "any") == {}


def test_a_group_lists_the_arguments_of_each_option(toy: Path) -> None:
    text = group_text("optim")
    assert "arguments of optim, by choice:" in text
    assert "    optim.lr=0.1        learning rate\n" in text
    assert "also: " in text
    assert "nesterov=false" in text


def test_one_key_is_explained(toy: Path) -> None:
    text = group_text("optim.lr")
    assert text.startswith("  optim.lr (a number; above 0)\n      learning rate\n")
    assert "  optim=adam     0.001\n" in text
    assert group_text("optim.nesterov").endswith("optim=sgd  false  the default of what is built")
    assert "subclasses of" in group_text("trainer.callbacks")
    assert "Seed of all random decisions" in group_text("seed")


def test_a_key_of_a_group_with_defaults_is_explained(toy: Path) -> None:
    text = group_text("finetune.train")
    assert text.startswith("  finetune.train (a list (text each); [] by default)\n      Patterns of exceptions")
    assert '  finetune=bitfit   ["@bias", "@head"]\n' in text
    assert group_text("finetune.lora.rank").startswith("  finetune.lora.rank (a whole number; at least 1) = 8\n")
    assert "finetune=lora\n    finetune.freeze=" in group_text("finetune")


def test_keys_below_a_node_with_free_names(toy: Path) -> None:
    assert [row.key for row in describe_key("metrics.val.f1")] == ["metrics.val"]
    assert [row.key for row in describe_key("data.mixup.alpha")] == ["data.mixup.alpha"]
    assert describe_key("trainer.epochz") == []


@pytest.mark.parametrize("key", ["optim.lrr", "model.hiden", "trainer.epoch"])
def test_an_unknown_key(toy: Path, key: str) -> None:
    with pytest.raises(UserError, match=rf"(?s)there is no such key.*nearest: {key[:7]}"):
        group_text(key)


def test_a_key_without_its_group(toy: Path) -> None:
    with pytest.raises(UserError, match=r"(?s)there is no such group.*did you mean model\.dropout or finetune"):
        group_text("dropout")


def test_nothing_is_imported(toy: Path) -> None:
    code = (
        "import sys; from lightkit.cli.config import group_text; group_text('model'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=toy, timeout=PATIENCE_SECONDS).returncode == 0


TYPED = [
    (["ensemble.size=3"], "ensemble=voting ensemble.size=3; also of adversarial, bagging"),
    (["ensemble.cycle_epochs=3"], "ensemble=fast_geometric ensemble.cycle_epochs=3"),
    (["model.channels=[3]"], "model=cnn model.channels=[3]"),
    (["scheduler.gamma=0.5"], "scheduler=step scheduler.gamma=0.5"),
    (["optim.momentum=0.5"], "optim=sgd optim.momentum"),
    (["model.zebra=1"], "remove it: ~model.zebra"),
]


@pytest.mark.parametrize(("typed", "fix"), TYPED)
def test_the_option_that_takes_the_argument_is_named(typed: list[str], fix: str) -> None:
    with pytest.raises(UserErrors) as raised:
        compose(typed)
    assert fix in str(raised.value)
