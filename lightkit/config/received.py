"""What the configuration of a run may build and grant when it comes from elsewhere: nothing but what the user names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lightkit.common.errors import UserError
from lightkit.config.allow import judge, targets_in
from lightkit.config.grants import withdraw
from lightkit.config.marks import key_problem
from lightkit.config.member_values import nested
from lightkit.config.origins import shown
from lightkit.config.project import project_folders, project_root, shipped_experiments
from lightkit.config.report import Silent
from lightkit.config.tree import plain_tree
from lightkit.config.trust import Trust

BY_OVERRIDE = "trust=[{}] if you know who made it"
"""How a user names what a run may build."""


def unnamed(cfg: DictConfig, run: Path, wide: Trust, *, fix: str = BY_OVERRIDE) -> UserError | None:
    """Make the error for targets that only the user can allow, all of them in one; None where there are none.

    Args:
        cfg: The configuration; its `trust` is what the user has named so far.
        run: Folder of the run that it came with.
        wide: What could be built if the project had written the run.
        fix: What to do, with a place for what to name.
    """
    root, tree = project_root(), plain_tree(cfg, Silent())
    entries = tree.get("trust")
    named = tuple(entry for entry in entries if isinstance(entry, str)) if isinstance(entries, list) else ()
    outside = (*wide.outside, *([root] if root else []))
    narrow = Trust(named, (shipped_experiments(),), outside)
    ensemble = tree.get("ensemble")
    members = ensemble.get("members") if isinstance(ensemble, dict) else ()
    said = [nested(entry) for entry in members if isinstance(entry, dict)] if isinstance(members, list) else []
    targets = [node["_target_"] for _, node in targets_in([tree, *said])]
    refused = [target for target in targets if judge(target, narrow) and not judge(target, wide)]
    if not refused:
        return None
    problem = key_problem()
    return UserError(
        "the run comes from elsewhere, and would build parts that only you can allow",
        key=shown(run),
        expected="a run that this project wrote: on this machine, by this user, its config.yaml left as it was"
        + (f" (that cannot be told: {problem.what}; {problem.fix})" if problem else ""),
        received=", ".join(dict.fromkeys(refused)),
        fix=fix.format(", ".join(dict.fromkeys([*named, *refused]))),
        family="run-from-elsewhere",
    )


def check_received(cfg: DictConfig, run: Path) -> None:
    """Refuse targets that the user has not named, in a configuration that came with a checkpoint.

    Args:
        cfg: The configuration to go on with; its `trust` is what the user has named.
        run: Folder of the run.

    Raises:
        UserError: There are such targets.
    """
    error = unnamed(cfg, run, known_trust(run))
    if error is not None:
        raise error


def check_key(jobs: Sequence[DictConfig], folder: Path) -> None:
    """Refuse what other processes are to train, where these could not tell that it comes from this user.

    Args:
        jobs: Their configurations.
        folder: The folder that they go to.

    Raises:
        UserError: This user has no key that counts, and one of them builds what needs one.
    """
    problem = key_problem()
    if problem and any(cfg.trust or unnamed(cfg, folder, known_trust(folder)) for cfg in jobs):
        what = f"the jobs could not know that this sweep is yours: {problem.what}"
        raise UserError(what, key=shown(folder), fix=problem.fix, family="run-from-elsewhere")


def known_trust(run: Path, entries: Sequence[str] = ()) -> Trust:
    """Return what a run may build that the project wrote: its modules, but for those in the folder of the run."""
    return Trust(tuple(entries), project_folders(), outside=(run.resolve(),))


def without_grants(text: str) -> str:
    """Write a configuration as YAML in which no key grants trust.

    Raises:
        UserError: A key could be reached by an interpolation.
    """
    tree: Any = OmegaConf.to_container(OmegaConf.create(text))
    withdraw(tree)
    return OmegaConf.to_yaml(OmegaConf.create(tree))
