"""A training step with LoRA, in both ways it can be done, beside full fine-tuning and beside peft.

Everyone trains the same transformer encoder from the same start with AdamW. Full fine-tuning trains all of it, the
others put matrices of rank 8 beside all linear layers of the blocks, and train these and the head. peft is left out
where it is not installed.

    python -m benchmarks.lora [--rounds 15] [--steps 20] [--no-peers]
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.harness import Bar, Sample, check_same, interleave, judge, options, show
from lightkit.finetune.peft.lora import Impl, inject_lora
from lightkit.finetune.peft.peft_bridge import inject_peft
from lightkit.models import TransformerClassifier

FULL, PARAMETRIZE, WRAP, PEFT = "full fine-tuning", "LoRA, parametrize", "LoRA, wrap", "LoRA of peft"
RANK, CLASSES, FEATURES = 8, 10, 16


class Case(NamedTuple):
    """A size of the work.

    Args:
        title: What it is.
        dim: Width of the network.
        batch: Samples per step.
        length: Positions of a sample.
        limits: Largest time of both ways relative to full fine-tuning.
    """

    title: str
    dim: int
    batch: int
    length: int
    limits: dict[str, float]


CASES = [
    Case("width 64, 16 × 32 tokens", 64, 16, 32, {PARAMETRIZE: 1.2, WRAP: 1.3}),
    Case("width 384, 2 × 16 tokens", 384, 2, 16, {PARAMETRIZE: 1.05, WRAP: 0.6}),
]


def network(case: Case) -> TransformerClassifier:
    """The network everyone starts from: two blocks and a head."""
    torch.manual_seed(0)
    return TransformerClassifier((case.length, FEATURES), CLASSES, dim=case.dim, depth=2, heads=4)


def layers(model: nn.Module) -> list[str]:
    """Paths of the linear layers of its blocks."""
    found = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
    return [path for path in found if path.startswith("blocks.")]


def lora(model: nn.Module, *, impl: Impl) -> list[str]:
    """LoRA of lightkit; returns the names of what trains."""
    return inject_lora(model, dict.fromkeys(layers(model), RANK), alpha=16, impl=impl)


def peft_lora(model: nn.Module) -> list[str]:
    """LoRA of peft; returns the names of what trains."""
    import peft

    return inject_peft(model, peft.LoraConfig(target_modules=layers(model), r=RANK, lora_alpha=16))


def train(case: Case, change: Callable[[nn.Module], list[str]] | None, *, steps: int) -> Sample:
    """Train for some steps; the first two, which set things up, are not timed."""
    model, x, y = network(case), *batch(case)
    if change is not None:
        new = set(change(model))
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in new or name.startswith("head."))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    first = step()
    step()
    with (sample := Sample()):
        for _ in range(steps):
            last = step()
    sample.proof = {"first loss": first.item(), "last loss": last.item(), "trained": sum(p.numel() for p in trained)}
    return sample


def batch(case: Case) -> tuple[Tensor, Tensor]:
    """Inputs and classes, always the same."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(case.batch, case.length, FEATURES, generator=generator)
    return x, torch.randint(CLASSES, (case.batch,), generator=generator)


def contestants(*, peers: bool) -> dict[str, Callable[[nn.Module], list[str]] | None]:
    """How each of those who can take part here changes the network."""
    found: dict[str, Any] = {
        FULL: None,
        PARAMETRIZE: partial(lora, impl="parametrize"),
        WRAP: partial(lora, impl="wrap"),
    }
    if peers and importlib.util.find_spec("peft"):
        found[PEFT] = peft_lora
    return found


def measure(case: Case, *, rounds: int, steps: int, peers: bool) -> bool:
    """Measure one size; returns whether the bars hold."""
    everyone = contestants(peers=peers)
    runs = {name: partial(train, case, change, steps=steps) for name, change in everyone.items()}
    results = interleave(runs, rounds=rounds)
    check_same(results, **{"first loss": 1e-5})
    show(case.title, results, FULL, per=steps)
    bars = [Bar(name, FULL, limit, kind="cpu") for name, limit in case.limits.items()]
    if PEFT in everyone:
        bars += [Bar(PARAMETRIZE, PEFT, kind="cpu"), Bar(WRAP, PEFT, 1.15, kind="cpu")]
    return judge(results, bars)


def main(arguments: list[str] | None = None) -> bool:
    """Run the benchmark; returns whether the bars hold."""
    chosen = options("a training step with LoRA", rounds=15, steps=20)
    chosen.add_argument("--no-peers", action="store_true", help="leave peft out")
    args = chosen.parse_args(arguments)
    torch.set_num_threads(1)
    held = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in CASES:
            held.append(measure(case, rounds=args.rounds, steps=args.steps, peers=not args.no_peers))
            print()
    if not args.no_peers and not importlib.util.find_spec("peft"):
        print("peft is not installed and was left out: pip install -e '.[peft]'")
    return all(held)


if __name__ == "__main__":
    raise SystemExit(not main())
