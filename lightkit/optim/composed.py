"""Optimizers that are made of others: Muon and SparseAdam beside AdamW, LBFGS over all groups, SAM around any."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightkit.common.argument_checks import check_range
from lightkit.common.errors import UserError
from lightkit.common.modules import everywhere, is_shard
from lightkit.common.stepping import needs_closure, take_step

Groups = Iterable[dict[str, Any]]
"""Parameter groups with their settings, as of `lightkit.optim.parameter_groups`."""
Closure = Callable[[], Any]
"""Computes the loss and its gradients at the weights of now."""


class ComposedOptimizer(Optimizer):
    """Base of optimizers that let others take their steps, over the same groups and with the same state.

    So a checkpoint, a schedule and an audit see one optimizer as any other.

    Args:
        groups: All groups; each names in `part` which of the parts steps over it.
        parts: The other optimizers.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], parts: Mapping[str, Optimizer]) -> None:
        super().__init__(groups, {})
        self.parts = dict(parts)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "parts": self.parts}

    def linked(self) -> list[Optimizer]:
        """Return the parts that have something to step over, with the groups and the state of now."""
        for name, part in self.parts.items():
            part.param_groups = [group for group in self.param_groups if group["part"] == name]
            part.state = self.state
        return [part for part in self.parts.values() if part.param_groups]

    def step(self, closure: Closure | None = None) -> Any:
        """Let each part step over its groups."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for part in self.linked():
            take_step(part)
        return loss


def _divided(groups: Groups, name: str, takes: Callable[[Tensor], bool]) -> tuple[list[dict[str, Any]], ...]:
    """Cut each group in two, of parameters that a part called `name` takes and of the others, which keep its name."""
    found: tuple[list[dict[str, Any]], ...] = [], []
    for group in groups:
        names = group.get("param_names") or [""] * len(group["params"])
        for chosen, place in zip((True, False), found):
            kept = [pair for pair in zip(group["params"], names) if takes(pair[0]) is chosen]
            if kept:
                lists = {"params": [pair[0] for pair in kept], "param_names": [pair[1] for pair in kept]}
                own = f"{group.get('name', 'group')}_{name}" if chosen else group.get("name", "group")
                place.append({**group, **lists, "name": own, "part": name if chosen else "adamw"})
    return found


class _BesideAdamW(ComposedOptimizer):
    """Base of an optimizer for some parameters, called `name`, beside AdamW for all else."""

    def __init__(
        self, groups: Groups, name: str, takes: Callable[[Tensor], bool], make: Callable[..., Optimizer], **adamw: Any
    ) -> None:
        chosen, others = _divided(groups, name, takes)
        parts = {name: make(chosen)} if chosen else {}
        super().__init__([*chosen, *others], parts | ({"adamw": torch.optim.AdamW(others, **adamw)} if others else {}))


class Muon(_BesideAdamW):
    """Muon (https://kellerjordan.github.io/posts/muon/) for the matrices of hidden layers, AdamW for all else.

    All else are embeddings, the last matrix of the model, which gives its outputs, and what has not two dimensions:
    biases, norms, convolutions. With `match_rms_adamw` (https://arxiv.org/abs/2502.16982) the steps of Muon are as
    large as those of AdamW, so that both have one rate. The groups of Muon have names that end in `_muon`.

    Args:
        params: Parameter groups.
        model: The network that the parameters are of.
        lr: Learning rate of groups without their own.
        weight_decay: Weight decay of groups without their own, decoupled as in AdamW.
        momentum: Momentum of Muon.
        nesterov: Whether that is Nesterov's.
        ns_steps: Steps of the Newton-Schulz iteration.
        adjust_lr_fn: How the rate follows the shape of a matrix: see `torch.optim.Muon`.
        betas: Those of AdamW.
        eps: That of AdamW.

    Raises:
        UserError: This PyTorch has no Muon, or processes hold parts of the matrices.
    """

    def __init__(
        self,
        params: Groups,
        model: nn.Module,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr_fn: Literal["original", "match_rms_adamw"] = "match_rms_adamw",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        kind = getattr(torch.optim, "Muon", None)
        if kind is None:
            received = f"PyTorch {torch.__version__}"
            raise UserError("Muon comes with PyTorch 2.9", argument="", received=received, fix="pip install -U torch")
        if any(map(is_shard, model.parameters())):
            what = "Muon needs whole matrices, of which each process holds a part here"
            raise UserError(what, argument="", fix="device.parallel=ddp, or optim=adamw", family="contradiction")
        tables = [each.weight for each in model.modules() if isinstance(each, (nn.Embedding, nn.EmbeddingBag))]
        matrices = [each for _, each in model.named_parameters(remove_duplicate=False) if each.ndim == 2]
        others = {id(each) for each in (*tables, *matrices[-1:])}
        shared: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
        own = {"momentum": momentum, "nesterov": nesterov, "ns_steps": ns_steps, "adjust_lr_fn": adjust_lr_fn}
        adamw, make = {**shared, "betas": betas, "eps": eps}, partial(kind, **shared, **own)
        super().__init__(params, "muon", lambda each: each.ndim == 2 and id(each) not in others, make, **adamw)


class SparseAdam(_BesideAdamW):
    """Adam for tables of embeddings whose gradients are sparse (`nn.Embedding(sparse=True)`), AdamW for all else.

    Of a table only the rows that a batch has looked up change, and their averages. So there is no weight decay on
    tables. Their groups have names that end in `_sparse`.

    Args:
        params: Parameter groups.
        model: The network that the parameters are of.
        lr: Learning rate of groups without their own.
        weight_decay: Weight decay of groups without their own, but for tables.
        betas: Those of both.
        eps: That of both.

    Raises:
        UserError: The model has no such table.
    """

    def __init__(
        self,
        params: Groups,
        model: nn.Module,
        lr: float = 1e-3,
        weight_decay: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        tables = {id(each.weight) for each in model.modules() if getattr(each, "sparse", False)}
        if not tables:
            what, fix = "no table of embeddings of the model has sparse gradients", "nn.Embedding(…, sparse=True)"
            raise UserError(what, argument="", fix=f"{fix} in the model, or optim=adamw", family="contradiction")

        def make(groups: list[dict[str, Any]]) -> Optimizer:
            for group in groups:
                group["weight_decay"] = 0.0
            return torch.optim.SparseAdam(groups, lr=lr, betas=betas, eps=eps)

        shared: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": eps}
        super().__init__(params, "sparse", lambda each: id(each) in tables, make, **shared)


class Lbfgs(ComposedOptimizer):
    """L-BFGS with a line search (Nocedal and Wright 2006, chapter 7): for small models and whole data as one batch.

    A step computes the loss of its batches up to `max_iter * 1.25` times. Batches that change from step to step spoil
    what it knows of the curvature. There is one rate for all parameters, and no weight decay.

    Args:
        params: Parameter groups, all with the same rate.
        lr: Learning rate; 1 is the rate of the method.
        max_iter: Iterations in a step.
        max_eval: Times that a step may compute the loss; None is `max_iter * 1.25`.
        tolerance_grad: A step ends where no gradient is larger.
        tolerance_change: A step ends where it changes less.
        history_size: Steps that the curvature is told from.
        line_search_fn: `strong_wolfe`, or None for steps of the size `lr`.

    Raises:
        UserError: Groups have rates, weight decays or warm-ups of their own, or processes hold parts of the parameters.
    """

    def __init__(
        self,
        params: Groups,
        lr: float = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 10,
        line_search_fn: Literal["strong_wolfe"] | None = "strong_wolfe",
    ) -> None:
        groups = [{**group, "part": "lbfgs"} for group in params]
        flat = [parameter for group in groups for parameter in group["params"]]
        unlike = {group.get("lr", lr) for group in groups} != {groups[0].get("lr", lr)}
        if unlike or any(group.get("weight_decay") or group.get("warmup_steps") for group in groups):
            what = (
                "L-BFGS steps over all parameters together: groups have no rate, weight decay or warm-up of their own"
            )
            fix = "optim.rules=[] optim.layer_decay=null, or optim=adamw"
            raise UserError(what, argument="rules", fix=fix, family="contradiction")
        if any(map(is_shard, flat)):
            what = "L-BFGS needs whole parameters, of which each process holds a part here"
            raise UserError(what, argument="", fix="device.parallel=ddp, or optim=adamw", family="contradiction")
        inner = torch.optim.LBFGS(
            flat,
            lr=lr,
            max_iter=max_iter,
            max_eval=max_eval,
            tolerance_grad=tolerance_grad,
            tolerance_change=tolerance_change,
            history_size=history_size,
            line_search_fn=line_search_fn,
        )
        for group in groups:
            group.setdefault("lr", lr)
        super().__init__(groups, {"lbfgs": inner})

    def state_bytes(self, parameter: Tensor) -> int:
        """Return the bytes that are kept for a parameter in the end: two for each step of the history, and two more."""
        kept = 2 * int(self.parts["lbfgs"].defaults["history_size"]) + 2
        return kept * parameter.numel() * parameter.element_size()

    def step(self, closure: Closure) -> Any:  # type: ignore[override]
        """Let L-BFGS step over all groups as one."""
        inner = self.parts["lbfgs"]
        inner.param_groups[0]["lr"], inner.state = float(self.param_groups[0]["lr"]), self.state
        return inner.step(closure)


class Sam(ComposedOptimizer):
    """Sharpness-aware minimization (Foret et al. 2021, https://arxiv.org/abs/2010.01412) around another optimizer.

    Each step computes the gradients twice: at the weights, and where the loss is about largest within a ball of radius
    `rho` around them. The other optimizer steps from the weights by the second gradients. A step takes twice as long.

    Args:
        params: Parameter groups.
        base: Makes the other optimizer from the groups: in YAML a `_target_` with `_partial_: true`.
        lr: Learning rate of groups without their own.
        weight_decay: Weight decay of groups without their own.
        rho: Radius of the ball, 0 or above.
        adaptive: Measure the ball relative to each weight (ASAM, https://arxiv.org/abs/2102.11600); `rho` is about ten
            times as large then.

    Raises:
        UserError: `rho` is out of its range, or `base` makes no optimizer that steps by gradients alone.
    """

    clips_gradients = True
    """Whether gradients may be clipped before it sees them."""

    def __init__(
        self,
        params: Groups,
        base: Callable[..., Any],
        lr: float = 0.1,
        weight_decay: float = 0.0,
        rho: float = 0.05,
        adaptive: bool = False,
    ) -> None:
        check_range("rho", rho, low=0)
        own = {"part": "base", "rho": rho, "adaptive": adaptive}
        groups = [{"weight_decay": weight_decay, **group, **own} for group in params]
        inner = base(groups, lr=lr) if callable(base) else base
        if not isinstance(inner, Optimizer) or needs_closure(inner):
            expected = "an optimizer class that steps by gradients alone, with `_partial_: true`"
            received = type(inner).__name__ if callable(base) else base
            raise UserError("not an optimizer", argument="base", expected=expected, received=received)
        super().__init__(groups, {"base": inner})

    @property
    def base(self) -> Optimizer:
        """Return the other optimizer, whose state is all that is kept."""
        return self.parts["base"]

    @torch.no_grad()
    def step(self, closure: Closure) -> Any:  # type: ignore[override]
        """Climb to the edge of the ball, take the gradients there, come back and step."""
        loss = torch.enable_grad()(closure)()
        pairs = [(each, group) for group in self.param_groups for each in group["params"] if each.grad is not None]
        before = [each.clone() for each, _ in pairs]
        scales: list[Any] = [each.abs() if group["adaptive"] else 1.0 for each, group in pairs]
        slopes = [each.grad * scale for (each, _), scale in zip(pairs, scales)]
        norm = everywhere(nn.utils.get_total_norm(slopes))
        for (each, group), scale, slope in zip(pairs, scales, slopes):
            each.add_(slope * scale * (group["rho"] / (norm + 1e-12)))
        torch.enable_grad()(closure)()
        for (each, _), kept in zip(pairs, before):
            each.copy_(kept)
        for part in self.linked():
            take_step(part)
        return loss
