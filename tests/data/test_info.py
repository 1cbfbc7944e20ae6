"""Facts about a data set."""

from __future__ import annotations

from lightkit.data import TensorData
from tests.data.test_tensors import X, Y, put


def test_fingerprint_follows_the_content() -> None:
    assert TensorData(X, Y).info.fingerprint == TensorData(X.clone(), Y.clone()).info.fingerprint
    assert TensorData(X, Y).info.fingerprint != TensorData(put(X, 0, 1.0), Y).info.fingerprint
    assert TensorData(X, Y).info.fingerprint != TensorData(X, Y.flip(0)).info.fingerprint
