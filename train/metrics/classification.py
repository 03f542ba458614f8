"""Scores of predicted labels: accuracy, precision, recall and F1 of each label, and the confusion matrix."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class LabelScores:
    """Scores of predictions, in percent.

    Args:
        labels: names of the labels.
        confusion: counts, shape (n, n); entry [i, j] is the number of items with label i and predicted label j.
    """

    labels: Sequence[str]
    confusion: IntArray

    @classmethod
    def of(cls, labels: Sequence[str], gold: IntArray, predicted: IntArray) -> "LabelScores":
        """Count gold and predicted labels, given as indices of `labels`."""
        n = len(labels)
        return cls(labels, np.bincount(gold.astype(np.int64) * n + predicted, minlength=n * n).reshape(n, n))

    @property
    def total(self) -> int:
        """The number of items."""
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """The percentage of correct predictions. It equals micro F1, because each item has one label."""
        return 100 * float(np.trace(self.confusion)) / max(1, self.total)

    @cached_property
    def counts(self) -> IntArray:
        """The number of items with each label, shape (n,)."""
        result: IntArray = self.confusion.sum(axis=1)
        return result

    @cached_property
    def precision(self) -> NDArray[np.float64]:
        """100 * correct / predicted for each label, shape (n,); 0 for a label that is never predicted."""
        return 100 * np.diagonal(self.confusion) / np.maximum(1, self.confusion.sum(axis=0))

    @cached_property
    def recall(self) -> NDArray[np.float64]:
        """100 * correct / items for each label, shape (n,); 0 for a label that no item has."""
        return 100 * np.diagonal(self.confusion) / np.maximum(1, self.counts)

    @cached_property
    def f1(self) -> NDArray[np.float64]:
        """The harmonic mean of precision and recall, 200 * correct / (items + predicted), shape (n,)."""
        either = self.counts + self.confusion.sum(axis=0)
        return 200 * np.diagonal(self.confusion) / np.maximum(1, either)

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the labels that occur or are predicted."""
        occurs = (self.counts + self.confusion.sum(axis=0)) > 0
        return float(self.f1[occurs].mean()) if occurs.any() else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return all scores as a JSON value."""
        by_label = {
            self.labels[i]: {
                "precision": float(self.precision[i]), "recall": float(self.recall[i]), "f1": float(self.f1[i]),
                "count": int(self.counts[i]),
            }
            for i in self.labels_by_frequency()
        }  # fmt: skip
        return {
            "accuracy": self.accuracy, "micro_f1": self.accuracy, "macro_f1": self.macro_f1, "count": self.total,
            "labels": by_label,
        }  # fmt: skip

    def labels_by_frequency(self) -> list[int]:
        """Return the indices of the labels that occur or are predicted, most frequent first."""
        occurs = np.flatnonzero(self.counts + self.confusion.sum(axis=0))
        return sorted(occurs.tolist(), key=lambda i: (-self.counts[i], self.labels[i]))

    def table(self) -> Iterator[str]:
        """Yield the lines of a report: accuracy, macro F1, and a row for each label."""
        yield f"accuracy (micro F1) {self.accuracy:.2f}  macro F1 {self.macro_f1:.2f}  labels {self.total:,}"
        width = max([5, *(len(self.labels[i]) for i in self.labels_by_frequency())])
        yield f"{'label':<{width}}  precision  recall     F1    count"
        for i in self.labels_by_frequency():
            scores = f"{self.precision[i]:9.2f}  {self.recall[i]:6.2f} {self.f1[i]:6.2f} {self.counts[i]:8,}"
            yield f"{self.labels[i]:<{width}}  {scores}"
