"""What networks are compared with: counting, kernels, and histograms of gradients."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from sklearn.svm import SVC

from experiments.report import classics, texts
from experiments.report.kneser_ney import KneserNey, discounts_of
from experiments.report.pictures import oriented_gradients


def made_up(length: int, *, tokens: int = 5, seed: int = 0) -> np.ndarray:
    """A text in which the next token depends on the two before it."""
    draw = np.random.default_rng(seed)
    text = [0, 1]
    for _ in range(length - 2):
        likely = (text[-1] * 2 + text[-2]) % tokens
        text.append(likely if draw.random() < 0.7 else int(draw.integers(tokens)))
    return np.array(text)


def by_the_book(text: list[int], tokens: int, order: int, context: tuple[int, ...], token: int) -> float:
    """The formula of Chen and Goodman, with dictionaries."""
    grams = {n: Counter(tuple(text[i : i + n]) for i in range(len(text) - n + 1)) for n in range(1, order + 1)}

    def share(history: tuple[int, ...], longest: bool) -> float:
        length = len(history) + 1
        counts = grams[length] if longest else Counter(dict.fromkeys(grams[length], 0))
        if not longest:
            for gram in grams[length + 1]:
                counts[gram[1:]] += 1
        discounts = discounts_of(np.array([*counts.values()]))
        total = sum(count for gram, count in counts.items() if gram[:-1] == history)
        taken = sum(discounts[min(count, 3)] for gram, count in counts.items() if gram[:-1] == history)
        shorter = share(history[1:], False) if history else 1 / tokens
        if not total:
            return shorter
        count = counts.get((*history, token), 0)
        return (count - discounts[min(count, 3)]) / total + taken / total * shorter

    return share(context[-(order - 1) :] if order > 1 else (), True)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_kneser_ney_is_the_formula_of_chen_and_goodman(order: int) -> None:
    text, unseen = made_up(400), made_up(30, seed=1)
    found = KneserNey([text], 5, order).probabilities(unseen)[order]

    expected = [
        by_the_book(text.tolist(), 5, order, tuple(unseen[:place]), unseen[place]) for place in range(order, 30)
    ]
    np.testing.assert_allclose(found[order:], expected)


@pytest.mark.parametrize("seen", [0, 1, 3])
def test_probabilities_of_all_tokens_sum_to_one_however_little_is_seen(seen: int) -> None:
    model = KneserNey([made_up(300), made_up(50, seed=2)], 6, 4)  # token 5 never occurs

    for context in ([0, 1, 2], [5, 5, 5], [3, 3, 3]):
        each = [model.probabilities(np.array([*context, token]), np.full(4, seen))[4][-1] for token in range(6)]
        assert sum(each) == pytest.approx(1)
        assert min(each) > 0


def test_no_ngram_reaches_from_one_text_into_the_next() -> None:
    apart, joined = (KneserNey(parts, 4, 2) for parts in ([[0, 1], [2, 3]], [[0, 1, 2, 3]]))
    wanted = np.array([1, 2])

    assert joined.probabilities(wanted)[2][1] > apart.probabilities(wanted)[2][1]


def test_windows_cover_what_the_network_is_tested_on(project: object, monkeypatch: pytest.MonkeyPatch) -> None:
    short = ("data.dataset.texts={_target_: experiments.report.stamp.made_up_texts}", "data.split.limit=5")
    monkeypatch.setattr(texts, "COMMON", short)
    windows = texts.Windows("char_lm", "lstm")
    rows = windows.data.rows["test"]
    _, after = windows.data.source.take(rows)
    text, seen = windows.unseen("test", within=True)

    assert text[1:].tolist() == after.flatten().tolist()
    assert seen is not None
    assert seen[1:130].tolist() == [*range(1, 129), 1]
    assert windows.unseen("test", within=False)[1] is None
    assert sum(len(piece) - 1 for piece in windows.pieces("train")) == 5 * 128


def test_gradients_tell_directions_and_ignore_brightness() -> None:
    upright = np.zeros((1, 3, 16, 16))
    upright[..., 6:] = 1.0
    lying = upright.swapaxes(2, 3)
    features = [oriented_gradients(each, cell=8).reshape(4, 9).sum(0) for each in (upright, lying, upright + 5)]

    assert features[0].argmax() == 0
    assert features[1].argmax() in (4, 5)
    np.testing.assert_allclose(features[0], features[2])


@pytest.mark.thorough
def test_a_contest_is_decided_on_other_seeds_than_those_reported(project: object) -> None:
    seen: list[int] = []
    contest = classics.Contest({"few": SVC(C=1e-4), "more": SVC(C=1)}, classics.accuracy, tuning=(100, 101))
    original = classics.rows_of

    def recorded(page: str, contest: classics.Contest, seed: int) -> dict[str, classics.Rows]:
        seen.append(seed)
        return original(page, contest, seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classics, "rows_of", recorded)
        result = classics.hold("wine", contest)

    assert seen == [100, 101, *range(10)]
    assert result["label"] == "more"
    assert len(result["values"]["test/accuracy"]) == 10


def test_rows_of_a_classic_are_those_of_the_run(project: object) -> None:
    (contest,) = classics.CONTESTS["custom_task"]().values()
    pairs = classics.rows_of("custom_task", contest, 0)

    assert {name: x.shape for name, (x, _) in pairs.items()} == {
        "train": (8000, 128),
        "val": (1000, 128),
        "test": (5000, 128),
    }
    few = next(iter(classics.CONTESTS["transfer_digits"]().values()))
    assert len(classics.rows_of("transfer_digits", few, 0)["train"][1]) == 25


def test_labels_are_found_from_sums_of_pairs() -> None:
    draw = np.random.default_rng(0)
    images, labels = np.eye(5) * 3, np.array([0, 4, 1, 3, 2])
    chosen = draw.integers(5, size=(40, 2))
    model = classics.LabelsFromSums(SVC(C=10)).fit(images[chosen].reshape(40, 10), labels[chosen].sum(1))

    assert sorted(model.labels) == [0, 1, 2, 3, 4]
    assert (model.predict(images[chosen].reshape(40, 10)) == labels[chosen].sum(1)).all()


@pytest.mark.parametrize("kind", [classics.Powerset, classics.OneForEach])
def test_several_attributes_are_learnt(kind: type) -> None:
    x = np.random.default_rng(0).normal(size=(200, 2))
    y = (x > 0).astype(np.float32)
    model = kind(SVC(C=10)).fit(x[:150], y[:150])

    assert classics.attributes(model, x[150:], y[150:])["test/f1_macro"] > 0.9


def test_ranking_of_well_apart_classes_is_perfect() -> None:
    x = np.eye(3)[[0, 0, 1, 1, 2, 2]]

    assert classics.ranking(classics.Flat(), x, np.array([0, 0, 1, 1, 2, 2])) == {"test/retrieval/map": 1.0}
