"""The work of the step benchmark in other frameworks, as their documentation shows it, without what is optional.

No progress bar, no checkpoint, no model summary: these would make them slower than their loops are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from benchmarks.harness import Sample
from benchmarks.work import LOG_STEPS, Work, metric_collection, network, sgd


def proven(sample: Sample, values: Mapping[str, Any], *, steps: int) -> Sample:
    """The measurement with the steps taken and what the last epoch reached, which must be alike for all."""
    sample.proof = {"steps": steps} | {name: float(values[name]) for name in ("accuracy", "f1", "top3", "loss")}
    return sample


def lightning(work: Work, loader: Any) -> Sample:
    """A LightningModule with its own `self.log`."""
    from lightning.pytorch import Trainer
    from lightning.pytorch.loggers import TensorBoardLogger

    sample, module = Sample(), lightning_module()
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=work.epochs,
        logger=TensorBoardLogger(str(work.folder), name="lightning"),
        log_every_n_steps=LOG_STEPS,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    with sample:
        trainer.fit(module, loader)
    return proven(sample, module.values, steps=trainer.global_step)


def lightning_module() -> Any:
    """The module; in a function, because its base class may not be installed."""
    from lightning.pytorch import LightningModule

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net, self.criterion, self.metrics = network(), nn.CrossEntropyLoss(), metric_collection()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return sgd(self.net)

        def on_train_epoch_start(self) -> None:
            self.metrics.reset()
            self.total = torch.zeros((), dtype=torch.float64)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            x, y = batch
            output = self.net(x)
            loss = self.criterion(output, y)
            self.metrics.update(output.detach(), y)
            self.total += loss.detach() * len(y)
            self.log("train/loss_step", loss)
            return loss

        def on_train_epoch_end(self) -> None:
            self.values = {
                **self.metrics.compute(),
                "loss": (self.total / len(self.trainer.train_dataloader.dataset)).float(),
            }
            self.log_dict({f"train/{name}": value for name, value in self.values.items()})

    return Module()


def accelerate(work: Work, loader: Any) -> Sample:
    """A loop by hand with Accelerate's model, optimizer, loader and tracker."""
    from accelerate import Accelerator

    accelerator, sample, step = Accelerator(cpu=True, log_with="tensorboard", project_dir=str(work.folder)), Sample(), 0
    accelerator.init_trackers("accelerate")
    model, criterion, metrics = network(), nn.CrossEntropyLoss(), metric_collection()
    model, optimizer, loader = accelerator.prepare(model, sgd(model), loader)
    with sample:
        model.train()
        for _ in range(work.epochs):
            metrics.reset()
            total = torch.zeros((), dtype=torch.float64)
            for x, y in loader:
                optimizer.zero_grad()
                output = model(x)
                loss = criterion(output, y)
                accelerator.backward(loss)
                optimizer.step()
                metrics.update(output.detach(), y)
                total += loss.detach() * len(y)
                step += 1
                if step % LOG_STEPS == 0:
                    accelerator.log({"train/loss_step": loss.item(), "lr": optimizer.param_groups[0]["lr"]}, step=step)
            values = {**metrics.compute(), "loss": total / work.rows}
            accelerator.log({f"train/{name}": float(value) for name, value in values.items()}, step=step)
    accelerator.end_training()
    return proven(sample, values, steps=step)


def ignite(work: Work, loader: Any) -> Sample:
    """Ignite's engine with handlers."""
    from ignite.engine import Events, create_supervised_trainer
    from torch.utils.tensorboard import SummaryWriter

    model, metrics, values = network(), metric_collection(), {}  # type: Any, Any, dict[str, Any]
    optimizer, writer, sample = sgd(model), SummaryWriter(str(work.folder / "ignite")), Sample()
    total = torch.zeros((), dtype=torch.float64)
    engine = create_supervised_trainer(
        model,
        optimizer,
        nn.CrossEntropyLoss(),
        output_transform=lambda x, y, output, loss: (output.detach(), y, loss.detach()),
    )

    @engine.on(Events.EPOCH_STARTED)
    def _reset() -> None:
        metrics.reset()
        total.zero_()

    @engine.on(Events.ITERATION_COMPLETED)
    def _update() -> None:
        output, y, loss = engine.state.output
        metrics.update(output, y)
        total.add_(loss * len(y))

    @engine.on(Events.ITERATION_COMPLETED(every=LOG_STEPS))
    def _log_step() -> None:
        writer.add_scalar("train/loss_step", engine.state.output[2].item(), engine.state.iteration)
        writer.add_scalar("lr", optimizer.param_groups[0]["lr"], engine.state.iteration)

    @engine.on(Events.EPOCH_COMPLETED)
    def _log_epoch() -> None:
        values.update(metrics.compute(), loss=total / work.rows)
        for name, value in values.items():
            writer.add_scalar(f"train/{name}", value, engine.state.iteration)

    with sample:
        engine.run(loader, max_epochs=work.epochs)
    writer.close()
    return proven(sample, values, steps=engine.state.iteration)
