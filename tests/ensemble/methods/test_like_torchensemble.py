"""TorchEnsemble's own `fit` with our first weights and our order of rows comes to what our methods come to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torchensemble
from torch import Tensor, nn

from lightkit.assembly import Shared, build_model, build_own, build_shared
from lightkit.config import load_run
from lightkit.data.loaders import Loader
from lightkit.ensemble.module import Joint
from lightkit.ensemble.oof import MemberPredictions
from tests.ensemble.methods.running import train

EPOCHS, SIZE = 2, 3
OPTIONS = (
    *("data=diabetes", "model.norm=none", "optim=adam", "optim.weight_decay=0", "scheduler=constant"),
    *("ensemble.engine=sequential", "trainer.test=last", f"ensemble.size={SIZE}"),
)


class Batches:
    """Our batches of each member, as often as the library reads them; its first look tells it the number of outputs.

    Args:
        loaders: The training rows of each member.
        by_epoch: Whether it trains all members for an epoch before the next one.
    """

    def __init__(self, loaders: list[Loader], *, by_epoch: bool) -> None:
        self.loaders, self.by_epoch, self.reads = loaders, by_epoch, -1

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        number, self.reads = max(self.reads, 0), self.reads + 1
        epoch, member = divmod(number, len(self.loaders)) if self.by_epoch else divmod(number, EPOCHS)[::-1]
        for x, y in self.loaders[member].epoch(epoch):
            yield x, y.reshape(len(y), -1)


@pytest.mark.parametrize(
    ("method", "name", "own", "fitting"),
    [
        ("gradient_boosting", "GradientBoosting", {}, {"use_reduction_sum": False}),
        ("voting", "Voting", {"n_jobs": 1}, {}),
        ("fusion", "Fusion", {}, {}),
    ],
)
def test_same_weights_and_order_come_to_the_same(
    tmp_path: Path, method: str, name: str, own: dict[str, Any], fitting: dict[str, Any]
) -> None:
    options = [option for option in OPTIONS if method == "voting" or "engine" not in option]
    train(tmp_path, *options, f"ensemble={method}", *(["ensemble.patience=null"] if "boosting" in method else []))
    shared, first, loaders = None, list[nn.Module](), list[Loader]()
    for folder in sorted((tmp_path / "members").iterdir()):
        cfg = load_run(folder).cfg
        shared = shared or build_shared(load_run(tmp_path).cfg, tmp_path)
        mine: Shared = build_own(cfg, shared, folder)
        network = build_model(cfg, mine.data.info, mine.engine)
        first += [*network.estimators] if isinstance(network, Joint) else [network]
        loaders.append(mine.data.train)
    assert shared is not None
    waiting = iter(first)

    class Next(nn.Module):
        def __new__(cls) -> Any:
            return next(waiting)

    theirs = getattr(torchensemble, f"{name}Regressor")(Next, SIZE, cuda=False, **own)
    if method != "gradient_boosting":
        theirs.set_criterion(nn.MSELoss())
    theirs.set_optimizer("Adam", lr=0.01)
    theirs.fit(Batches(loaders, by_epoch=method == "voting"), epochs=EPOCHS, save_model=False, **fitting)
    theirs.eval()
    loader = shared.data.evaluation("test")
    assert loader is not None
    with torch.no_grad():
        outputs = torch.cat([theirs(x) for x, _ in loader.epoch(0)])
    kept = MemberPredictions.read(tmp_path / "oof.safetensors").of_split("test")
    found = dict(zip(kept.rows.tolist(), kept.predictions))
    expected = torch.stack([found[row] for row in loader.rows.tolist()])
    torch.testing.assert_close(outputs, expected.reshape(outputs.shape).to(outputs.dtype), rtol=1e-4, atol=1e-4)
