"""The run of a stack: what its bases and its meta-model come to, and whether the meta-model is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from lightkit.assembly import Shared
from lightkit.assembly.dry_run import unnoticed
from lightkit.assembly.member import Features, own_rows
from lightkit.assembly.network import build_network
from lightkit.assembly.parts import role_of
from lightkit.checkpoint import content
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.failures import in_short
from lightkit.config.member_values import with_values
from lightkit.config.saved import from_yaml
from lightkit.data.tensors import TensorData
from lightkit.ensemble.combining import soft
from lightkit.ensemble.file import StoredEnsemble, StoredMember, write_ensemble
from lightkit.ensemble.greedy import select
from lightkit.ensemble.methods import RunFacts, Stacking
from lightkit.ensemble.methods.stacking import Base
from lightkit.ensemble.oof import MemberPredictions, aligned, stacked
from lightkit.ensemble.plan import MemberResult
from lightkit.ensemble.stacking import (
    GREEDY,
    STACK,
    UNIFORM,
    Inputs,
    Verdict,
    base_predictions,
    judge,
    row_losses,
    stack_features,
)
from lightkit.runner.ensemble.combined import combined, count_weights, counted_checkpoint
from lightkit.runner.ensemble.report import Outcome
from lightkit.runner.ensemble.run import EnsemblePlan
from lightkit.runner.session import Session
from lightkit.runs.reading import read_config


class StackingPlan(EnsemblePlan):
    """Trains the bases and the meta-model of a stack, and decides by rows that nothing saw what becomes of them.

    Args:
        run: The run.
        shared: What all members share.
        method: Names the members.
        facts: What the method knows of the run.
    """

    method: Stacking
    votes = False

    def __init__(self, run: Session, shared: Shared, method: Stacking, facts: RunFacts) -> None:
        super().__init__(run, shared, method, facts)
        self.verdict: Verdict | None = None
        if method.penalty(facts, rows=1) is not None:
            told = "solved for exactly; optim, scheduler and steps of ensemble.meta count with ensemble.solver=gradient"
            run.members.opening.append(f"meta    {told}")
        if method.layers > 1:
            self._check_kinds()

    def _check_kinds(self) -> None:
        """Try each kind of member on a vector, which is what members of a further layer get.

        Raises:
            UserError: One takes no vectors.
        """
        info, source = self.shared.data.info, self.shared.data.source
        kinds = self.facts.members or [("", {})]
        copies = (self.method.size or 1) if self.facts.members else (self.method.size or self.method.copies)
        predictions = [torch.zeros(2, info.num_classes)] * (len(kinds) * copies)
        inputs = source.x[:2].flatten(1) if isinstance(source, TensorData) else None
        features = stack_features(predictions, info.task, inputs)
        size: Any = {"input_shape": (features.shape[1],), "vocab_size": None, "context_length": None}
        with unnoticed(self.shared.engine.device), torch.no_grad():
            for number, (label, values) in enumerate(kinds):
                cfg = with_values(self.run.cfg, values)
                try:
                    made = build_network(cfg, replace(info, **size), self.shared.engine, pretrained=False)
                    made.model.eval()(features)
                except Exception as error:
                    raise UserError(
                        "a further layer gives its members vectors, which this kind of member does not take: "
                        f"{error.what if isinstance(error, UserError) else in_short(error)}",
                        key="ensemble.layers",
                        expected="1, or kinds of members that take vectors, such as model=mlp",
                        received=f"{self.method.layers}, with member {label or number}",
                        family="ensemble",
                    ) from error

    def _combined(self, done: Sequence[MemberResult]) -> dict[str, Any]:
        """Compare the stack with weights of its bases, and write what is used."""
        known, bases = self._known(done), self._bases(done)
        meta = done[-1].member.name
        own = [base_predictions([known[n] for n in base.folds], known.get(base.refit or "")) for base in bases]
        greedy = self._greedy(own)
        self.verdict, chosen = self._judge(own, known[meta], greedy)
        if chosen == STACK:
            together, shares = known[meta], {meta: 1.0}
        else:
            weights = greedy if chosen == GREEDY else torch.full((len(bases),), 1 / len(bases), dtype=torch.float64)
            together = combined(own, weights, "soft")
            shares = {
                name: weight / len(base.networks)
                for base, weight in zip(bases, weights.tolist())
                for name in base.networks
            }
        self.found = {"stacking": self._told(chosen, bases, greedy), **self._price(done, bases, known)}
        self._own = own
        networks = {name for base in bases for name in base.networks}
        counted = [result for result in done if result.member.name in networks]
        return self._written(done, counted, [known[result.member.name] for result in counted], together, shares)

    def _known(self, done: Sequence[MemberResult]) -> dict[str, MemberPredictions]:
        """Return what each member predicts of rows that it did not learn from, by its name."""
        return {
            result.member.name: MemberPredictions.read(result.folder / run_files.PREDICTIONS_HELD_OUT)
            for result in done
        }

    def _bases(self, done: Sequence[MemberResult]) -> list[Base]:
        """Return the bases of all layers."""
        return self.method.bases(self.facts, done)

    def _greedy(self, bases: Sequence[MemberPredictions]) -> Tensor:
        """Return the weights of the bases of all layers, by the out-of-fold predictions of training rows."""
        seen = aligned([base.of_split("train") for base in bases])
        apart = self.method.rows(self.facts).held_out
        there = torch.stack([base.predicted for base in seen]).all(0) & ~torch.isin(seen[0].rows, apart)
        found = select(stacked(seen)[:, there], seen[0].targets[there], self.facts.task, rounds=self.method.rounds)
        return torch.tensor(found.weights, dtype=torch.float64)

    def _judge(
        self, bases: Sequence[MemberPredictions], meta: MemberPredictions, greedy: Tensor
    ) -> tuple[Verdict | None, str]:
        """Decide by the rows that nothing saw; without them the stack is used."""
        if not self.method.holdout:
            return None, STACK
        apart = self.method.rows(self.facts).held_out
        *rest, stack = aligned([member.take(torch.isin(member.rows, apart)) for member in [*bases, meta]])
        there = torch.stack([member.predicted for member in [*rest, stack]]).all(0)
        predictions = stacked(rest)[:, there]
        candidates = {
            STACK: stack.predictions[there],
            GREEDY: soft(predictions, greedy),
            UNIFORM: soft(predictions),
        }
        groups = None if self.facts.groups is None else self.facts.groups[stack.rows[there]]
        share = 1 / round(1 / self.method.holdout)
        verdict = judge(candidates, stack.targets[there], self.facts.task, share=share, groups=groups)
        return verdict, verdict.chosen

    def _told(self, chosen: str, bases: Sequence[Base], greedy: Tensor) -> dict[str, Any]:
        """Return what is written down of the decision."""
        weights = {base.networks[0]: float(weight) for base, weight in zip(bases, greedy)}
        facts: dict[str, Any] = {"used": chosen, "greedy": weights}
        if self.verdict is None:
            return facts | {"why": "no rows were held out to decide by (ensemble.holdout=0)"}
        verdict = self.verdict
        held = {"rows": verdict.rows, "losses": dict(verdict.losses), "standard_error": verdict.error}
        return facts | {"why": verdict.sentence(), "holdout": held}

    def _price(
        self, done: Sequence[MemberResult], bases: Sequence[Base], known: Mapping[str, MemberPredictions]
    ) -> dict[str, Any]:
        """Return what training on all rows took, and what it changed in the loss of a base on validation."""
        names = [base.refit for base in bases if base.refit is not None]
        if not names:
            return {}
        steps = {result.member.name: result.result["steps"] for result in done}
        spent = {"steps": sum(steps[name] for name in names)}
        spent["steps_of_folds"] = sum(steps[name] for base in bases for name in base.folds)
        after = [_loss(known[name], self.facts.task) for name in names]
        before = [_loss(base_predictions([known[n] for n in base.folds]), self.facts.task) for base in bases]
        found = {"val_loss": after, "val_loss_of_folds": before}
        means = {key: sum(some) / len(some) for key, some in found.items() if None not in some}  # type: ignore[arg-type]
        return {"refit": {**spent, **means}}

    def _views(self, outcome: Outcome) -> list[list[dict[str, MemberPredictions]]]:
        """See `EnsemblePlan._views`: the ensemble on what it was judged by, then its bases."""
        together = self._by_rows(outcome.together)
        if self.found["stacking"]["used"] != STACK:
            together.pop("oof", None)  # the weights were selected on it
        return [[together], [self._by_rows(base) for base in self._own]]

    def _by_rows(self, predictions: MemberPredictions) -> dict[str, MemberPredictions]:
        """See `EnsemblePlan._by_rows`; rows that decide whether the stack is used are called `holdout`."""
        found = super()._by_rows(predictions)
        if "oof" not in found:
            return found
        rows = found.pop("oof")
        apart = torch.isin(rows.rows, self.method.rows(self.facts).held_out)
        parts = {"oof": rows.take(~apart), "holdout": rows.take(apart)}
        return {**{name: part for name, part in parts.items() if part.predicted.any()}, **found}

    def _selected_on(self, own: Sequence[MemberPredictions], shares: Mapping[str, float]) -> list[str]:
        """See `EnsemblePlan._selected_on`: greedy weights of bases come from their out-of-fold predictions."""
        del own, shares
        return ["oof"] if self.found["stacking"]["used"] == GREEDY else []

    def _store(self, done: Sequence[MemberResult], shares: Mapping[str, float]) -> int:
        """Write the networks that count, and those that feed them, into one file; return how many weights they have."""
        inputs = self._inputs(done)
        wanted, waiting = set[str](), [name for name, share in shares.items() if share > 0]
        while waiting:
            name = waiting.pop()
            wanted.add(name)
            own = inputs.get(name)
            waiting += [one for base in own.columns for one in base if one not in wanted] if own else []
        members = []
        for result in done:
            name = result.member.name
            if name in wanted:
                config = read_config(result.folder)
                cfg = OmegaConf.create(from_yaml(config))
                state = content.load_model_state(counted_checkpoint(cfg, result.folder))
                members.append(StoredMember(name, config, shares.get(name, 0.0), state))
        info = self.shared.data.info
        more = {"inputs": {name: own.plain() for name, own in inputs.items() if name in wanted}}
        stored = StoredEnsemble(members, "soft", info.task, tuple(info.class_names), more)
        write_ensemble(self.run.place.path / run_files.ENSEMBLE_WEIGHTS, stored)
        return count_weights(members)

    def _inputs(self, done: Sequence[MemberResult]) -> dict[str, Inputs]:
        """Return what the members take in that do not take the inputs of the data, by name."""
        found = {}
        for result in done:
            cfg = OmegaConf.create(from_yaml(read_config(result.folder)))
            role = role_of(cfg)
            if role.features:
                source = own_rows(cfg, self.shared.data, result.folder).source
                assert isinstance(source, Features)
                columns = [[last] for last in role.refits] or role.features
                scaling = source.shift.tolist(), source.scale.tolist()
                found[result.member.name] = Inputs(columns, role.passthrough, *scaling)
        return found

    def _more_lines(self) -> list[str]:
        """Return what the decision was made by, and what training on all rows brought."""
        told, refit, lines = self.found["stacking"], self.found.get("refit", {}), list[str]()
        if self.verdict is not None:
            losses = ", ".join(f"{name} {loss:.4f}" for name, loss in self.verdict.losses.items())
            lines.append(f"held out  used: {told['used']}; loss of {self.verdict.rows} rows that nothing saw: {losses}")
        lines.append(told["why"])
        if refit:
            took = f"{refit['steps'] / refit['steps_of_folds']:.0%} of the steps of the folds"
            change = f": validation loss of a base {refit['val_loss']:.4f}, of its folds together "
            gain = f"{change}{refit['val_loss_of_folds']:.4f}" if "val_loss" in refit else ""
            lines.append(f"training on all rows took {took}{gain}")
        return [*lines, *self.lines]


def _loss(predictions: MemberPredictions, task: str) -> float | None:
    """Return the mean loss of validation rows; None where there are none."""
    rows = predictions.of_split("val")
    rows = rows.take(rows.predicted)
    return float(row_losses(rows.predictions, rows.targets, task).mean()) if len(rows) else None
