from __future__ import annotations

from lightkit.doctor.finding import Finding, closing, line

LONG = "the outputs for 127 rows differ by 31 % from one time to the next, and so on " * 3
FOUND = [
    Finding("evaluation", "error", LONG, "why it matters", "model", "do this"),
    Finding("speed", "warning", "input-bound", "slow", "data.num_workers", "data.num_workers=4"),
    Finding("disk", "note", "tight"),
    Finding("gradients", "ok", "fine"),
    Finding("causality", "skipped", "no text"),
    Finding("causality", "skipped", "no text"),
]


def test_a_line_says_how_bad_it_is_and_keeps_its_column() -> None:
    first, *more = line(FOUND[0], 80).splitlines()

    assert first.startswith("ERROR   evaluation          the outputs")
    assert more
    assert all(len(each) <= 80 and each.startswith(" " * 28) for each in more)


def test_what_is_worst_stands_last_and_a_key_that_the_fix_names_is_not_repeated() -> None:
    text = "\n".join(closing(FOUND, 12.3, 100))

    assert text.index("warning: speed") < text.index("ERROR: evaluation")
    assert "fix:      data.num_workers=4" in text
    assert "key:      data.num_workers" not in text
    assert "key:      model" in text
    assert "note: disk" not in text  # there is nothing to do about it
    assert "skipped causality (--json says why)" in text
    assert text.splitlines()[-1] == "1 error, 1 warning, 1 note, 1 ok, 2 skipped in 12 s"


def test_nothing_at_all() -> None:
    assert [*closing([], 0.2)] == ["nothing was looked at in 0 s"]


def test_a_long_name_does_not_touch_what_was_measured() -> None:
    assert line(Finding("leaking features of all", "ok", "fine")) == "ok      leaking features of all fine"
