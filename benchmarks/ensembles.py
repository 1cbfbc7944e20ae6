"""Ensembles of small networks on digits: members trained at once, one after the other, and TorchEnsemble's voting.

The ensembles of lightkit are whole runs with `ensemble=voting`. Everything is included: building, metrics of every
epoch on train and val, logging, checkpoints, TensorBoard, the folders of all members, the final test, the combination.
All train on the same rows for the same epochs, with the same networks and first weights drawn alike, with AdamW and
batches of 32. The bars are ratios of CPU time; `--floor` adds the bare loop over stacked weights, without anything
around it.

Both sides write to a file system in memory where there is one. On a disk the time would go by what was measured before:
ext4 passes over every file that was deleted within the last minutes when it makes a new one, and so takes 30 to 800 ms
for the files of 50 members. `--place` names another folder.

    python -m benchmarks.ensembles [--rounds 3] [--size 50] [--epochs 4] [--model mlp] [--floor]
    python -m benchmarks.ensembles --sizes 1 5 20 50 100 [--picture FILE]
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import logging
import os
import resource
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.harness import Bar, Results, Sample, interleave, judge, options, print_table, show
from lightkit import Runner, compose
from lightkit.assembly import build_model, build_shared
from lightkit.config import to_plain

TOGETHER, ALONE, LIBRARY, FLOOR = "members at once", "one after the other", "TorchEnsemble", "bare loop"
BATCH, HIDDEN, CHANNELS = 32, 64, (8, 16)
BARS = {("mlp", 50, 4): 8.0, ("mlp", 50, 20): 5.0, ("mlp", 10, 4): 4.0, ("cnn", 50, 4): 1.4}
"""How many times faster than TorchEnsemble, by model, size and epochs."""
ONE_BY_ONE = 1.1
"""The most that members trained one after the other may take of TorchEnsemble's time."""
PLACE = next((place for place in ("/dev/shm",) if os.access(place, os.W_OK)), None)
"""Folder in which the files are written; None takes the usual one for temporary files."""


def settings(model: str, epochs: int) -> list[str]:
    """Return the overrides of the run, which measures accuracy as TorchEnsemble does."""
    network = [f"model.hidden=[{HIDDEN}]", "model.norm=none", "data.dataset.image=false"]
    if model == "cnn":
        network = ["model=cnn", f"model.channels={[*CHANNELS]}", "model.depth=1"]
    return [
        "data=digits", *network, f"data.batch_size={BATCH}", "data.eval_batch_size=256", f"trainer.epochs={epochs}",
        "scheduler=constant", "device=cpu", "device.threads=1", "logger.console.style=quiet",
        "logger.system.enabled=false", "metrics.figures=[]",
        "~metrics.val.f1", "~metrics.test.f1", "~metrics.test.precision", "~metrics.test.recall", "~metrics.test.auroc",
    ]  # fmt: skip


def lightkit(model: str, size: int, epochs: int, engine: str) -> Sample:
    """Train an ensemble as `lightkit train ensemble=voting` does, with all its files."""
    own = ["ensemble=voting", f"ensemble.size={size}", f"ensemble.engine={engine}"]
    cfg = compose([*settings(model, epochs), *own]).cfg
    with tempfile.TemporaryDirectory(dir=PLACE) as place:
        with Sample() as sample:
            Runner(cfg, Path(place) / "run").run()
        results = [json.loads(path.read_text()) for path in Path(place).glob("run/members/*/result.json")]
    sample.proof["accuracy"] = sum(result["metrics"]["val/accuracy"] for result in results) / len(results)
    return sample


