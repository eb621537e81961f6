"""Tables fit a terminal of 80 columns; progress is drawn on a terminal, and elsewhere printed in lines."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from isthmus.data.description import CutDescription, PartyDescription
from isthmus.federation.ledger import Entry, Ledger, PartyStanding
from isthmus.methods.base import Method
from isthmus.progress.terminal import TerminalProgress, difference_lines, results_table, show_cut
from isthmus.study.loop import RunResult
from isthmus.study.results import Results


def result(method: str, seed: int, *, sent: int = 80, **metrics: float) -> RunResult:
    ledger = Ledger()
    ledger.add(Entry(1, 0, "ask", "train", "server sees each answer", "w[2]", "none", ("a",), (sent,), (0,)))
    return RunResult(method, seed, 100, 90, 12.5, dict(metrics), [], ledger)


def drawn(results: Results, width: int = 80) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width)
    console.print(results_table(results, console))
    return out.getvalue()


METRICS = ("test_accuracy", "test_macro_f1", "val_accuracy", "test_loss")


def test_table_of_everything_fits_80_columns() -> None:
    wide = [result("a-long-name", seed, sent=987_600_000, **dict.fromkeys(METRICS, seed)) for seed in (0, 1)]
    text = drawn(Results({}, [*wide, *(result("fedavg", seed, **dict.fromkeys(METRICS, 0.5)) for seed in (0, 1))]))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert text.split("a-long-name")[1].split("fedavg")[0].split() == [
        *["50.0", "±", "70.7"] * 3, "90", "125.0", "988", "MB",
    ]  # fmt: skip


def test_table_has_a_row_for_each_method_and_no_spread_for_one_seed() -> None:
    text = drawn(Results({}, [result("local", 0, test_accuracy=0.875), result("fedavg", 0, val_accuracy=0.5)]))
    rows = [line.split() for line in text.splitlines() if line.strip()]
    assert rows[0] == ["method", "accuracy", "validation", "round", "ms/round", "sent"]
    assert rows[-2:] == [
        ["local", "87.5", "-", "90", "125.0", "80", "B"],
        ["fedavg", "-", "50.0", "90", "125.0", "80", "B"],
    ]


def over_parties(method: str, seed: int, worst: float, mean: float = 0.5, **metrics: float) -> RunResult:
    entry = {"mean": mean, "weighted": 0.5, "worst": worst, "worst_party": "a", "parties": 2}
    return replace(result(method, seed, sent=987_600_000, **metrics), over_parties={"test_accuracy": entry})


def test_the_mean_over_parties_and_the_worst_one_stand_beside_the_pooled_score() -> None:
    metrics = dict.fromkeys(METRICS, 0.75)
    runs = [over_parties("fedsage-plus", seed, 0.5 + 0.02 * seed, 0.7, **metrics) for seed in (0, 1)]
    text = drawn(Results({}, [*runs, result("fedavg", 0, test_accuracy=0.6)]), 90)
    assert "…" not in text
    rows = [line.split() for line in text.splitlines() if line.strip()]
    heads = ["method", "accuracy", "party", "mean", "worst", "party", "validation", "round", "ms/round", "sent"]
    assert rows[0] == heads
    assert rows[2][:10] == ["fedsage-plus", "75.0", "±", "0.0", "70.0", "±", "0.0", "51.0", "±", "1.4"]
    assert rows[3][:4] == ["fedavg", "60.0", "-", "-"], "results without the entry"


@pytest.mark.parametrize(("mean", "width", "shown"), [(0.7, 80, True), (0.75, 80, False), (0.7, 70, False)])
def test_the_mean_over_parties_is_shown_if_it_differs_and_has_room(mean: float, width: int, shown: bool) -> None:
    text = drawn(Results({}, [over_parties("fedavg", 0, 0.5, mean, **dict.fromkeys(METRICS, 0.75))]), width)
    assert ("party mean" in text, "worst party" in text, "…" in text) == (shown, True, False)


def test_what_is_measured_on_the_union_is_the_metric_of_the_first_column() -> None:
    metrics = {"test_average_precision": 0.25, "test_accuracy": 0.75}
    run = result("fedavg", 0, **metrics, **{f"pooled_{name}": value + 0.01 for name, value in metrics.items()})
    text = drawn(Results({}, [replace(run, metric="average_precision")]))
    (row,) = [line.split() for line in text.splitlines() if "fedavg" in line]
    assert "average precision" in text
    assert row[row.index("25.0") :][:2] == ["25.0", "75.0"]
    assert "26.0" in row
    assert "76.0" not in row


def test_a_pooled_method_shows_no_bytes() -> None:
    assert (
        drawn(Results({"methods": [{"name": "centralized"}]}, [result("centralized", 0, test_accuracy=0.5)])).split()[
            -1
        ]
        == "-"
    )


def test_other_metrics_are_shown_where_there_is_no_accuracy() -> None:
    text = drawn(Results({}, [result("x", 0, test_gini_auc=0.75, test_error=1.5)]))
    assert text.split()[:3] == ["method", "gini_auc", "error"]
    assert {"75.0", "1.5"} <= set(text.split())


def test_a_run_that_is_left_out_is_told_once_with_the_reason() -> None:
    out, method = io.StringIO(), Method.named("fedavg")(rounds=5)
    with TerminalProgress(Console(file=out)) as live:
        live.run_started(method, 0)
        live.run_left_out(method, 0, "field 'w' is NaN")
        live.run_left_out(method, 1, "")
    assert out.getvalue() == "fedavg, seed 0: left out, field 'w' is NaN\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_drawn_on_a_terminal_and_elsewhere_a_line_for_each_run(terminal: bool) -> None:
    out = io.StringIO()
    with TerminalProgress(Console(file=out, force_terminal=terminal, width=20)) as live:
        method = Method.named("fedavg")(rounds=5)
        for seed in (3, 4):
            live.run_started(method, seed)
            live.round_done(method, seed, 1, {"val_accuracy": 0.5})
            live.round_done(method, seed, 2, {})
            live.run_done(result("fedavg", seed))
    lines = "fedavg, seed 3: 100 rounds in 12.5 s\nfedavg, seed 4: 100 rounds in 12.5 s\n"
    assert (out.getvalue() == lines) == (not terminal)
    assert "fedavg" in out.getvalue()
    assert ("in 12.5 s" in out.getvalue()) == (not terminal)


def test_without_a_terminal_a_method_that_takes_long_is_told_once_before_it_runs() -> None:
    out = io.StringIO()
    with TerminalProgress(Console(file=out, width=20)) as live:
        for seed in (3, 4):
            live.run_started(Method.named("fedgc")(), seed)
    assert out.getvalue() == f"fedgc takes {Method.named('fedgc').listing.costs}\n"


def test_old_bars_make_room_for_running_runs() -> None:
    method = Method.named("fedavg")(rounds=5)
    with TerminalProgress(Console(file=io.StringIO(), force_terminal=True, width=80, height=5)) as live:
        live.study_started({"methods": [{"name": "fedavg", "rounds": 5, "patience": 0}], "seeds": list(range(9))})
        for seed in range(6):
            live.run_started(method, seed)
            if seed > 0:
                live.run_done(result("fedavg", seed - 1))
        shown = [task.description for task in live._progress.tasks if task.visible]
    assert shown[-1] == "fedavg, seed 5"
    assert len(shown) <= 4


@pytest.mark.parametrize(("patience", "word"), [(0, "about"), (3, "≤")])
def test_the_time_left_in_the_run_and_the_study_is_shown(patience: int, word: str) -> None:
    method = Method.named("fedavg")(rounds=10, patience=patience)
    now, shown = iter([0.0, 5.0, 7.0, 9.0, 100.0]), list[str]()
    with TerminalProgress(Console(file=io.StringIO(), force_terminal=True, width=120)) as live:
        live.study_started({"methods": [{"name": "fedavg", "rounds": 10, "patience": patience}], "seeds": [0, 1, 2]})
        live._pace._clock = lambda: next(now)

        def look() -> None:
            shown.append(" | ".join(f"{task.description}: {task.fields['left']}" for task in live._progress.tasks))

        live.run_started(method, 0)
        for at in (1, 2, 3):
            live.round_done(method, 0, at, {})
            look()
        live.run_done(result("fedavg", 0))
        look()
        live.run_started(method, 1)
    assert shown[0] == f"all runs: {word} 145 s left | fedavg, seed 0: {word} 45 s left".replace("145 s", "2 min")
    assert shown[2] == f"all runs: {word} 74 s left | fedavg, seed 0: {word} 14 s left"
    assert shown[3] == f"all runs: {word} 25 s left | fedavg, seed 0: "


def test_progress_fits_80_columns_and_says_the_time_left() -> None:
    out, now = io.StringIO(), iter([0.0, 10.0])
    with TerminalProgress(Console(file=out, force_terminal=True, width=80)) as live:
        live.study_started({"methods": [{"name": "fedsage-plus", "rounds": 100, "patience": 5}], "seeds": [0, 1]})
        live._pace._clock = lambda: next(now)
        method = Method.named("fedsage-plus")(rounds=100, patience=5)
        live.run_started(method, 0)
        live.round_done(method, 0, 1, {"val_accuracy": 0.5})
    last = out.getvalue()
    assert "≤ 16 min left" in last
    assert "≤ 33 min left" in last
    assert "validation 50.0%" in last
    assert "…" not in last


def test_in_a_federation_the_parties_stand_below_the_bars_until_the_end() -> None:
    out = io.StringIO()
    with TerminalProgress(Console(file=out, force_terminal=True, width=80)) as live:
        live.run_started(Method.named("fedavg")(rounds=5), 0)
        live.parties_seen({"north": PartyStanding(3, asked="2026-05-04T09:30:01.000+00:00")})
        live._progress.refresh()
        assert "asked 09:30:01" in out.getvalue()
        live.parties_seen({})
        assert live._progress.below is None


# ---- what the parties of a cut hold


def cut(parties: int, classes: int = 3, **changes: Any) -> CutDescription:
    counts = dict.fromkeys(("items", "nodes", "edges", "cross", "shared", "train", "val", "test"), 1234)
    each = [
        PartyDescription(f"party-{at:03d}", **counts, unlabelled=0, labels=(100,) * classes) for at in range(parties)
    ]
    whole: dict[str, Any] = {"level": "node", "kind": "class", "nodes": 1000, "edges": 5, "cross": 5, "emd": 0.25}
    return CutDescription(parties=tuple(each), **{**whole, **changes})


def printed(whole: CutDescription, width: int = 80) -> list[str]:
    out = io.StringIO()
    show_cut(whole, Console(file=out, width=width))
    return out.getvalue().splitlines()


def party_lines(lines: list[str]) -> list[list[str]]:
    return [line.split() for line in lines if "party-" in line]


def test_classes_are_named_in_the_order_of_the_counts() -> None:
    assert "The classes in their order: no, yes." in printed(cut(2, 2, labels=("no", "yes")))
    two = cut(2, 2, kind="yes-no", labels=("a", "b"))
    tasks = replace(two, parties=tuple(replace(party, labelled=(200, 300)) for party in two.parties))
    assert "The tasks in their order: a, b." in printed(tasks)
    assert not any("order" in line for line in printed(cut(2, 3)))


@pytest.mark.parametrize("classes", [3, 8, 40])
def test_table_of_parties_fits_80_columns(classes: int) -> None:
    lines = printed(cut(2, classes))
    table = lines[: next(at for at, line in enumerate(lines) if "parties hold" in line)]
    assert max(map(len, table)) <= 80
    text = " ".join(" ".join(table).split())
    assert text.count("1,234") == 2 * 7
    assert "…" not in text
    assert [line[0] for line in party_lines(lines)] == ["party-000", "party-001"]
    assert text.count("100") == 2 * classes if classes <= 8 else "class 0 2 %" in text


def test_wide_counts_are_not_cut_off() -> None:
    whole = cut(1)
    wide = replace(whole, parties=(replace(whole.parties[0], nodes=1_234_567_890, unlabelled=77, labels=(10**9,) * 3),))
    text = " ".join(" ".join(printed(wide, 40)).split())
    assert "1,234,567,890" in text
    assert text.count("1,000,000,000") == 3
    assert "(77 without)" in text


def test_the_first_of_many_parties_are_shown() -> None:
    lines = printed(cut(60, note="A [bold]note."))
    assert len(party_lines(lines)) == 50
    assert lines[-2:] == ["The first 50 parties are shown; --json has all 60.", "A [bold]note."]
    assert lines[-3].startswith("60 parties hold 1,000 nodes")
    assert printed(cut(50))[-1].startswith("50 parties hold")


def test_labels_are_headed_by_what_they_say() -> None:
    assert "yes of labelled" in printed(replace(cut(1), kind="yes-no", parties=cut(1, 0).parties), 200)[1]


def test_name_of_a_party_is_no_markup() -> None:
    whole = cut(1)
    named = replace(whole, parties=(replace(whole.parties[0], name="[red]bank[/red]"),))
    assert "[red]bank[/red]" in "".join(printed(named, 200))


def test_differences_between_ledgers_are_said_with_what_may_explain_them() -> None:
    run = result("fedavg", 0)
    assert difference_lines(Results({}, [run])) == []
    found = difference_lines(Results({}, [replace(run, reconciled={"differences": ["one", "two"], "heads": {}})]))
    assert found[:2] == ["one", "two"]
    assert "the ledgers differ: an answer that came too late" in found[2]


def test_validation_names_its_metric_where_the_test_items_give_another_one() -> None:
    same = drawn(Results({}, [result("fedavg", 0, test_accuracy=0.9, val_accuracy=0.4)]), 120)
    other = drawn(
        Results({}, [replace(result("fedavg", 0, test_accuracy=1.0, val_roc_auc=0.4), select_by="roc_auc")]), 120
    )
    assert "validation  " in same
    assert "validation ROC AUC" in other
