"""All metrics: what people call them, whether less is better, and how they are shown."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True)
class Metric:
    """One metric.

    Arguments:
        name: as in `Task.metrics`; columns of results have a split before it, `test_accuracy`.
        title: what people call it.
        smaller_is_better: whether less is better.
        percent: it is a share, shown in percent with one digit after the point; others have three significant digits.
    """

    name: str
    title: str
    smaller_is_better: bool = False
    percent: bool = False

    def shown(self, value: float, unit: str = "") -> str:
        """A value for people; `unit` stands after a percentage.

        >>> metric_of("test_accuracy").shown(0.8152), metric_of("loss").shown(0.123456)
        ('81.5', '0.123')
        """
        return f"{100 * value:.1f}{unit}" if self.percent else f"{value:.3g}"

    def no_better(self, pairs: Iterable[tuple[float | None, float | None]]) -> bool:
        """Whether the first values of some pairs are in the mean no better than the second; pairs need both to count.

        >>> metric_of("accuracy").no_better([(0.7, 0.8), (0.9, 0.8)]), metric_of("loss").no_better([(0.7, 0.8)])
        (True, False)
        """
        leads = [value - other for value, other in pairs if value is not None and other is not None]
        mean = fmean(leads) if leads else math.nan
        return (-mean if self.smaller_is_better else mean) <= 1e-12


METRICS = {
    metric.name: metric
    for metric in (
        Metric("roc_auc", "ROC AUC", percent=True),
        Metric("auc", "AUC", percent=True),
        Metric("rmse", "RMSE", smaller_is_better=True),
        Metric("accuracy", "accuracy", percent=True),
        Metric("macro_f1", "macro F1", percent=True),
        Metric("balanced_accuracy", "balanced accuracy", percent=True),
        Metric("average_precision", "average precision", percent=True),
        Metric("party_auc", "party AUC", percent=True),
        Metric("mae", "MAE", smaller_is_better=True),
        Metric("nmi", "NMI"),
        Metric("ari", "ARI"),
        Metric("probe_accuracy", "probe accuracy", percent=True),
        Metric("loss", "loss", smaller_is_better=True),
        Metric("recall", "recall", percent=True),
        Metric("precision", "precision", percent=True),
    )
}
"""Every metric of the tasks here by name, in the order of tables; add those of a task of your own."""


def metric_of(column: str) -> Metric:
    """The metric of a column of results, whatever stands before its name; a metric that is not known is shown as it is.

    >>> metric_of("pooled_test_macro_f1").title, metric_of("test_party_auc").name, metric_of("my_score").title
    ('macro F1', 'party_auc', 'my score')
    """
    known = [name for name in METRICS if column == name or column.endswith(f"_{name}")]
    return METRICS[max(known, key=len)] if known else Metric(column, column.replace("_", " "))
