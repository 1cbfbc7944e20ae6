"""Containers and files of torchensemble.

Its loader `torchensemble.utils.io.load` goes by the name of a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torchensemble
from torch import Tensor, nn

from lightkit.checkpoint.export import write_state_dict
from lightkit.checkpoint.reading import reason
from lightkit.common.errors import UserError
from lightkit.ensemble.module import Ensemble, Joint, Rule

TASKS = {"multiclass": "Classifier", "regression": "Regressor"}
CLASSES = {
    "Voting": "Voting",
    "Greedy": "Voting",
    "FastGeometric": "FastGeometric",
    "Bagging": "Bagging",
    "Adversarial": "AdversarialTraining",
    "Snapshot": "SnapshotEnsemble",
    "Fusion": "Fusion",
    "GradientBoosting": "GradientBoosting",
    "SoftGradientBoosting": "SoftGradientBoosting",
}
"""The class of torchensemble for each method, without the kind of target that its name ends with."""
_SUMS = {"Fusion", "FastGeometric", "GradientBoosting", "SoftGradientBoosting"}
"""Classes whose outputs, not their probabilities, are added up."""
_FILE = re.compile(r"(?P<kind>[A-Za-z]+?)(?P<task>Classifier|Regressor)_(?P<base>.+)_(?P<size>\d+)_ckpt\.pth")
_ESTIMATORS = "estimators_."


def to_torchensemble(ensemble: Ensemble, *, method: str = "Voting", outputs: int) -> Any:
    """Make a container of torchensemble that predicts what an ensemble predicts; it has the same networks.

    Args:
        ensemble: The ensemble.
        method: Name of the method it was trained by, a class of `lightkit.ensemble.methods`.
        outputs: Classes, or regression targets.

    Raises:
        UserError: torchensemble has no such ensemble.
    """
    estimators, options = list(ensemble), dict[str, Any]()
    if len(estimators) == 1 and isinstance(estimators[0], Joint):
        joint = estimators[0]
        estimators, scales = list(joint.estimators), [joint.scale]
    else:
        scales = ensemble.weights.tolist()
    kind = CLASSES.get(method, "")
    if kind == "FastGeometric" and ensemble.rule != "sum":  # its container averages outputs, and not probabilities
        kind = "Voting"
    _check(estimators, scales, ensemble.task, kind or method)
    if kind in ("GradientBoosting", "SoftGradientBoosting"):
        options["shrinkage_rate"] = scales[0]
    elif ensemble.rule == "hard" and ensemble.task == "multiclass":
        kind, options["voting_strategy"] = "Voting", "hard"
    made = getattr(torchensemble, f"{kind}{TASKS[ensemble.task]}")(
        estimator=type(estimators[0]), n_estimators=len(estimators), cuda=False, **options
    )
    made.estimators_.extend(estimators)
    made.n_outputs = outputs
    return made.eval()


def from_torchensemble(container: Any) -> Ensemble:
    """Make an ensemble of a container of torchensemble that was trained or loaded; it has the same networks.

    Raises:
        UserError: There is no such ensemble here, or it has no network yet.
    """
    found = re.fullmatch(r"([A-Za-z]+?)(Classifier|Regressor)", type(container).__name__)
    if found is None or found[1] not in CLASSES.values() or not len(container):
        received = f"{type(container).__name__} of {len(container)} networks"
        expected = "one that was trained or loaded, of " + ", ".join(dict.fromkeys(CLASSES.values()))
        raise UserError("no ensemble can be made of this", argument="container", received=received, expected=expected)
    rule, weight = rule_of(found[1], vote=getattr(container, "voting_strategy", "soft"), size=len(container))
    weight *= getattr(container, "shrinkage_rate", 1.0)
    task = next(task for task, ending in TASKS.items() if ending == found[2])
    return Ensemble(list(container), task=task, rule=rule, weights=[weight] * len(container)).eval()


def rule_of(kind: str, *, vote: str = "soft", size: int) -> tuple[Rule, float]:
    """Return how the networks of a class of torchensemble become one, and what each counts.

    Args:
        kind: Name of the class without the kind of target, such as `Voting`.
        vote: `soft` or `hard`, for classes that know both.
        size: Number of networks.
    """
    if kind in _SUMS:
        return "sum", 1.0 if kind.endswith("GradientBoosting") else 1 / size
    return cast("Rule", vote if kind in ("Voting", "SnapshotEnsemble") else "soft"), 1 / size


def write_file(container: Any, folder: Path) -> Path:
    """Write a container under the name that `torchensemble.utils.io.load(model, folder)` looks for.

    Args:
        container: What `to_torchensemble` has made.
        folder: Where to; made if it is not there.

    Raises:
        UserError: It cannot be written; a file of that name is as it was.
    """
    name = f"{type(container).__name__}_{container.base_estimator_.__name__}_{container.n_estimators}_ckpt.pth"
    content = {
        "n_estimators": len(container),
        "model": {name: tensor.detach().cpu() for name, tensor in container.state_dict().items()},
        "_criterion": None,  # an object, which PyTorch no longer reads by itself
        "n_outputs": container.n_outputs,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot be written: {reason(error)}", key=str(folder), family="cannot-write") from error
    write_state_dict(content, folder / name)
    return folder / name


@dataclass(frozen=True)
class TorchEnsembleFile:
    """What a file of torchensemble holds."""

    kind: str
    """Class without the kind of target, such as `Voting`."""
    task: str
    """`multiclass` or `regression`."""
    states: list[dict[str, Tensor]]
    """The tensors of each network by name."""


def read_file(path: Path, content: Mapping[str, Any]) -> TorchEnsembleFile:
    """Read a file that torchensemble has written.

    Args:
        path: Its path, whose name tells the class.
        content: What is in it.

    Raises:
        UserError: It is no such file, or there is no such ensemble here.
    """
    named = _FILE.fullmatch(path.name)
    if named is None or named["kind"] not in CLASSES.values():
        expected = f"{{{','.join(dict.fromkeys(CLASSES.values()))}}}{{Classifier,Regressor}}_NETWORK_SIZE_ckpt.pth"
        what = "the name of the file does not tell which ensemble it holds"
        raise UserError(what, key=str(path), received=path.name, expected=expected, family="file")
    try:
        size, state = int(content["n_estimators"]), content["model"]
        prefixes = [f"{_ESTIMATORS}{number}." for number in range(size)]
        states = [
            {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
            for prefix in prefixes
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError("the file is not one of torchensemble", key=str(path), family="file") from error
    if not all(states) or not states:
        raise UserError("the file lacks networks", key=str(path), expected=str(size), family="file")
    task = next(task for task, ending in TASKS.items() if ending == named["task"])
    return TorchEnsembleFile(named["kind"], task, states)


def _check(estimators: Sequence[nn.Module], scales: Sequence[float], task: str, kind: str) -> None:
    """Refuse an ensemble that torchensemble does not have."""
    names = list(dict.fromkeys(type(network).__name__ for network in estimators))
    own = any(type(network).__module__.startswith("lightkit.ensemble.") for network in estimators)
    shapes = {tuple((name, tensor.shape) for name, tensor in one.state_dict().items()) for one in estimators}
    problems = (
        (task not in TASKS, "targets of this kind", task, " or ".join(TASKS)),
        (kind not in CLASSES.values(), "this method", kind, ", ".join(CLASSES)),
        (own, "members that are ensembles, or scale their inputs", ", ".join(names), "single networks"),
        (len(shapes) * len(names) > 1, "unlike members", ", ".join(names), "one kind"),
        (
            max(scales) - min(scales) > 1e-6 * max(scales),
            "members of unlike weight",
            ", ".join(f"{weight:.4g}" for weight in scales),
            "ensemble.weights=uniform",
        ),
    )
    for wrong, what, received, expected in problems:
        if wrong:
            what = f"torchensemble does not know {what}"
            raise UserError(what, key="--to", received=received, expected=expected, family="ensemble")
