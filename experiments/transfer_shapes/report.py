"""Table and plot of a sweep over methods of fine-tuning, numbers of labelled images, and seeds.

    python -m experiments.transfer_shapes.report SWEEP_FOLDER

The sweep is one over `finetune`, `data.split.per_class` and `seed`. A support vector machine on the pixels of the very
same images, of the same splits, is fitted for comparison.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from lightkit.assembly.parts import build_engine, build_splits
from lightkit.config import load_run

METHODS = {
    "none": "from scratch",
    "head": "head only",
    "full": "full",
    "gradual": "gradual",
    "discriminative": "discriminative",
    "lora": "LoRA",
    "adapter": "adapter",
    "svm": "support vector machine on pixels",
}
"""Names of the methods, in the order of the table: the options of `finetune`, and the classic."""


@dataclass(frozen=True)
class Run:
    """A finished run of the sweep."""

    folder: Path
    method: str
    """Option of `finetune`."""
    per_class: int
    """Labelled images of each class."""
    seed: int
    accuracy: float
    """On the test part, in per cent."""
    trainable: int | None = None
    """Parameters that train at some time; None where that is not known."""


def read_sweep(sweep: Path) -> list[Run]:
    """All finished runs of a sweep.

    Raises:
        SystemExit: There are none.
    """
    found = [read_run(file.parent) for file in sorted(sweep.glob("*/result.json"))]
    runs = [run for run in found if run is not None]
    if not runs:
        raise SystemExit(f"error: no finished run in {sweep}")
    return runs


def read_run(folder: Path) -> Run | None:
    """What a run came to; None if it did not end well."""
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    if result["status"] != "finished":
        return None
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    chosen = [text.partition("=")[::2] for text in yaml.safe_load((folder / "overrides.yaml").read_text("utf-8"))]
    return Run(
        folder,
        method=dict(chosen).get("finetune", "none"),
        per_class=config["data"]["split"]["per_class"],
        seed=config["seed"],
        accuracy=100.0 * result["test"]["test/accuracy"],
        trainable=_trainable(folder),
    )


def _trainable(folder: Path) -> int | None:
    file = folder / "finetune.json"
    if not file.is_file():
        return None
    return max(phase["trainable"] for phase in json.loads(file.read_text(encoding="utf-8"))["plan"]["phases"])


def fit_classics(runs: Iterable[Run]) -> list[Run]:
    """The support vector machine on what each of the different training sets holds."""
    examples = {(run.per_class, run.seed): run for run in runs}
    return [
        Run(run.folder, "svm", run.per_class, run.seed, accuracy=100.0 * _classic(run.folder))
        for run in examples.values()
    ]


def _classic(folder: Path) -> float:
    """Test accuracy of a support vector machine with the data of a run, 0 to 1."""
    from sklearn.svm import SVC

    cfg = load_run(folder).cfg
    data = build_splits(cfg, build_engine(cfg), folder)
    (x, y), (test_x, test_y) = (data.source.take(data.rows[split]) for split in ("train", "test"))
    machine = SVC(C=10.0).fit(x.flatten(1).numpy(), y.numpy())
    return float(machine.score(test_x.flatten(1).numpy(), test_y.numpy()))


def grouped(runs: Iterable[Run]) -> dict[str, dict[int, list[Run]]]:
    """Runs by method, in the order of the table, and by number of images."""
    found: dict[str, dict[int, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in sorted(runs, key=lambda run: (_rank(run.method), run.method, run.per_class, run.seed)):
        found[run.method][run.per_class].append(run)
    return found


def _rank(method: str) -> int:
    return [*METHODS].index(method) if method in METHODS else len(METHODS)


def table(groups: Mapping[str, Mapping[int, Sequence[Run]]]) -> str:
    """A Markdown table: test accuracy by method and number of labelled images of a class."""
    sizes = sorted({size for by_size in groups.values() for size in by_size})
    lines = [
        ["", "trainable parameters", *(f"{size} a class" for size in sizes)],
        ["---", "---:", *("---" for _ in sizes)],
    ]
    for method, by_size in groups.items():
        most = max((run.trainable or 0 for runs in by_size.values() for run in runs), default=0)
        cells = [_cell(by_size.get(size, ())) for size in sizes]
        lines.append([METHODS.get(method, method), f"{most:,}" if most else "", *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(runs: Sequence[Run]) -> str:
    mean, deviation = spread(runs)
    return f"{mean:.1f} % ± {deviation:.1f}" if runs else ""


def spread(runs: Sequence[Run]) -> tuple[float, float]:
    """Mean and standard deviation of the accuracies."""
    values = [run.accuracy for run in runs] or [float("nan")]
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def draw(groups: Mapping[str, Mapping[int, Sequence[Run]]], file: Path) -> None:
    """Plot accuracy against the number of labelled images into a PNG file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for method, by_size in groups.items():
        sizes = sorted(by_size)
        means, deviations = zip(*(spread(by_size[size]) for size in sizes))
        style = {"none": "k--", "svm": "k:"}.get(method, "-")
        axes.errorbar(sizes, means, deviations, fmt=style, marker="o", capsize=3, label=METHODS.get(method, method))
    axes.set_xscale("log")
    axes.set_xticks(sorted({size for by_size in groups.values() for size in by_size}))
    axes.get_xaxis().set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set(xlabel="labelled images of each class", ylabel="test accuracy in %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(file, dpi=120)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table and draw the plot."""
    parser = argparse.ArgumentParser(prog="python -m experiments.transfer_shapes.report", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("sweep", type=Path, help="folder of the sweep: outputs/sweeps/…")
    parser.add_argument(
        "--plot", type=Path, help="file of the plot; transfer.png in the folder of the sweep if left out"
    )
    options = parser.parse_args(arguments)
    runs = read_sweep(options.sweep)
    groups = grouped([*runs, *fit_classics(runs)])
    plot = options.plot or options.sweep / "transfer.png"
    draw(groups, plot)
    sys.stdout.write(f"{table(groups)}\n\ndrawn in {plot}\n")


if __name__ == "__main__":
    main()
