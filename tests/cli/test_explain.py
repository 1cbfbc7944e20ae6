"""`lightkit explain`, the page it reads, and the codes that commands end with."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from lightkit.cli.doctor import PAGE, sections
from lightkit.common.errors import FAMILIES
from lightkit.config.project import shipped_docs
from tests.conftest import Cli

CODES = [family.code for family in FAMILIES]


def test_registry_page_and_command_know_the_same_codes(cli: Cli) -> None:
    text = (shipped_docs() / PAGE).read_text(encoding="utf-8")
    headings = [f"## {family.code}: {family.title} {{#{family.code.lower()}}}" for family in FAMILIES]
    assert re.findall(r"^## .*$", text, re.M) == headings
    assert [*sections()] == CODES
    listed = [line.split() for line in cli("explain").out.splitlines()[1 : len(FAMILIES) + 1]]
    assert [(cells[0], cells[1]) for cells in listed] == [(family.code, family.slug) for family in FAMILIES]


def test_every_code_says_what_it_means_its_causes_and_its_fixes() -> None:
    for code, text in sections().items():
        title, example, rest = text.partition("\n    ")
        assert len(title.splitlines()) >= 3, code
        assert f"more: lightkit explain {code}" in example + rest
        assert re.search(r"\nCauses\n\n- .*\n\nFixes\n\n- ", text, re.S), code


def test_a_section_is_plain_text(cli: Cli) -> None:
    done = cli("explain", "LK101")
    assert done.out.startswith("LK101: Unknown key\n\nThe configuration has no key of this name.")
    assert "\n    error: data.batchsize: unknown key\n" in done.out
    assert not re.search(r"```|<!--|\*\*|\]\(", done.out)


def test_codes_and_names_in_any_order_and_each_once(cli: Cli) -> None:
    done = cli("explain", "lk405", "unknown-key", "LK405")
    assert re.findall(r"^LK\d+: ", done.out, re.M) == ["LK405: ", "LK101: "]
    (row,) = json.loads(cli("explain", "LK101", "--json").out)
    assert (row["slug"], row["text"]) == ("unknown-key", sections()["LK101"])
    assert [row["code"] for row in json.loads(cli("explain", "--json").out)] == CODES


@pytest.mark.parametrize(
    ("command", "codes"),
    [
        ("train trainer.epoch=5", ["LK101"]),
        ("train trainer.epochs=many", ["LK102"]),
        ("train data=csv", ["LK103"]),
        ("train data=wnie", ["LK104"]),
        ("trian", ["LK105"]),
        ("train model._target_=torch.nn.Lineer", ["LK106"]),
        ("train model._target_=os.system", ["LK107"]),
        ("train optim.momentum=0.9", ["LK108"]),
        ("train scheduler.warmup_steps=5 scheduler.warmup_epochs=1", ["LK109"]),
        ("train data.augment=[{a", ["LK110"]),
        ("train -m hydra.run.dir=a,b", ["LK111"]),
        ("train data=csv data.dataset.path=lost.csv data.dataset.target=y", ["LK201"]),
        ("train data=csv data.dataset.path=table.csv data.dataset.target=z", ["LK203"]),
        ("train data.split.val=0.6 data.split.test=0.6", ["LK204"]),
        ("train metrics.monitor=val/f2", ["LK206"]),
        ("train finetune.freeze=[@nothing]", ["LK302"]),
        ("train finetune.freeze=[*]", ["LK305"]),
        ("train device.name=tpu", ["LK401"]),
        ("eval birds", ["LK501"]),
        ("ckpt inspect lost.pt", ["LK508"]),
        ("ckpt inspect table.csv", ["LK504"]),
        ("train trainer.epoch=5 data=wnie trainer.steps=x", ["LK104", "LK101", "LK102"]),
    ],
)
def test_a_command_that_fails_ends_with_its_codes(cli: Cli, project: Path, command: str, codes: list[str]) -> None:
    (project / "table.csv").write_text("a,b,y\n1,2,0\n3,4,1\n5,6,1\n")
    done = cli(*command.split())
    assert done.code in (2, 5)
    first, *told = re.findall(r"^more: .*$", done.err, re.M)
    assert not told
    assert done.err.endswith(f"{first}\n")
    assert sorted(first.removeprefix("more: lightkit explain ").split()) == sorted(codes)


PASTED = "TypeError: pic should be PIL Image or ndarray. Got <class 'torch.Tensor'>"


@pytest.mark.parametrize(
    ("command", "how"),
    [("explain", how) for how in ("quoted", "words", "file", "dash", "redirected", "piped")]
    + [("doctor", "file"), ("doctor", "dash"), ("doctor", "piped")],
)
def test_the_text_of_an_error_is_explained_however_it_is_handed_in(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch, how: str, command: str
) -> None:
    file, text = project / "error.txt", f"Traceback (most recent call last):\n{PASTED}\n"
    file.write_text(text)
    receive, send = os.pipe()
    os.write(send, text.encode())
    os.close(send)
    args = {"quoted": [PASTED], "words": PASTED.split(), "file": [str(file)], "dash": ["-"]}.get(how, [])
    with os.fdopen(receive) as pipe, file.open() as stream:
        monkeypatch.setattr("sys.stdin", pipe if how in ("dash", "piped") else stream)
        done = cli(command, *args)
    assert done.code == 0
    assert "\ntransform of another kind of picture\n" in done.out
    assert "ToTensor() once" in done.out


def test_other_texts(cli: Cli) -> None:
    assert "process at the other end of a pipe" in cli("explain", "BrokenPipeError").out
    (known,) = json.loads(cli("explain", PASTED, "--json").out)["known"]
    assert known["name"] == "transform of another kind of picture"
    unknown = cli("explain", "ValueError: nobody knows this one")
    assert (unknown.code, "not an error that is known here" in unknown.out) == (1, True)
    own = cli("explain", "error: optim.lrr: unknown key\nmore: lightkit explain LK101")
    assert "lightkit explain LK101 says more" in own.out
