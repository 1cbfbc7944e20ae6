"""What a configuration takes from the environment is shown by no command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Cli

SECRET = "hunter2-0b5f3a/it's"
TOKEN = "${oc.env:TOKEN}"
WINE = ("data=wine", "trainer.epochs=1", "device=cpu", "model.hidden=[4]", "metrics.figures=[]")
SHOWN = [
    ["config", *WINE, f"extra.t={TOKEN}", "--resolve"],
    ["train", *WINE, f"extra.t={TOKEN}", "--cfg", "job", "--resolve"],
    ["train", "-m", *WINE, "seed=1,2", f"extra.t={TOKEN}", "--cfg", "job"],
    ["plan", *WINE, f"extra.t={TOKEN}"],
    ["train", *WINE, f"seed={TOKEN}"],
    ["train", *WINE, f"device.name={TOKEN}"],
    ["train", *WINE, f"model._target_={TOKEN}"],
    ["train", *WINE, f"extra.a={TOKEN}", "seed=${extra.a}"],
    ["train", *WINE, f"finetune.weights.path={TOKEN}"],
    ["train", *WINE, f"finetune.weights.path=/no/{TOKEN}/file.pt"],
    ["train", *WINE, f"resume.file={TOKEN}"],
    ["train", *WINE, f"finetune.distill.teacher={TOKEN}"],
    ["train", "data=csv", f"data.dataset.path={TOKEN}", "data.dataset.target=y"],
    ["plan", "data=image_folder", f"data.dataset.root={TOKEN}"],
]


@pytest.mark.parametrize("words", SHOWN, ids=lambda words: " ".join(word for word in words if word not in WINE))
def test_no_message_shows_a_value_from_the_environment(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("TOKEN", SECRET)
    done = cli(*words)
    assert "hunter2" not in done.out + done.err
    assert "TOKEN" in done.out + done.err or done.code == 0
    assert not [path for path in project.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]


def test_no_file_of_a_run_holds_a_value_from_the_environment(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", SECRET)
    # The second value leads to the first by a way through a whole section.
    extra = [f"extra.a.token={TOKEN}", "+extra.b='${extra.a}'", "+extra.c='${extra.b.token}'"]
    given = [
        *extra,
        f"on_end=[no-such-command,{TOKEN}]",
        "logger.tensorboard.enabled=true",
        "hydra.run.dir=outputs/one",
    ]
    done = cli("train", *WINE, *given)
    assert done.code == 0, done.err
    shown = [cli("runs", "--json"), cli("compare", "outputs/one", "outputs/one"), cli("eval", "outputs/one"), done]
    assert not [one for one in shown if "hunter2" in one.out + one.err]
    files = [path for path in project.rglob("*") if path.is_file() and not {"code", ".code"} & {*path.parts}]
    assert not [path for path in files if b"hunter2" in path.read_bytes()], "what a module holds itself is kept with it"
    assert TOKEN in (project / "outputs/one/config.yaml").read_text()
