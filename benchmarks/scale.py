"""What grows with what: cost over parameters, rows, steps, members, jobs, ranks and runs, as a table and a picture.

Each measurement is a fresh process with one thread, whose CPU time counts, with that of its children; where a start
would hide what grows, the cost of a shorter run is taken off. Ten million steps are simulated: the loggers get the rows
that such a run logs, and the store its saves; the files must then be readable as a whole.

    python -m benchmarks.scale [--only rows steps …] [--largest 0] [--draw docs/images/scale.png]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Sample, print_table
from benchmarks.startup import LIGHTKIT, ROOT, environment

QUIET = ("logger.console.style=quiet", "metrics=none", "device=cpu", "logger.tensorboard.enabled=false")
EVERY, SAVES = 50, 10_000
"""Steps between two logged rows, as by default, and between two saves."""
SIZES: dict[str, tuple[int, ...]] = {
    "parameters": (100_000, 1_000_000, 10_000_000),
    "rows": (10_000, 100_000, 1_000_000),
    "steps": (100_000, 1_000_000, 10_000_000),
    "members": (5, 20, 80),
    "jobs": (4, 16, 64),
    "ranks": (1, 2, 4),
    "runs": (100, 1_000, 10_000),
}
Figures = dict[str, float]


def train(*given: str) -> Figures:
    """Train in a process of its own; returns its CPU seconds and the most MiB that it has held.

    Raises:
        RuntimeError: It fails.
    """
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "conf").mkdir()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        place_of_runs = "hydra.sweep.dir=run" if "-m" in given else "hydra.run.dir=run"
        command = [*LIGHTKIT, "train", *QUIET, place_of_runs, *given]
        done = subprocess.run(command, cwd=place, env=environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        found = {"CPU s": _cpu(used) - _cpu(before), "peak MiB": used.ru_maxrss / 1024}
        files = [path for path in Path(place, "run").rglob("*.pt") if path.is_file()]
        return found | {"checkpoint MB": max((path.stat().st_size for path in files), default=0) / 1e6}


def _cpu(used: Any) -> float:
    return float(used.ru_utime + used.ru_stime)


def parameters(size: int) -> Figures:
    """Take 100 steps of a network with so many weights, and one save."""
    width = int((-74 + math.sqrt(74**2 + 4 * size)) / 2)
    run = ("data=digits", f"model.hidden=[{width},{width}]", "model.norm=none", "data.batch_size=32")
    long, short = (train(*run, f"trainer.steps={steps}", "trainer.epochs=null") for steps in (120, 20))
    return {
        "ms a step": (long["CPU s"] - short["CPU s"]) * 10,
        "peak MiB": long["peak MiB"],
        "checkpoint MB": long["checkpoint MB"],
    }


def rows(size: int) -> Figures:
    """Read a table from a file of comma-separated values, and take one step."""
    from benchmarks.memory import write

    with tempfile.TemporaryDirectory() as place:
        write(path := Path(place, "table.csv"), size)
        run = ("data=table", f"data.dataset.path={path}", "data.dataset.target=y", "data.dataset.task=regression")
        found = train(*run, "loss=mse", "trainer.steps=1", "trainer.epochs=null", "data.eval_batch_size=4096")
        return {"CPU s": found["CPU s"], "peak MiB": found["peak MiB"], "file MB": path.stat().st_size / 1e6}


def steps(size: int) -> Figures:
    """Log and save what a run of so many steps does, read it all, and go back to its middle as a resume does.

    Raises:
        RuntimeError: What is read is not what was written.
    """
    import torch

    from lightkit.checkpoint import content
    from lightkit.checkpoint.store import CheckpointStore
    from lightkit.loggers.files import JsonlLogger
    from lightkit.loggers.tensorboard import TensorBoardLogger
    from lightkit.runs.reading import read_jsonl
    from lightkit.trainer import State

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        loggers = [JsonlLogger(folder / "metrics.jsonl"), TensorBoardLogger(folder, "train/loss", "min")]
        names = ("train/loss", "grad/norm", "lr/all", "throughput/samples", "train/accuracy")
        loggers[1].scalars(dict.fromkeys(names, 0.5), step=0, epoch=0)  # imports it
        with Sample() as logging:
            for step in range(EVERY, size + 1, EVERY):
                for logger in loggers:
                    logger.scalars(dict.fromkeys(names, 1 / step), step=step, epoch=step // 1000)
            for logger in loggers:
                logger.close()
        store, model, state = CheckpointStore(folder / "checkpoints"), torch.nn.Linear(4, 4), State()
        optimizer = torch.optim.SGD(model.parameters())
        parts: dict[str, Any] = {"scheduler": optimizer, "precision": optimizer, "callbacks": {}, "metrics": {}}
        store.prepare()
        with Sample() as saving:
            for step in range(SAVES, size + 1, SAVES):
                state.step = step
                saved = content.gather(model=model, optimizer=optimizer, state=state, **parts)
                store.save(saved, step=step, value=1 / step)
        with Sample() as reading:
            found = read_jsonl(folder / "metrics.jsonl")
        if len(found) != size // EVERY or found[-1]["step"] != size:
            raise RuntimeError(f"{len(found):,} rows of {size // EVERY:,} were read")
        with Sample() as drawing:
            seen = _seen(folder)
        if seen != size:
            raise RuntimeError(f"the last step in TensorBoard is {seen:,}")
        with Sample() as going_back:
            for logger in loggers:
                logger.start(size // 2, found[: len(found) // 2])
                logger.close()
        events = sum(path.stat().st_size for path in folder.glob("events*"))
        return {
            "log, µs a step": logging.cpu / size * 1e6,
            "a save, ms": saving.cpu / (size / SAVES) * 1e3,
            "read metrics.jsonl, s": reading.cpu,
            "read events, s": drawing.cpu,
            "go back, s": going_back.cpu,
            "metrics.jsonl MB": sum(len(json.dumps(row)) + 1 for row in found) / 1e6,
            "events MB": events / 1e6,
            "peak MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }


def _seen(folder: Path) -> int:
    """Return the last step that TensorBoard's own reader finds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder)).Reload()
    return max(found.Scalars(tag)[-1].step for tag in found.Tags()["scalars"])


