"""Runs that go on with what a plain loop has begun."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lightkit.assembly import build
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.runner import Runner
from lightkit.runs.reading import read_jsonl
from tests.runner.processes import configured, train

WHOLE = (
    "data=wine", "device=cpu", "logger=quiet", "logger.tensorboard.enabled=false", "metrics.figures=[]",
    "data.batch_size=124", "model.hidden=[8]", "model.dropout=0.0", "scheduler=cosine", "optim.no_decay=false",
    "optim.lr=0.01", "optim.weight_decay=0.02", "trainer.epochs=6", "trainer.test=none",
)  # fmt: skip
"""Batches of the whole split, so that the order of its rows does not matter."""
MADE = {
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.02),
    "sgd": lambda model: torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.02
    ),
}  # fmt: skip


def plain_loop(file: Path, *overrides: str, kind: str = "adamw") -> list[float]:
    """Six epochs as somebody writes them by hand, with a checkpoint in between; returns the losses."""
    content, losses = looped(overrides, kind)
    file.write_bytes(content)
    return losses


@cache
def looped(overrides: tuple[str, ...], kind: str) -> tuple[bytes, list[float]]:
    """What the checkpoint holds, and the losses."""
    learner, file = build(compose([*WHOLE, *overrides]).cfg, Path("nowhere")), io.BytesIO()
    x, y = next(iter(learner.data.train.epoch(0)))
    model, optimizer = learner.model, MADE[kind](learner.model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
    losses = []
    for epoch in range(6):
        if epoch == 2:
            content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(content | {"scheduler": schedule.state_dict()}, file)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return file.getvalue(), losses


def losses(folder: Path) -> list[float]:
    return [row["train/loss"] for row in read_jsonl(folder / "metrics.jsonl") if "train/loss" in row]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_a_run_goes_on_as_the_loop_would_have(kind: str, tmp_path: Path) -> None:
    own = {"adamw": ("optim=adamw",), "sgd": ("optim=sgd", "optim.momentum=0.9", "optim.nesterov=true")}[kind]
    wanted = plain_loop(tmp_path / "file.pt", *own, kind=kind)
    cfg = compose([*WHOLE, *own, f"resume.file={tmp_path / 'file.pt'}"]).cfg
    result = Runner(cfg, tmp_path / "run").run()
    assert (result["epochs"], result["steps"]) == (6, 6)
    assert losses(tmp_path / "run") == pytest.approx(wanted[2:], rel=1e-4)
    log = (tmp_path / "run" / "run.log").read_text()
    assert f"{tmp_path / 'file.pt'}: weights and optimizer after 2 epochs, 2 steps" in log
    rates = [row["lr/all"] for row in read_jsonl(tmp_path / "run" / "metrics.jsonl") if "lr/all" in row]
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(torch.optim.SGD([torch.zeros(1)], lr=0.01), 6)
    assert rates[0] == pytest.approx(cosine.base_lrs[0] * 0.75)


def test_it_is_a_run_like_any_other_and_resumes_from_its_own_checkpoints(tmp_path: Path) -> None:
    plain_loop(tmp_path / "file.pt")
    cfg = compose([*WHOLE, f"resume.file={tmp_path / 'file.pt'}"]).cfg
    Runner(cfg, tmp_path / "whole").run()
    Runner(compose([*WHOLE, f"resume.file={tmp_path / 'file.pt'}", "trainer.stop_at=4"]).cfg, tmp_path / "cut").run()
    (tmp_path / "file.pt").unlink()
    Runner(cfg, tmp_path / "cut").run(resume=True)
    assert losses(tmp_path / "whole") == losses(tmp_path / "cut")
    contents = []
    for name in ("whole", "cut"):
        newest = CheckpointStore(tmp_path / name / "checkpoints").load_newest()
        assert newest is not None
        contents.append(newest[1])
    for name, tensor in contents[0]["model"].items():
        assert torch.equal(tensor, contents[1]["model"][name])


def test_what_differs_is_told(tmp_path: Path) -> None:
    plain_loop(tmp_path / "file.pt")
    changes = ("optim.weight_decay=0.1", "trainer.ema.decay=0.9", "resume.epoch=3")
    Runner(compose([*WHOLE, *changes, f"resume.file={tmp_path / 'file.pt'}"]).cfg, tmp_path / "run").run()
    log = (tmp_path / "run" / "run.log").read_text()
    assert "optim.weight_decay: 0.02 in the file, 0.1 from now on" in log
    assert "after 3 epochs, 2 steps (it says epoch 2)" in log
    weights = torch.load(tmp_path / "file.pt", weights_only=True)["model"]
    torch.save({"state_dict": weights, "epoch": 2}, tmp_path / "file.pt")
    Runner(compose([*WHOLE, f"resume.file={tmp_path / 'file.pt'}"]).cfg, tmp_path / "bare").run()
    assert "no state of an optimizer: it begins with an empty one" in (tmp_path / "bare" / "run.log").read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("scheduler", ["constant", "torch"])
def test_the_schedule_stands_where_the_file_does(scheduler: str, tmp_path: Path) -> None:
    own = (
        ("scheduler=torch", "scheduler.scheduler._target_=torch.optim.lr_scheduler.ExponentialLR",
         "+scheduler.scheduler.gamma=0.5", "scheduler.interval=step")
        if scheduler == "torch"
        else ("scheduler=constant", "scheduler.warmup_steps=3")
    )  # fmt: skip
    plain_loop(tmp_path / "file.pt")
    cfg = compose([*WHOLE, *own, "logger.every_steps=1", f"resume.file={tmp_path / 'file.pt'}"]).cfg
    Runner(cfg, tmp_path / "run").run()
    rates = [row["lr/all"] for row in read_jsonl(tmp_path / "run" / "metrics.jsonl") if "lr/all" in row]
    assert rates[0] == pytest.approx(0.01 * (0.25 if scheduler == "torch" else 0.75))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("trainer.epochs=2",), "trainer.epochs: the file has come to 2 epochs, and nothing is left"),
        (("trainer.steps=2",), "trainer.steps: the file has come to 2 steps"),
        (
            ("model.hidden=[9]",),
            r"(?s)6 of 6 names are the same(?=.*MLP\(hidden=\[9\], )(?=.*optim=adamw \()"
            r".*layers\.linear0\.weight has another shape in the checkpoint",
        ),
        (("model.hidden=[8,8]",), "the checkpoint has no weights for"),
        (("optim=rmsprop",), "the optimizer in the file keeps something else"),
    ],
)
def test_what_does_not_fit_writes_nothing(changes: tuple[str, ...], message: str, tmp_path: Path) -> None:
    plain_loop(tmp_path / "file.pt")
    overrides = [text for text in WHOLE if not ("optim=rmsprop" in changes and text.startswith("optim."))]
    cfg = compose([*overrides, *changes, f"resume.file={tmp_path / 'file.pt'}"]).cfg
    with pytest.raises(UserError, match=message):
        Runner(cfg, tmp_path / "run").run()
    assert not list((tmp_path / "run").glob("checkpoints/*.pt"))


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("resume.file=a.pt ensemble=voting", r"resume\.file: one checkpoint cannot be that of several models"),
        ("resume.file=a.pt finetune=full finetune.weights.path=b", r"resume\.file: finetune\.weights\.path gives"),
        ("resume.epoch=3", r"resume\.epoch: these are the epochs of resume\.file"),
    ],
)
def test_keys_that_contradict_each_other(typed: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        compose(typed.split())


@pytest.mark.thorough
def test_from_the_command_line(cli: Callable[..., Any], project: Path) -> None:
    wanted = plain_loop(project / "it's a file.pt")
    done = cli("resume", "it's a file.pt", *WHOLE, "name=taken")
    assert done.code == 0, done.err
    folder = next((project / "outputs/runs").glob("*/*-taken"))
    assert losses(folder) == pytest.approx(wanted[2:], rel=1e-4)
    assert json.loads((folder / "result.json").read_text())["steps"] == 6
    again = cli("resume", "taken", "trainer.epochs=8")
    assert again.code == 0, again.err
    checkpoint = next((folder / "checkpoints").glob("*.pt"))
    own = cli("resume", str(checkpoint), *WHOLE)
    assert own.code == 2
    assert f"fix:      lightkit resume {folder}" in own.err


def test_without_overrides_the_error_says_what_to_type(cli: Callable[..., Any], project: Path) -> None:
    model = nn.Sequential(nn.Linear(13, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(2, 13)).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 90}, project / "loop.pt")
    refused = cli("resume", "loop.pt")
    assert refused.code == 2
    for part in (
        "loop.pt: the weights are those of another model than this run has: 0 of 10 names are the same",
        "MLP(hidden=[256, 256], activation=relu, norm=layer, dropout=0.0) for inputs of 1×8×8: ",
        "layers.linear0.weight 256×64, ",
        "'0.weight 8×13, 0.bias 8, 2.weight 3×8, 2.bias 3 (4 in all)'",
        "lightkit resume loop.pt model=NAME model.KEY=VALUE data=NAME optim=sgd optim.momentum=0.9 optim.nesterov=fals",
    ):
        assert part in refused.err
    assert not list((project / "outputs").glob("runs/*/*"))


@pytest.mark.thorough
def test_in_two_processes(tmp_path: Path) -> None:
    wanted = plain_loop(tmp_path / "file.pt")
    cfg = configured(*WHOLE[1:], "device.parallel=fsdp", f"resume.file={tmp_path / 'file.pt'}")
    assert losses(train(tmp_path / "run", cfg, 2)) == pytest.approx(wanted[2:], rel=1e-3)