def library(cfg: Any, size: int, epochs: int) -> Sample:
    """Train TorchEnsemble's voting on the same rows, with its own metrics, log and file."""
    from torch.utils.data import DataLoader, TensorDataset
    from torchensemble import VotingClassifier

    shared = build_shared(cfg, Path("unused"))
    data, estimator = shared.data, network_class(cfg, shared)
    parts = {split: TensorDataset(*data.source.take(data.rows[split])) for split in ("train", "val", "test")}
    loaders = {name: DataLoader(part, BATCH if name == "train" else 256, shuffle=name == "train") for name, part in
               parts.items()}  # fmt: skip
    with tempfile.TemporaryDirectory(dir=PLACE) as place, Sample() as sample:
        ensemble = VotingClassifier(estimator=estimator, n_estimators=size, cuda=False, n_jobs=1)
        ensemble.set_criterion(nn.CrossEntropyLoss())
        ensemble.set_optimizer("AdamW", lr=cfg.optim.lr, weight_decay=cfg.optim.weight_decay)
        ensemble.fit(loaders["train"], epochs=epochs, test_loader=loaders["val"], save_dir=place)
        ensemble.evaluate(loaders["test"])
    with torch.no_grad():
        x, y = parts["val"].tensors
        right = [(member(x).argmax(1) == y).float().mean().item() for member in ensemble.estimators_]
    sample.proof["accuracy"] = sum(right) / len(right)
    return sample


def network_class(cfg: Any, shared: Any) -> type[nn.Module]:
    """Return a class that makes the network of the run, as TorchEnsemble wants one."""
    kind = type(build_model(cfg, shared.data.info, shared.engine))
    given = {**to_plain(cfg.model), **shared.data.info.sizes()}
    own = {name: given[name] for name in inspect.signature(kind).parameters if name in given}

    class Network(kind):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__(**own)

    return Network


