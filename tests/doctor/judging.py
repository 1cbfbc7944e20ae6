"""What findings are compared with: a line of text for each planted fault."""

from __future__ import annotations

from collections.abc import Sequence

from lightkit.doctor.finding import Finding


def text(finding: Finding) -> str:
    """Return all that a finding says."""
    return f"{finding.measured} {finding.why} {finding.key} {finding.fix} {dict(finding.numbers)}"


def judge(findings: Sequence[Finding], says: str, besides: str = "") -> None:
    """Compare what checks find with `STATUS CHECK: WORDS | WORDS`, and see that nothing else is bad.

    The words, numbers by name among them, stand in the finding. A number in front tells how often a check says so, as
    of each split. `ok` alone says that nothing is bad.

    Args:
        findings: What checks found.
        says: What is to be said.
        besides: Another check that may say that something is wrong.
    """
    head, _, words = says.partition(": ")
    count, _, rest = head.partition(" ") if head[0].isdigit() else ("1", "", head)
    status, _, check = rest.partition(" ")
    bad = {check} if status in ("warning", "error") and count != "0" else set()
    assert {each.check for each in findings if each.is_bad} - {besides} == bad, findings
    assert all(each.measured and each.why and (each.key or each.fix) for each in findings if each.is_bad)
    chosen = [each for each in findings if (each.status, each.check) == (status, check)]
    assert not check or len(chosen) == int(count), findings
    for word in words.split(" | ") if words else ():
        assert all(word in text(each) for each in chosen), (word, chosen)
