"""Every method by both engines, lightkit's own and TorchEnsemble's: the same rows, batches, networks, rates and epochs.

    python -m experiments.ensembles.engines            # three seeds, both data sets
    python -m experiments.ensembles.engines --seeds 10  # more

Writes a table; of digits the accuracy, of diabetes R², on the test split, mean and standard deviation over seeds. Each
seed is also that of the split. Both sides take the weights of the last step and a constant rate of Adam.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from lightkit.config import compose
from lightkit.runner import Runner

SIZE = 5
VALUES = {"digits": "test/accuracy", "diabetes": "test/r2"}
EPOCHS = {"digits": 12, "diabetes": 40}
METHODS: dict[str, list[str]] = {
    "voting": [],
    "bagging": [],
    "fusion": [],
    "gradient_boosting": ["ensemble.shrinkage=0.5", "ensemble.patience=null"],
    "soft_gradient_boosting": ["ensemble.shrinkage=0.5"],
    "snapshot": [],
    "fast_geometric": ["ensemble.cycle_epochs=4", "ensemble.high=1.0", "ensemble.low=0.01"],
    "adversarial": ["ensemble.epsilon=0.05", "data.normalize=minmax"],
}


def overrides(data: str, method: str, seed: int, engine: str) -> list[str]:
    """Return the overrides of a run."""
    epochs = EPOCHS[data] - EPOCHS[data] % SIZE if method == "snapshot" else EPOCHS[data]
    return [
        *(f"data={data}", "data.normalize=standard", f"data.split.seed={seed}", f"seed={seed}", "data.augment=[]"),
        *("data.batch_size=64", "model.hidden=[64]", "model.norm=none", "model.dropout=0", f"trainer.epochs={epochs}"),
        *("optim=adam", "optim.lr=3e-3", "optim.weight_decay=0", "scheduler=constant", "trainer.test=last"),
        *("device=cpu", "logger=quiet", "logger.tensorboard.enabled=false", "metrics.figures=[]"),
        *(f"ensemble={method}", f"ensemble.size={SIZE}", f"ensemble.engine={engine}", *METHODS[method]),
    ]


def reached(data: str, method: str, seed: int, engine: str) -> float:
    """Train an ensemble and return its value on the test split."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):  # a quiet run prints its closing table
        result = Runner(compose(overrides(data, method, seed, engine)).cfg, Path(folder) / "run").run()
    return float(result["test"][VALUES[data]])


def rows(seeds: int, data: str, methods: Sequence[str]) -> Iterator[str]:
    """Yield the rows of the table of a data set."""
    yield f"| {data} | lightkit | TorchEnsemble | difference ± its standard error |"
    yield "| --- | --- | --- | --- |"
    for method in methods:
        found = [
            [reached(data, method, seed, engine) for engine in ("sequential", "torchensemble")] for seed in range(seeds)
        ]
        gains = [own - other for own, other in found]
        error = statistics.stdev(gains) / len(gains) ** 0.5
        shown = " | ".join(f"{statistics.mean(side):.4f} ± {statistics.stdev(side):.4f}" for side in zip(*found))
        yield f"| {method} | {shown} | {statistics.mean(gains):+.4f} ± {error:.4f} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", nargs="*", default=list(EPOCHS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    for data in options.data:
        for row in rows(options.seeds, data, options.methods):
            sys.stdout.write(f"{row}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