def floor(cfg: Any, size: int, epochs: int) -> Sample:
    """Train stacked weights by a bare loop: nothing is measured, logged or kept."""
    from torch.func import functional_call, stack_module_state, vmap

    shared = build_shared(cfg, Path("unused"))
    source, rows = shared.data.source, shared.data.rows["train"]
    make = network_class(cfg, shared)
    with Sample() as sample:
        models = [make() for _ in range(size)]
        weights, buffers = stack_module_state(models)  # type: ignore[arg-type]
        optimizer = torch.optim.AdamW(list(weights.values()), lr=cfg.optim.lr, fused=True)

        def loss(w: Any, b: Any, x: Any, y: Any) -> torch.Tensor:
            return F.cross_entropy(functional_call(models[0], (w, b), (x,)), y)

        together = vmap(loss)
        for _ in range(epochs):
            order = torch.stack([rows[torch.randperm(len(rows))] for _ in range(size)])
            for chosen in order.split(BATCH, 1):
                x, y = source.take(chosen.reshape(-1))
                together(weights, buffers, x.unflatten(0, chosen.shape), y.view(chosen.shape)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    return sample


def costs(model: str, sizes: Sequence[int], epochs: int, rounds: int, picture: Path | None) -> None:
    """Print, and draw, time and memory of ensembles by their size, each in a process of its own."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    found: dict[str, list[Sample]] = {TOGETHER: [], LIBRARY: []}
    for size in sizes:
        for name, samples in found.items():
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                samples.append(pool.submit(whole, name, model, size, epochs, rounds, PLACE).result())
    rows = [
        [str(size), *(text for sample in own for text in (f"{sample.cpu:.2f}", f"{sample.peak:.0f}"))]
        for size, *own in zip(sizes, *found.values())
    ]
    heads = [f"members, {model}, {epochs} epochs"]
    print_table([*heads, *(f"{name}, {what}" for name in found for what in ("CPU s", "peak MiB"))], rows)
    if picture is not None:
        draw(picture, f"{model.upper()} on the digits, {epochs} epochs", sizes, found)


def whole(name: str, model: str, size: int, epochs: int, rounds: int, place: str | None) -> Sample:
    """Train an ensemble alone in its process, whose memory is measured too; a small one before pays for imports.

    Returns:
        The fastest of some rounds.
    """
    global PLACE
    PLACE = place
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    cfg = compose(settings(model, epochs)).cfg

    def train(members: int) -> Sample:
        if name == LIBRARY:
            return library(cfg, members, epochs)
        return lightkit(model, members, epochs, "vectorized")

    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(2)
        sample = min((train(size) for _ in range(rounds)), key=lambda sample: sample.cpu)
    sample.peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return sample


def draw(path: Path, title: str, sizes: Sequence[int], found: Results) -> None:
    """Draw time and memory against the number of members."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 3.6), dpi=120, layout="constrained")
    figure.suptitle(title)
    for axes, kind, label in zip(figure.subplots(1, 2), ("cpu", "peak"), ("CPU seconds", "peak memory, MiB")):
        for name, marker in ((LIBRARY, "s"), (TOGETHER, "o")):
            shown = "lightkit" if name == TOGETHER else name
            axes.plot(sizes, [getattr(sample, kind) for sample in found[name]], f"{marker}-", label=shown)
        highest = max(getattr(sample, kind) for samples in found.values() for sample in samples)
        axes.set(xlabel="members", ylabel=label, xlim=0, ylim=(0, 1.08 * highest))
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.savefig(path)


def main(arguments: list[str] | None = None) -> bool:
    """Run the benchmark; returns whether the bar of these sizes holds, where there is one."""
    parser = options("ensembles of small networks", rounds=3)
    parser.add_argument("--size", type=int, default=50, help="members")
    parser.add_argument("--sizes", type=int, nargs="*", help="show what each of these sizes costs, and nothing else")
    parser.add_argument("--picture", type=Path, help="file to draw the costs of these sizes into")
    parser.add_argument("--place", help="folder in which the runs are written")
    parser.add_argument("--epochs", type=int, default=4, help="epochs of each")
    parser.add_argument("--model", choices=("mlp", "cnn"), default="mlp", help="network")
    parser.add_argument("--floor", action="store_true", help="also time a bare loop over stacked weights")
    parser.add_argument("--only", nargs="*", help="names of the contestants to time")
    args = parser.parse_args(arguments)
    global PLACE
    PLACE = args.place or PLACE
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    if args.sizes:
        costs(args.model, args.sizes, args.epochs, args.rounds, args.picture)
        return True
    cfg = compose(settings(args.model, args.epochs)).cfg
    contestants: dict[str, Callable[[], Sample]] = {
        LIBRARY: lambda: library(cfg, args.size, args.epochs),
        ALONE: lambda: lightkit(args.model, args.size, args.epochs, "sequential"),
        TOGETHER: lambda: lightkit(args.model, args.size, args.epochs, "vectorized"),
        "auto": lambda: lightkit(args.model, args.size, args.epochs, "auto"),
    }
    if args.floor:
        contestants[FLOOR] = lambda: floor(cfg, args.size, args.epochs)
    kept = {name: run for name, run in contestants.items() if not args.only or name in args.only}
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results: Results = interleave(kept, rounds=args.rounds)
    show(f"{args.size} × {args.model}, {args.epochs} epochs", results, LIBRARY, unit="s")
    wanted = BARS.get((args.model, args.size, args.epochs))
    bars = [Bar(TOGETHER, LIBRARY, 1 / wanted if wanted else None, kind="cpu")]
    bars = [bar for bar in bars if bar.name in kept]
    if ALONE in kept:
        bars.append(Bar(ALONE, LIBRARY, ONE_BY_ONE, kind="cpu"))
    if ALONE in kept and "auto" in kept:
        better = min((TOGETHER, ALONE), key=lambda name: sum(sample.cpu for sample in results[name]))
        bars += [Bar("auto", better, 1.05, kind="cpu"), Bar(TOGETHER, ALONE, kind="cpu")]
    return judge(results, bars)


if __name__ == "__main__":
    raise SystemExit(not main())
