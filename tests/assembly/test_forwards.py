"""Rates and phases that go by the depth of layers follow the order in which these run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.assembly import build
from lightkit.config import compose
from lightkit.runner import Runner
from tests.conftest import Outcome
from tests.finetune.whole import SHORT, notes

Cli = Callable[..., Outcome]
WINE = ("data=wine", "model=custom", "trust=[tests]")
BACKWARDS = (*WINE, "model._target_=tests.finetune.strange.Backwards")
RATES = {"parts.a.weight": 0.01, "parts.norm.weight": 0.01, "parts.b.weight": 0.1, "out.weight": 1.0}


def test_rates_grow_from_the_layer_that_runs_first(cli: Cli) -> None:
    for asked in (
        ["finetune=discriminative"],
        ["optim.layer_decay=0.1"],
        ["finetune=full", "finetune.layer_decay=0.1"],
    ):
        done = cli("plan", *BACKWARDS, *asked, "optim.lr=1", "--json")
        assert done.code == 0, done.err
        groups = json.loads(done.out)["phases"][0]["groups"]
        found = {name: group["rate"] for group in groups for name in group["names"] if name in RATES}
        assert found == pytest.approx(RATES)


def test_layers_are_unfrozen_from_the_one_that_runs_last(cli: Cli) -> None:
    done = cli("plan", *BACKWARDS, "finetune=gradual", "--json")
    assert done.code == 0, done.err
    phases = json.loads(done.out)["phases"]
    trained = [
        {name for group in phase["groups"] if not group["frozen"] for name in group["names"]} for phase in phases
    ]
    new = [names - before for before, names in zip([set[str](), *trained], trained)]
    assert [next(name.rpartition(".")[0] for name in sorted(names)) for names in new] == ["out", "parts.b", "parts.a"]


def test_a_user_is_told_of_layers_whose_place_is_not_known(cli: Cli) -> None:
    asked = (*WINE, "model._target_=tests.finetune.strange.Unordered")
    done = cli("plan", *asked, "finetune=discriminative")
    assert done.code == 0, done.err
    assert "\norder of the layers: idle: not used in a forward pass" in done.out
    assert "\norder of the layers: again: used again after later layers" in done.out
    assert "order of the layers" not in cli("plan", *asked, "finetune=head").out
    stubborn = cli("plan", *WINE, "model._target_=tests.finetune.strange.Stubborn", "optim.layer_decay=0.5")
    assert "\norder of the layers: that of their definition, as a forward pass fails" in stubborn.out


def test_a_run_keeps_the_order_that_it_had(tmp_path: Path) -> None:
    asked = [*BACKWARDS, *SHORT, "finetune=discriminative"]
    Runner(compose([*asked, "trainer.epochs=1"]).cfg, tmp_path).run()
    found = notes(tmp_path)
    assert {name: found["layers"][name] for name in RATES} == dict(zip(RATES, (0, 0, 1, 2)))

    def resumed() -> dict[str, int]:
        parts = build(compose(asked).cfg, tmp_path, pretrained=False)
        parts.data.close()
        return {name: (parts.made.depths or {})[name] for name in RATES}

    assert resumed() == dict(zip(RATES, (0, 0, 1, 2)))
    del found["layers"]  # as earlier versions wrote it
    (tmp_path / "finetune.json").write_text(json.dumps(found), encoding="utf-8")
    assert resumed() == {"out.weight": 0, "parts.b.weight": 1, "parts.norm.weight": 1, "parts.a.weight": 2}
