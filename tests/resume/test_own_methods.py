"""Ensemble methods of a user's own: members that see each other in a step, and members computed from others."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lightkit.checkpoint import content
from lightkit.checkpoint.store import CheckpointStore
from lightkit.config import compose
from lightkit.ensemble.file import read_ensemble
from lightkit.ensemble.oof import MemberPredictions
from lightkit.runner.trace import Moment, traced_runner
from tests.conftest import ROOT, Outcome
from tests.resume.ensembles import BASE, differences, go_on, train
from tests.resume.harness import forked

GUIDE = (ROOT / "docs" / "guides" / "own-parts.md").read_text(encoding="utf-8")
MUTUAL = GUIDE.partition('```python title="mutual.py"\n')[2].partition("```\n")[0]
SWAG = '''
import torch
from lightkit.ensemble.methods import Method, computed, member

class Swag(Method):
    """Samples of a normal distribution over weights (https://arxiv.org/abs/1902.02476)."""

    def __init__(self, *, size=3, iterates=4, scale=0.5):
        super().__init__(size=size)
        self.iterates, self.scale = iterates, scale

    def next(self, facts, done):
        names = [result.member.name for result in done]
        if not done:
            return [member(facts, 0, "start")]
        if len(done) <= self.iterates:
            constant = {"_target_": "lightkit.optim.Constant"}
            values = {"trainer.epochs": 1, "trainer.test": "last", "scheduler": constant}
            return [member(facts, len(done), "iterate", values, weights_of=names[-1])]
        chosen = {"of": names[1 : 1 + self.iterates], "trainer.steps": None, "trainer.epochs": 1}
        first, sample = 1 + self.iterates, lambda scale: {"_target_": "swag.Sample", "scale": scale}
        numbers = range(len(done), first + self.size)
        return [computed(facts, k, "sample", by=sample((k - first) * self.scale), **chosen) for k in numbers]

    def counted(self, done):
        return done[1 + self.iterates :]

class Sample:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, states):
        along, weights = torch.randn(len(states)), {}
        for name, first in states[0].items():
            every = torch.stack([state[name] for state in states]).double()
            off = every - every.mean(0)
            own = off.square().mean(0).sqrt() * torch.randn(first.shape)
            shared = torch.einsum("k,k...->...", along.double(), off) / (len(states) - 1) ** 0.5
            weights[name] = (every.mean(0) + self.scale * (own + shared) / 2**0.5).to(first.dtype)
        return weights
'''
Cli = Callable[..., Outcome]


def weights(run: Path, name: str) -> dict[str, Tensor]:
    """Return the last weights of a member."""
    newest = CheckpointStore(run / "members" / name / "checkpoints").newest()
    assert newest is not None
    return content.load_model_state(newest)


def end_at(cfg: Any, place: Path, moment: Moment) -> None:
    """Train, or train on, until a moment at which the process is killed."""
    job = lambda: traced_runner(cfg, place, trace=place.with_name("trace"), end_at=moment).run(resume=place.is_dir())  # noqa: E731
    forked(job, place.with_name("log"), want=-signal.SIGKILL)


@pytest.mark.thorough
def test_members_that_see_each_other_in_a_step_go_on_after_kills_with_the_same_bits(project: Path) -> None:
    (project / "mutual.py").write_text(MUTUAL)
    cfg = compose([*BASE, "ensemble._target_=mutual.Mutual", "ensemble.size=3"]).cfg
    whole, place = project / "whole", project / "run"
    train(cfg, whole)
    end_at(cfg, place, Moment("step", 5, 0, "00-together"))
    forked(lambda: go_on(cfg, place), project / "log")
    assert differences(whole, place) == []

    joint, stored = weights(whole, "00-together"), read_ensemble(whole / "ensemble.safetensors")
    assert [one.name for one in stored.members] == ["01-part", "02-part", "03-part"]
    for number, one in enumerate(stored.members):
        assert all(tensor.equal(joint[f"estimators.{number}.{name}"]) for name, tensor in one.state.items())
    paths = [whole / "members" / one.name / "oof.safetensors" for one in stored.members]
    own = torch.stack([MemberPredictions.read(path).of_split("test").predictions for path in paths])
    assert not own[0].equal(own[1])
    together = MemberPredictions.read(whole / "oof.safetensors").of_split("test").predictions
    torch.testing.assert_close(together, own.mean(0).to(together.dtype))


def test_members_computed_from_the_checkpoints_of_others(project: Path, cli: Cli) -> None:
    (project / "swag.py").write_text(SWAG)
    args = [*BASE, "model.norm=batch", "optim=sgd", "ensemble._target_=swag.Swag", "name=swag"]
    assert cli("train", *args, "ensemble.iterates=3", "ensemble.size=2", "trainer.epochs=1").code == 0
    (run,) = (project / "outputs" / "runs").glob("*/*-swag")
    iterates = [weights(run, name) for name in ("01-iterate", "02-iterate", "03-iterate")]
    sample, statistic = weights(run, "04-sample"), "running_mean"
    assert any(name.endswith(statistic) for name in sample)
    for name, tensor in sample.items():  # a sample without spread is the mean, to the last bit
        mean = torch.stack([state[name] for state in iterates]).double().mean(0).to(tensor.dtype)
        renewed = "running" in name or name.endswith("num_batches_tracked")
        assert tensor.equal(mean) is not renewed, name
    other = weights(run, "05-sample")
    assert not any(sample[name].equal(other[name]) for name in sample if name.endswith("weight"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("code", "by", "message"),
    [
        ("return 3", "bad.Bad", "ensemble.member.computed_by: these are no weights"),
        ("return states[0]", "bad.Nowhere", "ensemble.member.computed_by"),
    ],
)
def test_weights_that_do_not_fit_are_refused(project: Path, cli: Cli, code: str, by: str, message: str) -> None:
    (project / "bad.py").write_text(
        "from lightkit.ensemble.methods import Method, computed, member\n"
        "class Two(Method):\n"
        "    def next(self, facts, done):\n"
        "        made = computed(facts, 1, 'made', of=['00'], by={'_target_': '" + by + "'})\n"
        "        return [[member(facts, 0)], [made], []][len(done)]\n"
        "class Bad:\n"
        "    def __call__(self, states):\n"
        f"        {code}\n"
    )
    refused = cli("train", *BASE, "trainer.epochs=1", "ensemble._target_=bad.Two")
    assert refused.code == 2
    assert message in refused.err
    assert "Traceback" not in refused.err
