"""Ranking by similarity: does a sample's own class come first among all the others?

Shapes: N samples, D dimensions of a model's output vector.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

BLOCK_ELEMENTS = 4_000_000
"""Similarities held at a time: queries are ranked in blocks of this many pairs."""


class EmbeddingRetrieval(Metric):
    """Every sample queries all others by cosine similarity; those with the same label are relevant.

    Each query ranks all other samples, whatever the sign of their similarity. Gives, averaged over queries:

    - `map`, mean average precision: the precision among the samples down to each relevant one, averaged over all
      relevant ones (Manning et al. 2008, chapter 8, https://nlp.stanford.edu/IR-book/). `torchmetrics.RetrievalMAP`
      leaves out relevant ones whose score is 0 or below, also when it counts them; the two agree where all similarities
      are above 0.
    - `mrr`, mean reciprocal rank of the first relevant one;
    - `ndcg`, discounted cumulative gain of the ranking as a share of the best possible one;
    - `precision_at_<k>` and `recall_at_<k>`: share of relevant ones among the first k, and share of the relevant ones
      that are there;
    - `hit_rate_at_<k>`: share of queries with a relevant one among the first k, also known as Recall@k in metric
      learning.

    All but `map` are as in torchmetrics.retrieval. Samples of the same similarity stay in the order of the split.

    Args:
        k: Length of the list that precision, recall and hit rate look at.
        empty_target_action: What a query without any relevant sample counts: `neg` nothing found, `skip` is left out.
    """

    full_state_update = False
    higher_is_better = True
    embeddings: Any
    labels: Any

    def __init__(self, k: int = 10, empty_target_action: Literal["neg", "skip"] = "neg", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        if empty_target_action not in ("neg", "skip"):
            raise ValueError(f"empty_target_action must be neg or skip, got {empty_target_action!r}")
        self.k, self.empty_target_action = k, empty_target_action
        self.add_state("embeddings", [], dist_reduce_fx="cat")
        self.add_state("labels", [], dist_reduce_fx="cat")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Keep a batch.

        Args:
            preds: Output vectors `(N, D)`.
            target: Labels `(N,)`.

        Raises:
            ValueError: The shapes do not fit.
        """
        if preds.ndim != 2 or target.shape != preds.shape[:1]:
            raise ValueError(f"vectors (N, D) and labels (N,) expected, got {preds.shape} and {target.shape}")
        self.embeddings.append(F.normalize(preds.float(), dim=1))
        self.labels.append(target)

    def compute(self) -> dict[str, Tensor]:
        """Average the values over queries."""
        vectors, labels = dim_zero_cat(self.embeddings), dim_zero_cat(self.labels)
        rows = max(1, BLOCK_ELEMENTS // max(1, len(labels)))
        parts = [self._block(vectors, labels, torch.arange(at, min(at + rows, len(labels)), device=labels.device))
                 for at in range(0, len(labels), rows)]  # fmt: skip
        return {name: torch.cat([part[name] for part in parts]).mean() for name in parts[0]}

    def _block(self, vectors: Tensor, labels: Tensor, queries: Tensor) -> dict[str, Tensor]:
        """Rank all samples but the query itself by similarity, and compute the values of each query.

        A query without anything relevant gets 0.
        """
        similarity = vectors[queries] @ vectors.T
        similarity[torch.arange(len(queries), device=queries.device), queries] = -torch.inf
        ranking = similarity.argsort(dim=1, descending=True, stable=True)[:, :-1]
        relevant = (labels[ranking] == labels[queries, None]).double()
        total, top = relevant.sum(1), relevant[:, : self.k].sum(1)
        some = total.clamp_min(1)
        ranks = torch.arange(1, relevant.shape[1] + 1, device=relevant.device, dtype=relevant.dtype)
        gains = 1 / (ranks + 1).log2()
        ideal = torch.cat([gains.new_zeros(1), gains.cumsum(0)])[total.long()]
        found = {
            "map": (relevant.cumsum(1) / ranks * relevant).sum(1) / some,
            "mrr": (relevant / ranks).amax(1) if relevant.shape[1] else total,
            "ndcg": (relevant * gains).sum(1) / torch.where(total > 0, ideal, torch.ones_like(ideal)),
            f"precision_at_{self.k}": top / self.k,
            f"recall_at_{self.k}": top / some,
            f"hit_rate_at_{self.k}": (top > 0).to(top.dtype),
        }
        if self.empty_target_action == "skip":
            found = {name: values[relevant.any(1)] for name, values in found.items()}
        return found
