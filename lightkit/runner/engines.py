"""How the members of an ensemble that need nothing of each other are trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lightkit.ensemble.plan import MemberResult, RunMember
from lightkit.runner.session import Session
from lightkit.trainer.learner import Shared

TrainOne = Callable[[Session, RunMember, Shared], MemberResult]


def train_members(run: Session, members: Sequence[RunMember], shared: Shared, train: TrainOne) -> list[MemberResult]:
    """Train members, but for those that an earlier part of the run has trained.

    Args:
        run: The run.
        members: None of them needs another one.
        shared: What they share.
        train: Trains one.

    Returns:
        Their results, in the same order.
    """
    return [run.finished(member) or train(run, member, shared) for member in members]
