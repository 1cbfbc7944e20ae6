"""Plans of many phases stay readable, and the long form leaves nothing out."""

from __future__ import annotations

from lightkit.finetune.audit.render import phase_cells
from lightkit.finetune.audit.tables import GroupRow, PhaseTable


def row(group: str, *, trains: bool, rate: float = 0.1, norm: str = "", rule: str = "optim") -> GroupRow:
    return GroupRow(group, (f"{group}.weight",), 10, not trains, rate, (rate,), 0.01, norm, (rule,))


def gradual(*, rate_of_c: float = 0.1) -> list[PhaseTable]:
    """Four groups that begin to train one after the other, from the last."""
    names, tables = "abcd", []
    for phase, first in enumerate((3, 2, 1, 0)):
        groups = [
            row(
                name,
                trains=index >= first,
                rate=rate_of_c if name == "c" else 0.1,
                norm="train" if index >= first else "frozen",
                rule="finetune.head" if name == "d" else "optim",
            )
            for index, name in enumerate(names)
        ]
        tables.append(PhaseTable(f"epoch {phase}", (phase,), tuple(groups)))
    return tables


def test_later_phases_show_what_changes() -> None:
    rows = phase_cells(gradual())
    assert [line[:2] for line in rows] == [
        *[["epoch 0", "a"], ["", "b"], ["", "c"], ["", "d"]],
        *[["epoch 1", "2 groups as before"], ["", "c"], ["", "d"]],
        *[["epoch 2", "a"], ["", "b"], ["", "2 groups as before"]],
        *[["epoch 3", "a"], ["", "3 groups as before"]],
    ]
    assert [line[-1] for line in rows[:4]] == ["a.weight", "b.weight", "c.weight", "d.weight"]
    assert rows[4] == ["epoch 1", "2 groups as before", "2", "20", "no", "", "", "frozen", "optim", ""]
    assert rows[-1] == ["", "3 groups as before", "3", "30", "yes", "0.1", "0.01", "train", "optim, finetune.head", ""]


def test_groups_of_another_rate_stay_apart() -> None:
    assert [line[1] for line in phase_cells(gradual(rate_of_c=0.5))][-3:] == ["a", "2 groups as before", "c"]


def test_every_phase_has_all_its_parameters() -> None:
    tables, counts = gradual(), dict[str, int]()
    phase = ""
    for line in phase_cells(tables):
        phase = line[0] or phase
        counts[phase] = counts.get(phase, 0) + int(line[3])
    assert counts == {table.phase: 40 for table in tables}


def test_the_long_form_has_every_group() -> None:
    assert [line[1] for line in phase_cells(gradual(), long=True)] == [*"abcd"] * 4