def members(size: int) -> Figures:
    """Train an ensemble of small networks at once."""
    found = train(
        "data=digits", "model.hidden=[64]", "trainer.epochs=4", "ensemble=voting", f"ensemble.size={size}"
    )  # fmt: skip
    return {"CPU s": found["CPU s"], "peak MiB": found["peak MiB"]}


def jobs(size: int) -> Figures:
    """Run a sweep of tiny jobs in one slot."""
    found = train(
        "-m", "data=wine", "model.hidden=[8]", "trainer.epochs=2", f"seed=range({size})", "sweep.slots=1"
    )  # fmt: skip
    return {"CPU s": found["CPU s"], "peak MiB": found["peak MiB"]}


def ranks(size: int) -> Figures:
    """Share the same 200 steps out to processes: the CPU time of all of them together."""
    run = ("data=digits", "model.hidden=[512,512]", "data.batch_size=512", "trainer.epochs=null", "device.threads=1")
    several = (f"device.nproc={size}", "device.parallel=ddp") if size > 1 else ()
    long, short = (train(*run, *several, f"trainer.steps={count}") for count in (220, 20))
    return {"ms a step, all ranks": (long["CPU s"] - short["CPU s"]) * 5, "start, CPU s": short["CPU s"]}


def runs(size: int) -> Figures:
    """List so many run folders, with and without the index, and compare them."""
    from benchmarks.comparing import make_runs
    from lightkit.common import run_files
    from lightkit.compare.comparison import build_comparison
    from lightkit.runs.index import RunIndex, all_records

    with tempfile.TemporaryDirectory() as place:
        make_runs(root := Path(place), size)
        folders = sorted(path.parent for path in root.glob(f"**/{run_files.CONFIG}"))
        with Sample() as cold:
            all_records(root)
        with Sample() as warm:
            all_records(root)
        with Sample() as compared:
            build_comparison(RunIndex(root).records(folders))
        index = (root / run_files.OUTPUTS / run_files.INDEX).stat().st_size
        return {"first list, s": cold.cpu, "list, s": warm.cpu, "compare, s": compared.cpu, "index MB": index / 1e6}


