"""The two transfer experiments from the pretraining run to the table, shortened, and the report on made-up runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from experiments.transfer_shapes import report
from tests.conftest import Cli

SHORT = ("trainer.steps=4", "scheduler.warmup_steps=0", "device=cpu", "device.threads=1")


def made_up(sweep: Path, method: str, per_class: int, seed: int, accuracy: float, *, status: str = "finished") -> None:
    folder = sweep / f"{method}-{per_class}-{seed}"
    folder.mkdir(parents=True)
    phases = [{"trainable": 10}, {"trainable": 1234}]
    (folder / "result.json").write_text(json.dumps({"status": status, "test": {"test/accuracy": accuracy}}))
    (folder / "config.yaml").write_text(yaml.dump({"seed": seed, "data": {"split": {"per_class": per_class}}}))
    (folder / "overrides.yaml").write_text(yaml.dump(["experiment=x", f"finetune={method}", f"seed={seed}"]))
    (folder / "finetune.json").write_text(json.dumps({"plan": {"phases": phases}}))


def test_table_has_mean_and_deviation_in_the_order_of_the_methods(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((0.5, 0.6, 0.7)):
        made_up(tmp_path, "lora", 5, seed, accuracy)
    made_up(tmp_path, "none", 80, 0, 0.9)
    made_up(tmp_path, "norm", 80, 0, 0.8)
    made_up(tmp_path, "none", 5, 0, 0.1, status="stopped")

    assert report.table(report.grouped(report.read_sweep(tmp_path))).splitlines() == [
        "|  | trainable parameters | 5 a class | 80 a class |",
        "| --- | ---: | --- | --- |",
        "| from scratch | 1,234 |  | 90.0 % ± 0.0 |",
        "| LoRA | 1,234 | 60.0 % ± 10.0 |  |",
        "| norm | 1,234 |  | 80.0 % ± 0.0 |",
    ]


def test_sweep_without_a_finished_run_is_an_error(tmp_path: Path) -> None:
    made_up(tmp_path, "lora", 5, 0, 0.5, status="stopped")

    with pytest.raises(SystemExit, match="no finished run"):
        report.read_sweep(tmp_path)


def test_missing_base_is_refused_with_its_name(cli: Cli) -> None:
    outcome = cli("train", "experiment=transfer_shapes", "finetune=full")

    assert outcome.code == 2
    assert "outputs/runs/transfer_shapes_base" in outcome.err


@pytest.mark.thorough
def test_from_the_pretraining_run_to_the_plot(cli: Cli, project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    base, sweep = "outputs/runs/transfer_digits_base", Path("outputs/sweeps/digits")
    first = ("experiment=transfer_digits/pretrain", "scheduler.warmup_epochs=0", f"hydra.run.dir={base}")
    assert cli("train", *first, *SHORT).code == 0
    for method in ("none", "gradual", "lora"):
        own = (f"finetune={method}", "data.split.per_class=5", f"hydra.run.dir={sweep / method}")
        outcome = cli(
            "train", "experiment=transfer_digits", *own, *SHORT, "trainer.steps=4", "scheduler.warmup_steps=0"
        )
        assert outcome.code == 0, outcome.out + outcome.err

    report.main([str(sweep)])

    lines = capfd.readouterr().out.splitlines()
    shares = {line.split(" | ")[0].strip("| "): line.split(" | ")[1] for line in lines[2:-2]}
    assert [*shares] == ["from scratch", "gradual", "LoRA", "support vector machine on pixels"]
    everything, low_rank = (int(shares[name].replace(",", "")) for name in ("gradual", "LoRA"))
    assert shares["from scratch"] == shares["gradual"]
    assert low_rank <= 0.2 * everything
    assert (sweep / "transfer.png").stat().st_size > 5000
