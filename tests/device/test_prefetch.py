from __future__ import annotations

from contextlib import closing, contextmanager

import pytest
import torch

from lightkit.device.engine import PrefetchToDevice


class Stream:
    """Writes down what it waits for."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name, self.events = name, events

    def wait_stream(self, other: Stream) -> None:
        self.events.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def events(monkeypatch) -> list[str]:
    """A machine with streams that compute nothing."""
    found: list[str] = []
    main = Stream("main", found)

    @contextmanager
    def within(stream):
        found.append(f"begin {stream.name}")
        yield
        found.append(f"end {stream.name}")

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("side", found))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "stream", within)
    return found


def batches(events, count=3):
    try:
        for number in range(count):
            events.append(f"read {number}")
            yield number
    finally:
        events.append("closed")


def prefetch(events):
    def move(batch):
        events.append(f"copy {batch}")
        return f"batch {batch}"

    return PrefetchToDevice(move, torch.device("cuda", 0))


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_the_same_batches_come_in_the_same_order(events, count):
    assert list(prefetch(events)(batches(events, count))) == [f"batch {number}" for number in range(count)]
    assert events.count("closed") == 1


def test_the_next_batch_is_copied_while_one_is_computed(events):
    ahead = prefetch(events)(batches(events))
    assert next(ahead) == "batch 0"
    copy = ["side waits for main", "begin side", "copy {}", "end side"]
    expected = [
        "read 0", *(line.format(0) for line in copy), "main waits for side",
        "read 1", *(line.format(1) for line in copy),
    ]  # fmt: skip
    assert events == expected


def test_what_was_copied_and_not_asked_for_is_dropped(events):
    with closing(prefetch(events)(batches(events))) as ahead:
        next(ahead)
    assert events[-1] == "closed"
    assert "read 2" not in events


def test_an_error_of_the_data_comes_through(events):
    def broken():
        yield 0
        raise OSError("the disk is gone")

    ahead = prefetch(events)(broken())
    with pytest.raises(OSError, match="the disk is gone"):
        list(ahead)
