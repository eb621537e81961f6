"""The table fits a terminal of 80 columns; progress is drawn on a terminal only."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from isthmus.federation.ledger import Call, Ledger
from isthmus.methods.base import Method
from isthmus.study.engine import RunResult
from isthmus.study.results import Results
from isthmus.study.show import Live, size, table


def result(method: str, seed: int, *, sent: int = 80, **metrics: float) -> RunResult:
    ledger = Ledger()
    ledger.add(Call(1, 0, "ask", "train", "server sees each answer", "w[2]", "none", ("a",), (sent,), (0,)))
    return RunResult(method, seed, 100, 90, 12.5, dict(metrics), [], ledger)


def drawn(results: Results, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(table(results))
    return out.getvalue()


METRICS = ("test_accuracy", "test_macro_f1", "val_accuracy", "test_loss")


def test_table_of_everything_fits_80_columns() -> None:
    wide = [result("a-long-name", seed, sent=987_600_000, **dict.fromkeys(METRICS, seed)) for seed in (0, 1)]
    text = drawn(Results({}, [*wide, *(result("fedavg", seed, **dict.fromkeys(METRICS, 0.5)) for seed in (0, 1))]))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert text.split("a-long-name")[1].split("fedavg")[0].split() == [
        *["50.0", "±", "70.7"] * 3, "90", "125.0", "987.6", "MB",
    ]  # fmt: skip


def test_table_has_a_row_for_each_method_and_no_spread_for_one_seed() -> None:
    text = drawn(Results({}, [result("local", 0, test_accuracy=0.875), result("fedavg", 0, val_accuracy=0.5)]))
    rows = [line.split() for line in text.splitlines() if line.strip()]
    assert rows[0] == ["method", "accuracy", "validation", "round", "ms/round", "sent"]
    assert rows[-2:] == [
        ["local", "87.5", "-", "90", "125.0", "80", "B"],
        ["fedavg", "-", "50.0", "90", "125.0", "80", "B"],
    ]


def test_what_a_pooled_method_sends_is_not_told() -> None:
    assert drawn(Results({}, [result("centralized", 0, test_accuracy=0.5)])).split()[-1] == "-"


def test_other_metrics_are_shown_where_there_is_no_accuracy() -> None:
    text = drawn(Results({}, [result("x", 0, test_auc=0.75, test_error=1.5)]))
    assert text.split()[:3] == ["method", "auc", "error"]
    assert {"75.0", "1.5"} <= set(text.split())


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"), (999, "999 B"), (999.7, "1.0 kB"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_951, "1.0 MB"),
        (74_103_200, "74.1 MB"), (999_960_000, "1.0 GB"), (12_345_678_901_234, "12345.7 GB"),
    ],
)  # fmt: skip
def test_size_is_for_people(count: float, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_drawn_on_a_terminal_only(terminal: bool) -> None:
    out = io.StringIO()
    with Live(Console(file=out, force_terminal=terminal, width=120)) as live:
        method = Method.named("fedavg")(rounds=5)
        live.run_started(method, 3)
        live.round_done(method, 3, 1, {"val_accuracy": 0.5})
        live.round_done(method, 3, 2, {})
        live.run_done(result("fedavg", 3))
    shown = out.getvalue()
    assert bool(shown) == terminal
    assert ("fedavg, seed 3" in shown) == terminal
