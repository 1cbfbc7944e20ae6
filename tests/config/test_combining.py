"""Several options of one group in one run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lightkit.common.errors import UserErrors
from lightkit.config import Composed, compose_jobs, load_run, save
from tests.config.conftest import Write

Compose = Callable[..., Composed]
Report = Callable[..., str]


@pytest.mark.parametrize("text", ["finetune=[head,lora]", "finetune=[head, lora]", "+finetune=[head,lora]"])
def test_several_options_are_merged_in_their_order(composed: Compose, text: str) -> None:
    made = composed(text, "finetune.lora.rank=4")
    assert made.choices["finetune"] == "[head,lora]"
    assert made.cfg.finetune.freeze == ["*"]
    assert made.cfg.finetune.lora.match == ["@linear", "@conv", "@attention"]
    assert made.cfg.finetune.lora.rank == 4
    assert made.sources.find("finetune.train").endswith("conf/finetune/lora.yaml:3")  # type: ignore[union-attr]


def test_the_later_wins_and_lists_are_replaced(composed: Compose) -> None:
    assert composed("finetune=[lora,bitfit]").cfg.finetune.train == ["@bias", "@head"]
    assert composed("finetune=[bitfit,lora]").cfg.finetune.train == ["@head"]


def test_one_option_in_a_list_is_one_option(composed: Compose) -> None:
    assert composed("finetune=[lora]").choices["finetune"] == "lora"
    assert composed("finetune=lora").choices["finetune"] == "lora"


def test_what_an_option_is_based_on_was_not_chosen(composed: Compose, write: Write) -> None:
    write("conf/finetune/_mine.yaml", "audit: warn\n")
    write("conf/finetune/wide.yaml", "# Wide.\ndefaults:\n  - lora\n  - _mine\n  - _self_\nlora:\n  rank: 64\n")
    made = composed("finetune=[head,wide]")
    assert made.choices["finetune"] == "[head,wide]"
    assert (made.cfg.finetune.lora.rank, made.cfg.finetune.audit) == (64, "warn")


def test_an_experiment_names_several_and_the_command_line_wins(composed: Compose, write: Write) -> None:
    write("experiments/e.yaml", "defaults:\n  - override /finetune: [head, lora]\nfinetune:\n  lora:\n    rank: 2\n")
    made, other = composed("experiment=e"), composed("experiment=e", "finetune=[bitfit]")
    assert (made.choices["finetune"], made.choices["experiment"], made.cfg.finetune.lora.rank) == (
        "[head,lora]",
        "e",
        2,
    )
    assert (other.choices["finetune"], other.cfg.finetune.train) == ("bitfit", ["@bias", "@head"])


def test_a_run_is_called_after_all_of_its_experiments(composed: Compose, write: Write) -> None:
    write("experiments/a.yaml", "name: null\n")
    write("experiments/more/b.yaml", "seed: 3\n")
    assert composed("experiment=[a,more/b]").cfg.name == "a_more_b"
    assert composed("experiment=[a,more/b]").choices["experiment"] == "[a,more/b]"


@pytest.mark.thorough
def test_a_sweep_over_lists_of_options(toy: object) -> None:
    jobs = compose_jobs(["finetune=none,lora,[head,lora]", "seed=1,2"])
    assert [job.choices["finetune"] for job in jobs[::2]] == ["none", "lora", "[head,lora]"]
    assert jobs[5].overrides == ["finetune=[head,lora]", "seed=2"]
    with pytest.raises(UserErrors, match=r"(?s)finetune: no such option.*received: 'lroa'.*1 problem found"):
        compose_jobs(["finetune=none,[head,lroa],lora"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("finetune=[head,lroa]", ["received: 'lroa'", "nearest: lora", "fix:      finetune=[head,lora]"]),
        ("finetune=[haed,lroa]", ["'haed'", "'lroa'", "finetune=[head,lora]", "2 problems found"]),
        ("finetune=[head,nothing_like_it]", ["'nothing_like_it'", "`lightkit config finetune` lists the choices"]),
        ("finetune=[]", ["an option is missing", "adapter"]),
        ("finetune=head,lora", ["several runs, which wants -m", "for options that go together write finetune=[…]"]),
    ],
)
def test_a_wrong_name_in_a_list(report: Report, text: str, said: list[str]) -> None:
    found = report(text)
    for part in said:
        assert part in found


def test_nothing_is_said_about_a_group_with_a_wrong_name(report: Report) -> None:
    assert "1 problem found" in report("finetune=[head,lroa]", "finetune.lora.rank=0")


def test_a_wrong_name_in_the_list_of_an_experiment(report: Report, write: Write) -> None:
    write("experiments/e.yaml", "# E.\ndefaults:\n  - override /finetune: [head, lroa]\n")
    text = report("experiment=e")
    assert "finetune: no such option\n    at:       experiments/e.yaml:3" in text
    assert "nearest: lora" in text


def test_the_options_of_a_run_stay(toy: object, composed: Compose, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("run")
    save(composed("finetune=[head,lora]").cfg, folder)
    assert load_run(folder).cfg.finetune.lora.match == ["@linear", "@conv", "@attention"]
    with pytest.raises(UserErrors, match="the options of a run are fixed"):
        load_run(folder, ["finetune=[head]"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("finetune.train=[re:^head]", "'finetune.train=[\"re:^head\"]'"),
        ("finetune.train=[@head,re:layer[34]]", '\'finetune.train=["@head","re:layer[34]"]\''),
        ("finetune.train=['re:^a',re:^b]", '\'finetune.train=["re:^a","re:^b"]\''),
    ],
)
def test_what_needs_quotes_in_a_list_is_shown_with_them(report: Report, composed: Compose, text: str, fix: str) -> None:
    assert f"fix:      {fix}" in report(text)
    composed(fix.strip("'"))
