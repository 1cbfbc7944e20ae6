"""Train a network with lightkit's loop and parts, without a configuration: `python examples/plain.py`.

Press Ctrl-C and start it again: it goes on from the newest checkpoint, with the bits of a run that was never stopped.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torchmetrics.classification import MulticlassAccuracy

from lightkit import Trainer
from lightkit.checkpoint import content
from lightkit.checkpoint.store import CheckpointStore
from lightkit.data import TensorData, build_data
from lightkit.device import Engine
from lightkit.metrics import SplitMetrics
from lightkit.models import MLP
from lightkit.optim import Cosine, parameter_groups
from lightkit.trainer import Supervised, Timetable
from lightkit.trainer.learner import Learner, Network
from lightkit.trainer.services import Services


def build(epochs: int) -> Learner:
    """Build the data, the network and what trains it: handwritten digits and a perceptron."""
    digits = load_digits()
    dataset = TensorData(torch.tensor(digits.data, dtype=torch.float32), torch.tensor(digits.target))
    data = build_data(dataset=dataset, split={"by": "stratified", "val": 0.2}, normalize="standard", batch_size=64)
    engine = Engine("cpu", seed=0)  # the device, the precision, and everything that is random
    torch.manual_seed(0)
    model = MLP(64, 10, hidden=[128], dropout=0.1)
    optimizer = torch.optim.AdamW(parameter_groups(model, lr=3e-3, weight_decay=0.01, no_decay=True))
    times = Timetable(data.train.epoch_samples, data.train.batch_size, epochs=epochs)
    return Learner(
        engine=engine,
        data=data,
        model=model,
        network=model,  # what the loop calls: the model, or a wrapper for several GPUs
        made=Network(model),
        task=Supervised(),  # how a batch becomes a loss: override `step` for your own
        criterion=torch.nn.CrossEntropyLoss(),
        optimizer=optimizer,
        scheduler=Cosine(optimizer, total_steps=times.total_steps, steps_per_epoch=times.steps_per_epoch),
        timetable=times,
        metrics={split: SplitMetrics(split, accuracy) for split in ("train", "val")},
    )


def accuracy() -> dict[str, MulticlassAccuracy]:
    """Make the metrics of a split."""
    return {"accuracy": MulticlassAccuracy(num_classes=10, average="micro")}


def main(folder: Path, epochs: int = 5) -> Learner:
    """Train to the end, from where the newest checkpoint in `folder` stands."""
    learner, store = build(epochs), CheckpointStore(folder, keep_last=2, mode="max")
    parts = {
        name: getattr(learner, name) for name in ("model", "optimizer", "scheduler", "callbacks", "metrics", "state")
    }
    parts["precision"] = learner.engine.precision
    store.prepare()
    if store.entries():
        content.apply(store.load_newest()[1], **parts)

    def save(value: float | None) -> None:
        store.save(content.gather(**parts), step=learner.state.step, value=value)
        print(f"step {learner.state.step:3}   val/accuracy {value or 0.0:.3f}")

    Trainer(learner, Services(save=save), monitor="val/accuracy", mode="max").fit()
    return learner


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "outputs/plain"))
