"""All metrics: what people call them, whether less is better, and how they are shown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from isthmus.errors import did_you_mean


@dataclass(frozen=True)
class Metric:
    """One metric.

    Arguments:
        name: as in `Task.metrics`; columns of results have a split before it, `test_accuracy`.
        title: what people call it.
        smaller_is_better: whether less is better.
        percent: it is a share, shown in percent with one digit after the point; others have three significant digits.
        aliases: what others call it, in small letters without other signs.
        one_answer: what a model must beat: the answer that is best by this metric if all items get the same.
    """

    name: str
    title: str
    smaller_is_better: bool = False
    percent: bool = False
    aliases: tuple[str, ...] = ()
    one_answer: str = "the majority class"

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
        Metric("roc_auc", "ROC AUC", percent=True, aliases=("auc", "auroc", "rocauc")),
        Metric("auc", "AUC", percent=True),
        Metric("rmse", "RMSE", smaller_is_better=True, aliases=("mse",), one_answer="the mean label"),
        Metric("accuracy", "accuracy", percent=True, aliases=("acc",)),
        Metric("macro_f1", "macro F1", percent=True, aliases=("f1", "f1macro", "f1score")),
        Metric("balanced_accuracy", "balanced accuracy", percent=True, aliases=("bacc", "bac")),
        Metric("average_precision", "average precision", percent=True, aliases=("ap", "prauc", "aucpr", "auprc")),
        Metric(
            "recall_at_fpr", "recall at a fixed false-positive rate", percent=True, aliases=("tpratfpr", "recallatfpr")
        ),
        Metric("precision_at_k", "precision of the highest scores", percent=True, aliases=("patk", "precisionatk")),
        Metric("average_precision_error", "error of average precision, at most", smaller_is_better=True, percent=True),
        Metric("party_auc", "party AUC", percent=True),
        Metric("mae", "MAE", smaller_is_better=True, aliases=("l1",)),
        Metric("nmi", "NMI"),
        Metric("ari", "ARI"),
        Metric("probe_accuracy", "probe accuracy", percent=True),
        Metric("loss", "loss", smaller_is_better=True, one_answer="one answer for all"),
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


def suggest_metric(name: str, known: Sequence[str]) -> str:
    """A hint for a metric that is not known: the one that others call so, or the most similar one.

    >>> suggest_metric("PR-AUC", ["accuracy", "average_precision", "roc_auc"])
    "did you mean 'average_precision'?"
    """
    plain = "".join(filter(str.isalnum, name.lower()))
    meant = [each for each in known if each in METRICS and plain in METRICS[each].aliases]
    return f"did you mean '{meant[0]}'?" if meant else did_you_mean(name, known)
