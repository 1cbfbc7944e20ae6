"""What all methods have in common."""

from __future__ import annotations

import pytest

from lightkit.common.errors import UserError
from lightkit.ensemble.methods import Fusion, Greedy, NoEnsemble, SoftGradientBoosting, Voting
from lightkit.ensemble.methods.base import member
from tests.ensemble.methods.running import facts


def test_a_member_has_a_folder_a_seed_and_a_role() -> None:
    made = member(facts(), 3, "fold1", {"optim.lr": 1}, rows="folds")
    assert made.name == "03-fold1"
    assert made.values["seed"] == facts().member_seed(3)
    assert made.values["optim.lr"] == 1
    assert made.values["ensemble"]["member"] == {"rows": "folds"}
    assert member(facts(), 3, values={"seed": 5}).values["seed"] == 5


def test_targets_that_a_method_is_not_defined_for_are_refused() -> None:
    with pytest.raises(UserError, match="not defined for language_modeling targets"):
        Voting().check(facts(task="language_modeling"))
    with pytest.raises(UserError, match="not defined for multilabel targets"):
        SoftGradientBoosting().check(facts(task="multilabel"))


def test_methods_whose_members_are_alike_take_no_others() -> None:
    unlike = facts(members=[("mlp", {})])
    with pytest.raises(UserError, match="all members of this method are alike"):
        Fusion().check(unlike)
    Voting().check(unlike)


def test_weights_need_rows_that_no_member_learnt_from() -> None:
    with pytest.raises(UserError, match="there is no validation split"):
        Greedy().check(facts(validated=False))
    Voting().check(facts(validated=False))


def test_a_plain_run_has_a_method_too() -> None:
    assert NoEnsemble().size is None
    with pytest.raises(UserError, match="an ensemble needs a member"):
        Voting(size=0)
    with pytest.raises(UserError, match="no process is left"):
        Voting(slots=0)
