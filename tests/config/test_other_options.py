from __future__ import annotations

import pytest

from lightkit.common.errors import UserErrors
from lightkit.config import compose

TYPED = [
    (["ensemble.size=3"], "ensemble=voting ensemble.size=3; also of adversarial, bagging"),
    (["ensemble.cycle_epochs=3"], "ensemble=fast_geometric ensemble.cycle_epochs=3"),
    (["model.channels=[3]"], "model=cnn model.channels=[3]"),
    (["scheduler.gamma=0.5"], "scheduler=step scheduler.gamma=0.5"),
    (["optim.momentum=0.5"], "optim=sgd optim.momentum"),
    (["model.zebra=1"], "remove it: ~model.zebra"),
]


@pytest.mark.parametrize(("typed", "fix"), TYPED)
def test_the_option_that_takes_the_argument_is_named(typed: list[str], fix: str) -> None:
    with pytest.raises(UserErrors) as raised:
        compose(typed)
    assert fix in str(raised.value)