MEASURES: dict[str, Callable[[int], Figures]] = {
    "parameters": parameters, "rows": rows, "steps": steps, "members": members, "jobs": jobs, "ranks": ranks,
    "runs": runs,
}  # fmt: skip


def measure(name: str, size: int) -> Figures:
    """Measure one size in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.scale", "--one", name, str(size)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} {size:,} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def power(sizes: Sequence[int], values: Sequence[float]) -> str:
    """Say by which power of the size a figure grows, from the two largest sizes."""
    if min(values[-2:]) <= 0:
        return ""
    return f"{math.log(values[-1] / values[-2]) / math.log(sizes[-1] / sizes[-2]):.2f}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def draw(path: Path, found: dict[str, dict[int, Figures]]) -> None:
    """Draw every figure over its size, as times that of the smallest; a dashed line is as steep as the size itself."""
    from matplotlib.ticker import NullLocator

    from lightkit.common.drawing import FAINT, INK, add_legend, panels, png, ruled, style

    figure, all_axes = panels(len(found), 4, (3.1, 3.1))
    for axes, (name, by_size) in zip(all_axes, found.items()):
        sizes, (first, *_, last) = [*by_size], [*by_size.values()]
        steep = [size / sizes[0] for size in sizes]
        axes.plot(steep, steep, "--", color=FAINT, zorder=0)
        for what in first:
            label = f"{what}: {_short(first[what])} to {_short(last[what])}"
            axes.plot(steep, [own[what] / first[what] for own in by_size.values()], "o-", markersize=4, label=label)
        axes.set(xscale="log", yscale="log", ylim=(0.7, 1.1 * steep[-1] ** 1.8))  # room for the names
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_locator(NullLocator())
        style(axes)
        axes.set_title(name, fontsize=10, color=INK)
        axes.set_xticks(steep, [f"{size:,}" for size in sizes])
        axes.set_yticks(steep, [f"{one:,.0f} ×" for one in steep])
        ruled(axes)
        add_legend(axes, fontsize=7, loc="upper left")
    path.write_bytes(png(figure))


def main(arguments: list[str] | None = None) -> bool:
    """Run the benchmark; returns whether ten million steps cost no more a step than a hundred thousand, by half."""
    parser = argparse.ArgumentParser(description="what grows with what")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--only", nargs="+", choices=SIZES, default=[*SIZES], help="what to measure")
    parser.add_argument("--largest", type=int, default=0, help="how many sizes of each to leave out, from the largest")
    parser.add_argument("--draw", type=Path, help="where to draw the picture")
    args = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    if args.one:
        print(json.dumps(MEASURES[args.one[0]](int(args.one[1]))))
        return True
    found: dict[str, dict[int, Figures]] = {}
    for name in args.only:
        sizes = SIZES[name][: len(SIZES[name]) - args.largest]
        found[name] = {size: measure(name, size) for size in sizes}
        lines = [
            [what, *(f"{own[what]:.3g}" for own in found[name].values())]
            + ([power(sizes, [own[what] for own in found[name].values()])] if len(sizes) > 1 else [""])
            for what in found[name][sizes[0]]
        ]
        print_table([name, *(f"{size:,}" for size in sizes), "grows by power"], lines)
    if args.draw is not None:
        draw(args.draw, found)
    return _judged(found.get("steps", {}))


def _judged(by_size: dict[int, Figures]) -> bool:
    """Print whether what a step costs is the same however many there are; returns whether it is."""
    if len(by_size) < 2:
        return True
    first, *_, last = by_size.values()
    good = True
    for what in ("log, µs a step", "a save, ms"):
        ratio = last[what] / first[what]
        print(f"{what}: {ratio:.2f} times that of the fewest steps (at most 1.5: {'ok' if ratio <= 1.5 else 'MISSED'})")
        good &= ratio <= 1.5
    return good


if __name__ == "__main__":
    sys.exit(not main())
