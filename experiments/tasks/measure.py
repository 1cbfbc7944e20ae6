"""The experiments of this folder over five seeds, and a classic beside each, on the same test rows by the same metric.

    python -m experiments.tasks.measure [reviews sentences sales fruit views]

Each prints rows of the table in the README. Settings of classics are chosen on the validation rows of each seed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline

from lightkit import Runner, compose
from lightkit.assembly.parts import build_engine, build_splits

SEEDS = range(5)
QUIET = ("device=cpu", "device.threads=1", "logger=quiet", "logger.console.style=quiet", "metrics.figures=[]")
Values = dict[str, float]


def network(name: str, folder: Path, *overrides: str) -> tuple[Values, Any]:
    """Train a network; returns what it reaches on the test rows, and its data."""
    cfg = compose([f"experiment=tasks/{name}", *QUIET, *overrides]).cfg
    result = Runner(cfg, folder).run()
    return result["test"], build_splits(cfg, build_engine(cfg))


def best(candidates: list[Any], train: tuple[Any, Any], val: tuple[Any, Any]) -> Any:
    """Fit all, and return the one that is best on the validation rows."""
    return max((each.fit(*train) for each in candidates), key=lambda each: each.score(*val))


def reviews(seed: int, folder: Path) -> Iterator[tuple[str, Values]]:
    """Classes of texts: a transformer, and counts of words and pairs of words."""
    found, data = network("reviews", folder, f"seed={seed}")
    yield "transformer", found
    source = data.source
    texts = [" ".join(source.reader.encodings["text"].names[n] for n in row if n) for row in source.x.tolist()]
    rows = {name: ([texts[i] for i in own], source.y[own].numpy()) for name, own in data.rows.items()}
    candidates = [
        make_pipeline(TfidfVectorizer(ngram_range=(1, 3), token_pattern=r"\S+"), LogisticRegression(C=c, max_iter=2000))
        for c in (0.3, 1, 3, 10, 30, 100)
    ]
    model = best(candidates, rows["train"], rows["val"])
    yield "TF-IDF of up to three words, logistic regression", {"test/accuracy": model.score(*rows["test"])}


def sentences(seed: int, folder: Path) -> Iterator[tuple[str, Values]]:
    """Tags of words: a transformer, and a word with its neighbours."""
    found, data = network("sentences", folder, f"seed={seed}")
    yield "transformer", found

    def windows(rows: Any) -> tuple[list[dict[str, str]], np.ndarray]:
        x, y = data.source.take(rows)
        cells, tags = [], []
        for words, marks in zip(x.tolist(), y.tolist(), strict=True):
            padded = [0, 0, *words, 0, 0]
            for place, mark in enumerate(marks):
                if mark >= 0:
                    cells.append({f"{off}": str(padded[place + 2 + off]) for off in range(-2, 3)})
                    tags.append(mark)
        return cells, np.array(tags)

    rows = {name: windows(own) for name, own in data.rows.items()}
    candidates = [make_pipeline(DictVectorizer(), LogisticRegression(C=c, max_iter=2000)) for c in (1, 10)]
    model = best(candidates, rows["train"], rows["val"])
    yield "word and two neighbours a side, logistic regression", {"test/accuracy": model.score(*rows["test"])}


def sales(seed: int, folder: Path) -> Iterator[tuple[str, Values]]:
    """Forecasts: a network, ridge regression on the same windows, and the seasonal naive forecast."""
    found, data = network("sales", folder, f"seed={seed}")
    yield "perceptron", found

    def scaled(split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x, y = (part.numpy() for part in data.source.take(data.rows[split]))
        naive, scale = x[:, -y.shape[1] :, 0], x[:, 0, -1:]
        level = naive.mean(1, keepdims=True)
        inputs = np.concatenate([(x[..., 0] - level) / scale, x[..., 1]], 1)
        return inputs, (y - naive) / scale, scale

    train, val, test = map(scaled, ("train", "val", "test"))
    ridges = [Ridge(alpha).fit(*train[:2]) for alpha in (1, 10, 100, 1000, 10000)]
    model = min(ridges, key=lambda each: np.abs(each.predict(val[0]) - val[1]).mean())
    for label, error in (
        ("ridge regression on the same windows", model.predict(test[0]) - test[1]),
        ("seasonal naive", -test[1]),
    ):
        yield label, {"test/mase": np.abs(error).mean(), "test/mae": (np.abs(error) * test[2]).mean()}


def fruit(seed: int, folder: Path) -> Iterator[tuple[str, Values]]:
    """Two targets: one network with weights of both kinds, and two models of boosted trees."""
    found, data = network("fruit", folder / "learnt", f"seed={seed}")
    yield "one network, weights by uncertainty", found
    yield (
        "one network, both losses count the same",
        network("fruit", folder / "fixed", f"seed={seed}", "loss.weights=null")[0],
    )
    rows = {name: data.source.take(own) for name, own in data.rows.items()}
    values = {}
    for key, kind, name in (
        ("test/kind/accuracy", HistGradientBoostingClassifier, "kind"),
        ("test/weight/mae", HistGradientBoostingRegressor, "weight"),
    ):
        parts = {split: (x.numpy(), y[name].numpy()) for split, (x, y) in rows.items()}
        model = best([kind(learning_rate=r, random_state=0) for r in (0.03, 0.1)], parts["train"], parts["val"])
        x, y = parts["test"]
        values[key] = model.score(x, y) if name == "kind" else float(np.abs(model.predict(x) - y).mean())
    yield "two models of boosted trees", values


def views(seed: int, folder: Path) -> Iterator[tuple[str, Values]]:
    """Fifty labels: a linear layer on what was learnt without labels, a network from nothing, and classics."""
    network("views", folder / "views", f"seed={seed}")
    few = (
        "data=digits",
        "model=cnn",
        "data.split.per_class=5",
        f"data.split.seed={seed}",
        f"seed={seed}",
        "optim=adamw",
    )
    few += ("optim.lr=0.003", "trainer.epochs=60", "trainer.test=last", *QUIET)
    tuned = [f"finetune.weights.path={folder / 'views'}", "finetune=head", "optim.lr=0.03"]
    for label, more in (("linear layer on features learnt from views", tuned), ("the same network from nothing", [])):
        cfg = compose([*few, *more]).cfg
        yield label, Runner(cfg, folder / label[:6].strip()).run()["test"]
    data = build_splits(cfg, build_engine(cfg))
    rows = {
        n: (x.flatten(1).numpy(), y.numpy()) for n, (x, y) in ((k, data.source.take(r)) for k, r in data.rows.items())
    }
    candidates = [
        make_pipeline(*before, LogisticRegression(C=c, max_iter=3000))
        for before in ((), (PCA(20),), (PCA(40),))
        for c in (0.1, 1, 10)
    ]
    model = best(candidates, rows["train"], rows["val"])
    yield "logistic regression on pixels or their main components", {"test/accuracy": model.score(*rows["test"])}


EXPERIMENTS: dict[str, tuple[Callable[[int, Path], Iterator[tuple[str, Values]]], tuple[str, ...]]] = {
    "reviews": (reviews, ("test/accuracy",)),
    "sentences": (sentences, ("test/accuracy",)),
    "sales": (sales, ("test/mase", "test/mae")),
    "fruit": (fruit, ("test/kind/accuracy", "test/weight/mae")),
    "views": (views, ("test/accuracy",)),
}
"""What measures each experiment, and by which metrics."""


def main(names: list[str]) -> None:
    """Measure experiments and print rows of a table: mean and standard deviation over the seeds."""
    for name in names or EXPERIMENTS:
        measured, keys = EXPERIMENTS[name]
        values: dict[str, dict[str, list[float]]] = {}
        for seed in SEEDS:
            with tempfile.TemporaryDirectory() as folder:
                for label, found in measured(seed, Path(folder)):
                    for key in keys:
                        values.setdefault(label, {}).setdefault(key, []).append(float(found[key]))
        for label, by_key in values.items():
            cells = [f"{statistics.mean(own):.4f} ± {statistics.stdev(own):.4f}" for own in by_key.values()]
            sys.stdout.write(f"| `{name}` | {label} | {' | '.join(cells)} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
