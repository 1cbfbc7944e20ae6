"""The moving average of the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn

from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.runner import Runner
from lightkit.trainer import Ema, NoAverage, Swa
from lightkit.trainer.average import OwnAverage, averages_itself
from lightkit.trainer.callbacks import Callback
from lightkit.trainer.interrupt import AskedToEnd, Interrupt
from tests.trainer.parts import changed, network, trainer


def filled(net: nn.Module, value: float) -> None:
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(value)


def test_the_average_follows_the_weights_with_a_warm_start() -> None:
    net = nn.Linear(1, 1, bias=False)
    filled(net, 0.0)
    ema, expected = Ema(net, 0.5), 0.0
    for step in range(1, 20):
        filled(net, step)
        ema.update()
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
    with ema.applied():
        assert net.weight.item() == pytest.approx(expected, rel=1e-6)
    assert net.weight.item() == 19
    with pytest.raises(KeyError), ema.applied():
        raise KeyError
    assert net.weight.item() == 19, "own weights come back after an error"


def test_what_is_averaged_comes_back() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    ema, other = Ema(net, 0.9), Ema(net, 0.9)
    filled(net, 3.0)
    ema.update()
    state = ema.state_dict()
    assert "1.running_mean" in state["weights"]
    assert "1.num_batches_tracked" not in state["weights"], "a counter has no mean"
    other.load_state_dict({"steps": ema.steps, "weights": {k: v.clone() for k, v in state["weights"].items()}})
    assert other.steps == 1
    other.keep()
    assert torch.equal(net[0].weight, state["weights"]["0.weight"])


def test_no_average_leaves_the_model_alone() -> None:
    average = NoAverage()
    average.update()
    with average.applied():
        pass
    average.keep()
    assert average.state_dict() == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_average_is_kept_in_fp32_at_least(dtype: torch.dtype) -> None:
    model = nn.Linear(2, 2, bias=False).to(dtype)
    filled(model, 1.0)
    average = Ema(model, 0.999)
    filled(model, 2.0)
    for _ in range(50):
        average.update()
    mean = average.state_dict()["weights"]["weight"]
    assert mean.dtype == torch.promote_types(dtype, torch.float32)
    before = mean.clone()
    average.steps = 100_000  # where a step moves it by a thousandth of the difference
    filled(model, 3.0)
    average.update()
    assert not torch.equal(average.state_dict()["weights"]["weight"], before)
    with average.applied():
        assert model.weight.dtype == dtype
        assert torch.equal(model.weight, average.state_dict()["weights"]["weight"].to(dtype))
    assert torch.equal(model.weight, torch.full((2, 2), 3.0, dtype=dtype))


class Reference(Callback):
    """Averages the weights at the ends of epochs as PyTorch does."""

    def __init__(self, net: nn.Module, from_epoch: int) -> None:
        self.average, self.from_epoch = AveragedModel(net), from_epoch

    def on_epoch(self, trainer: Any, values: dict[str, float]) -> None:
        if trainer.state.epoch >= self.from_epoch:
            self.average.update_parameters(trainer.model)


def test_weights_of_epochs_and_their_statistics_are_those_of_pytorch() -> None:
    net = network(dropout=0.0)
    reference, swa = Reference(net, 3), Swa(net, 3)
    run = trainer(net, timetable={"epochs": 6}, callbacks=[reference], average=swa)
    run.fit()
    train = run.learner.data.train
    batches = train.with_rows(train.rows, shuffle=True, drop_last=True).epoch(5)
    update_bn([x for x, _ in batches], reference.average)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    expected = reference.average.module.state_dict()
    with swa.applied():
        for name, tensor in net.state_dict().items():
            if "num_batches" not in name:
                assert torch.allclose(tensor, expected[name], atol=1e-6), name
        assert not torch.equal(net[1].running_mean, before["1.running_mean"])
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert (net[1].momentum, net[1].training, int(net[1].num_batches_tracked)) == (0.1, True, 24)


def test_an_epoch_counts_once_and_before_the_first_nothing_is_averaged() -> None:
    net, asked = network(), Interrupt()
    swa = Swa(net, 2)
    run = trainer(net, timetable={"epochs": 2}, average=swa)
    learner = run.learner
    swa.end_epoch(learner, asked)
    with swa.applied():
        assert swa.state_dict()["weights"] == {}
    learner.state.epoch, learner.state.step = 1, 8
    net[1].eval()  # a frozen norm keeps its statistics
    swa.end_epoch(learner, asked)
    filled(net, 9.0)
    swa.end_epoch(learner, asked)
    assert swa.steps == 1
    kept = swa.state_dict()["weights"]
    assert not torch.equal(kept["0.weight"], net[0].weight)
    assert torch.equal(kept["1.running_mean"], net[1].running_mean)
    other = Swa(net, 2)
    other.load_state_dict(Swa(net, 2).state_dict())
    assert other.steps == 0
    other.load_state_dict(swa.state_dict())
    other.keep()
    assert torch.equal(net[0].weight, kept["0.weight"])


def test_a_signal_while_statistics_are_computed_leaves_them_for_the_next_time() -> None:
    class Asked(Interrupt):
        def wait(self, batches: Any, *end: Any) -> Any:
            next(batches)
            raise AskedToEnd

    net = network()
    run, swa = trainer(net, timetable={"epochs": 2}), Swa(net, 1)
    learner = changed(run, average=swa).learner
    net.train()
    mean = net[1].running_mean.clone()
    with pytest.raises(AskedToEnd):
        swa.end_epoch(learner, Asked())
    assert torch.equal(net[1].running_mean, mean)
    assert net.training
    assert net[1].momentum == 0.1
    swa.end_epoch(learner, Interrupt())
    assert swa.steps == 1
    assert not torch.equal(swa.state_dict()["weights"]["1.running_mean"], mean)


class Halving(torch.optim.SGD):
    """Trains a third of what it evaluates, so that going there and back rounds."""

    def eval(self) -> None:
        with torch.no_grad():
            [parameter.mul_(3.0) for group in self.param_groups for parameter in group["params"]]

    def train(self) -> None:
        with torch.no_grad():
            [parameter.div_(3.0) for group in self.param_groups for parameter in group["params"]]


def test_the_average_of_an_optimizer_is_applied_saved_and_put_back_with_its_bits() -> None:
    assert averages_itself(Halving(nn.Linear(2, 2).parameters(), lr=0.1))
    assert not averages_itself(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(7, 7), nn.BatchNorm1d(7))
    average = OwnAverage(net, Halving(net[0].parameters(), lr=0.1))
    own = net[0].weight.detach().clone()
    with average.applied():
        assert torch.equal(net[0].weight, own * 3)
    with pytest.raises(KeyError), average.applied():
        raise KeyError
    saved = average.state_dict()["weights"]
    assert torch.equal(net[0].weight, own), "to the last bit, whatever was evaluated or saved"
    assert saved.keys() == {"0.weight", "0.bias"}
    assert torch.equal(saved["0.weight"], own * 3)
    average.keep()
    assert torch.equal(net[0].weight, own * 3)


def test_checkpoints_of_a_schedule_free_run_hold_the_weights_to_evaluate(tmp_path: Path) -> None:
    pytest.importorskip("schedulefree")
    quick = (
        "data=wine",
        "optim=schedule_free",
        "trainer.epochs=3",
        "model.hidden=[8]",
        "device=cpu",
        "trainer.watch.every=1",
    )
    cfg = compose([*quick, "logger.console.style=quiet"]).cfg
    Runner(cfg, tmp_path / "run").run()
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    last = next(row for row in reversed(rows) if "val/loss" in row)
    assert Runner(cfg, tmp_path / "run").evaluate("val", "last")["val/loss"] == pytest.approx(last["val/loss"])
    with pytest.raises(UserError, match=r"trainer\.ema\.decay: AdamWScheduleFree averages the weights itself"):
        Runner(compose([*quick, "trainer.ema.decay=0.9"]).cfg, tmp_path / "both").run()
    assert not (tmp_path / "both").exists()
