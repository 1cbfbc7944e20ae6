"""Every method against TorchEnsemble's: the same data, network, optimizer, epochs and number of members.

    python -m experiments.ensembles.against_torchensemble            # ten seeds, both data sets
    python -m experiments.ensembles.against_torchensemble --seeds 3  # fewer

Writes a table; of digits the accuracy, of diabetes R², on the test split, mean and standard deviation over seeds. Each
seed is also that of the split. Both sides take the weights of the last step and a constant rate of Adam.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
import torchensemble
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightkit.assembly.parts import build_engine, build_splits
from lightkit.config import compose
from lightkit.models import MLP
from lightkit.runner import Runner

SIZE = 5
HIDDEN, LR, BATCH = 64, 3e-3, 64
EPOCHS = {"digits": 12, "diabetes": 40}
EPSILON = 0.05
METHODS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "voting": ("Voting", {}, []),
    "bagging": ("Bagging", {}, []),
    "fusion": ("Fusion", {}, []),
    "gradient_boosting": ("GradientBoosting", {"shrinkage_rate": 0.5}, ["ensemble.shrinkage=0.5"]),
    "soft_gradient_boosting": ("SoftGradientBoosting", {"shrinkage_rate": 0.5}, ["ensemble.shrinkage=0.5"]),
    "snapshot": ("SnapshotEnsemble", {}, []),
    "fast_geometric": ("FastGeometric", {}, ["ensemble.cycle_epochs=4", "ensemble.high=1.0", "ensemble.low=0.01"]),
    "adversarial": ("AdversarialTraining", {}, [f"ensemble.epsilon={EPSILON}"]),
}
"""Name of the method → its name in TorchEnsemble, more of its arguments, our overrides."""
BOOSTED = ("gradient_boosting", "soft_gradient_boosting")


def overrides(data: str, method: str, seed: int) -> list[str]:
    """Return what makes our run the same task as TorchEnsemble's."""
    epochs = EPOCHS[data] - EPOCHS[data] % SIZE if method == "snapshot" else EPOCHS[data]
    scale = "minmax" if method == "adversarial" else "standard"
    return [
        *(f"data={data}", f"data.normalize={scale}", f"data.split.seed={seed}", f"seed={seed}", "data.augment=[]"),
        *(f"data.batch_size={BATCH}", f"model.hidden=[{HIDDEN}]", "model.norm=none", "model.dropout=0"),
        *("optim=adam", f"optim.lr={LR}", "optim.weight_decay=0", "scheduler=constant", f"trainer.epochs={epochs}"),
        *("trainer.test=last", "device=cpu", "logger=quiet", "logger.tensorboard.enabled=false", "metrics.figures=[]"),
        *(f"ensemble={method}", f"ensemble.size={SIZE}", *METHODS[method][2]),
    ]


def ours(data: str, method: str, seed: int) -> float:
    """Train our ensemble and return its value on the test split."""
    with tempfile.TemporaryDirectory() as folder:
        result = Runner(compose(overrides(data, method, seed)).cfg, Path(folder) / "run").run()
    values: dict[str, float] = result["test"]
    return values["test/accuracy"] if data == "digits" else values["test/r2"]


def theirs(data: str, method: str, seed: int) -> float:
    """Train TorchEnsemble's and return its value on the test split."""
    cfg = compose(overrides(data, method, seed)).cfg
    splits = build_splits(cfg, build_engine(cfg))
    x, y = splits.source.take(torch.arange(len(splits.source)))
    train, test = splits.rows["train"], splits.rows["test"]
    classes = data == "digits"
    torch.manual_seed(seed)
    x, y = x.flatten(1), y if classes else y.reshape(len(y), -1)
    loader = DataLoader(TensorDataset(x[train], y[train]), batch_size=BATCH, shuffle=True)
    name, arguments, _ = METHODS[method]
    sizes = {"in_features": x.shape[1], "num_classes": 10 if classes else y.shape[1]}
    kind = getattr(torchensemble, f"{name}{'Classifier' if classes else 'Regressor'}")
    made = kind(estimator=network(sizes), n_estimators=SIZE, cuda=False, **arguments, **_jobs(method))
    if method not in BOOSTED:
        made.set_criterion(nn.CrossEntropyLoss() if classes else nn.MSELoss())
    made.set_optimizer("Adam", lr=LR)
    with redirect_stdout(StringIO()):  # it prints the first batch of every epoch
        made.fit(loader, epochs=int(cfg.trainer.epochs), save_model=False, log_interval=10**9, **_fitting(method))
    made.eval()
    with torch.no_grad():
        return score(made(x[test]), y[test], classes)


def network(sizes: dict[str, int]) -> type[nn.Module]:
    """Return a class that builds the network without arguments: given an instance, all members would start equal."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = MLP(**sizes, hidden=[HIDDEN], norm="none", dropout=0.0)

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    return Network


def _jobs(method: str) -> dict[str, Any]:
    return {"n_jobs": 1} if method in ("voting", "bagging", "adversarial") else {}


def _fitting(method: str) -> dict[str, Any]:
    if method == "fast_geometric":
        return {"cycle": 4, "lr_1": LR, "lr_2": LR * 0.01}
    return {"epsilon": EPSILON} if method == "adversarial" else {}


def score(outputs: Tensor, targets: Tensor, classes: bool) -> float:
    """Return accuracy, or R²."""
    if classes:
        return float((outputs.argmax(1) == targets).double().mean())
    rest, total = (targets - outputs).square().sum(), (targets - targets.mean(0)).square().sum()
    return float(1 - rest / total)


def rows(seeds: int, data: str, methods: Sequence[str]) -> Iterator[str]:
    """Yield the rows of the table of a data set."""
    yield f"| {data} | lightkit | TorchEnsemble | difference ± its standard error |"
    yield "| --- | --- | --- | --- |"
    for method in methods:
        found = [(ours(data, method, seed), _or_nan(theirs, data, method, seed)) for seed in range(seeds)]
        gains = [own - other for own, other in found]
        error = statistics.stdev(gains) / len(gains) ** 0.5
        shown = " | ".join(f"{statistics.mean(side):.4f} ± {statistics.stdev(side):.4f}" for side in zip(*found))
        yield f"| {method} | {shown} | {statistics.mean(gains):+.4f} ± {error:.4f} |"


def _or_nan(measure: Callable[[str, str, int], float], data: str, method: str, seed: int) -> float:
    try:
        return measure(data, method, seed)
    except (RuntimeError, ValueError, AttributeError, TypeError) as error:
        sys.stderr.write(f"TorchEnsemble's {method} of {data} failed: {error}\n")
        return float("nan")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--data", nargs="*", default=list(EPOCHS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    for data in options.data:
        for row in rows(options.seeds, data, options.methods):
            sys.stdout.write(f"{row}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
