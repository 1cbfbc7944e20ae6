"""Texts of unlike lengths: `data.sampler=length` of lightkit beside transformers' Trainer that groups by length.

    python -m benchmarks.padded_texts [--rounds 7] [--steps 120]

Both train the same tiny DistilBERT, built from its configuration class, on the same tokens in batches of 32, padded to
their longest text: AdamW, a constant rate, gradients clipped to norm 1, no evaluation, no checkpoint. lightkit runs
from a composed configuration with its usual logging and metrics, the Trainer with its own defaults, which are fewer.
Tokens are ready on both sides, and only the fit is timed. The share of the places that are padding says how well each
of them groups.
"""

from __future__ import annotations

import contextlib
import io
import logging
import random
import warnings
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from benchmarks.harness import Bar, Sample, check_same, interleave, judge, options, show
from benchmarks.work import Stopwatch

LIGHTKIT, TRAINER = "lightkit", "Trainer, group_by_length"
BATCH, EPOCHS, WORDS = 32, 2, 1000
SIZES = {"dim": 64, "n_layers": 2, "n_heads": 2, "hidden_dim": 128}
BARS = [Bar(LIGHTKIT, TRAINER, 1.0, kind=kind) for kind in ("cpu", "wall")]
_seen = {"samples": 0, "tokens": 0, "places": 0}


def write(folder: Path, rows: int) -> None:
    """Write texts of 3 to 120 words, most of them short, with a class each; and a tokenizer of whole words."""
    from datasets import ClassLabel, Dataset, Features, Value, disable_progress_bars
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    disable_progress_bars()
    draw, names = random.Random(0), [f"w{number}" for number in range(WORDS)]
    lengths = [min(120, 3 + int(draw.lognormvariate(2.8, 0.8))) for _ in range(rows)]
    columns = {"text": [" ".join(draw.choices(names, k=size)) for size in lengths], "label": [0, 1] * (rows // 2)}
    kinds = Features({"text": Value("string"), "label": ClassLabel(names=["a", "b"])})
    Dataset.from_dict(columns, features=kinds).save_to_disk(folder / "texts")
    made = Tokenizer(models.WordLevel({name: n for n, name in enumerate(["[PAD]", "[UNK]", *names])}, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    known = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", model_max_length=128)
    known.save_pretrained(folder / "words")


def counted(model: nn.Module) -> nn.Module:
    """Let a model count what it gets."""

    def count(_module: Any, _args: Any, kwargs: Any) -> None:
        mask = kwargs["attention_mask"]
        for name, value in (("samples", len(mask)), ("tokens", int(mask.sum())), ("places", mask.numel())):
            _seen[name] += value

    model.register_forward_pre_hook(count, with_kwargs=True)
    return model


class Watch(Stopwatch):
    """Times the fit, and forgets what the model has got before it."""

    def on_fit_start(self, trainer: Any) -> None:
        """Start the clocks."""
        _seen.update(dict.fromkeys(_seen, 0))
        super().on_fit_start(trainer)


def our_model(name: str, config: dict[str, Any], info: Any = None) -> nn.Module:
    """The network of lightkit's run."""
    from lightkit.models import huggingface_model

    return counted(huggingface_model(name, pretrained=False, config=config, info=info))


def proven(sample: Sample) -> Sample:
    """The measurement with what the model got in all epochs."""
    sample.proof = {"samples": _seen["samples"], "tokens": _seen["tokens"]}
    sample.proof["padding"] = 1 - _seen["tokens"] / _seen["places"]
    return sample


def of_lightkit(folder: Path) -> Sample:
    """A whole run through the public door, of which the fit is timed."""
    from lightkit import Runner, compose

    config = "{" + ", ".join(f"{name}: {value}" for name, value in SIZES.items()) + "}"
    overrides = [
        "data=hf", f"data.dataset.path={folder}/texts", "data.dataset.text=text", "data.dataset.target=label",
        f"data.dataset.tokenizer={folder}/words", "data.split.val=0", "data.split.test=0",
        f"data.batch_size={BATCH}", "data.sampler=length",
        "model=custom", "model._target_=benchmarks.padded_texts.our_model", "+model.name=distilbert",
        f"+model.config={config}",
        "optim=adamw", "optim.lr=0.001", "optim.weight_decay=0", "scheduler=constant", "trainer.clip_norm=1",
        f"trainer.epochs={EPOCHS}", "trainer.test=none", "checkpoint=none", "device=cpu", "device.threads=1",
        "metrics.monitor=train/loss", "logger.console.style=quiet",
        "trainer.callbacks={stopwatch: {_target_: benchmarks.padded_texts.Watch}}",
    ]  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()), TemporaryDirectory(dir=folder) as place:
        found = Runner(compose(overrides).cfg, Path(place)).run()["metrics"]
    values = {name.removeprefix("train/"): value for name, value in found.items()}
    return proven(Sample(values["stopwatch/wall"], values["stopwatch/cpu"]))


def of_trainer(folder: Path) -> Sample:
    """The Trainer with what its documentation shows."""
    from datasets import load_from_disk
    from transformers import (
        AutoTokenizer,
        DataCollatorWithPadding,
        DistilBertConfig,
        DistilBertForSequenceClassification,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    sample = Sample()

    class Stopwatch(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_args: Any, **_more: Any) -> None:
            _seen.update(dict.fromkeys(_seen, 0))
            sample.__enter__()

        def on_train_end(self, *_args: Any, **_more: Any) -> None:
            sample.__exit__(None, None, None)

    known = AutoTokenizer.from_pretrained(folder / "words")
    found = load_from_disk(str(folder / "texts"))
    found = found.map(lambda row: known(row["text"], truncation=True), batched=True, remove_columns=["text"])
    model = DistilBertForSequenceClassification(DistilBertConfig(vocab_size=len(known), **SIZES))
    arguments = TrainingArguments(
        output_dir=str(folder / "out"),
        train_sampling_strategy="group_by_length",
        per_device_train_batch_size=BATCH,
        num_train_epochs=EPOCHS,
        learning_rate=0.001,
        lr_scheduler_type="constant",
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    collate = DataCollatorWithPadding(known)
    trainer = Trainer(counted(model), arguments, train_dataset=found, data_collator=collate, callbacks=[Stopwatch()])
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    return proven(sample)


def main(arguments: list[str] | None = None) -> bool:
    """Run the benchmark; returns whether the bars hold."""
    args = options("texts of unlike lengths beside transformers' Trainer", rounds=7, steps=120).parse_args(arguments)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    with TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder, steps = Path(name), max(1, args.steps // EPOCHS) * EPOCHS
        write(folder, steps // EPOCHS * BATCH)
        contestants = {LIGHTKIT: partial(of_lightkit, folder), TRAINER: partial(of_trainer, folder)}
        results = interleave(contestants, rounds=args.rounds)
    logging.disable(logging.NOTSET)
    show(f"{steps} steps, batch {BATCH}", results, TRAINER, per=steps)
    check_same(results, samples=0, tokens=0)
    return judge(results, BARS)


if __name__ == "__main__":
    raise SystemExit(not main())
