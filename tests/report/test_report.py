"""The report tells what the result folder holds, safely, in one file."""

from __future__ import annotations

import json
import math
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from result_folders import (
    LEVEL,
    ROUNDS,
    SEEDS,
    Build,
    Page,
    curve,
    cut,
    ledger_rows,
    of_another_task,
    run,
    said_over,
    summary,
    write_folder,
)

from isthmus.errors import IsthmusError
from isthmus.report.report import write_report
from isthmus.result_files import write_graph
from isthmus.study.config import Study
from isthmus.study.run import run_study
from party_folders import two_drafts


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Makes a result folder; `change` may alter what is written."""
    return partial(write_folder, tmp_path)


def test_headline_names_the_study_and_its_best_method(build: Build) -> None:
    page = Page(write_report([build()]))
    mean = 100 * sum(run("fedsage", seed)["metrics"]["test_accuracy"] for seed in SEEDS) / len(SEEDS)
    assert "cora across 4 parties" in page.text
    assert f"fedsage reached {mean:.1f} ± 0.4 % test accuracy at the round that validation chose;" in page.text
    assert "centralized (all data pooled)" in page.text
    assert "gcn (hidden 64)" in page.text
    assert "over 3 seeds" in page.text


def test_a_lead_within_the_spread_is_called_so(build: Build) -> None:
    def closer(parts: dict[str, Any]) -> None:
        for line in parts["results"]["summary"]:
            line["std"] = 0.05

    assert "is within one standard deviation" in Page(write_report([build(change=closer)])).text
    assert "within one standard deviation" not in Page(write_report([build("clear")])).text


@pytest.mark.parametrize(("gap", "word"), [(0.02, "is more than luck would explain"), (0.0004, "may be luck")])
def test_the_headline_says_of_a_lead_what_the_paired_test_says(build: Build, gap: float, word: str) -> None:
    wide, gains = (0.0, 0.1, 0.3), (0.9, 1.0, 1.3) if gap > 0.01 else (-9.0, 1.0, 11.0)

    def near(parts: dict[str, Any]) -> None:
        for each in parts["results"]["runs"]:
            lead = gap * gains[each["seed"]] * (each["method"] == "fedsage")
            each["metrics"]["test_accuracy"] = 0.5 + wide[each["seed"]] + lead
        parts["results"]["summary"] = summary(parts["results"]["runs"])

    text = Page(write_report([build(methods=("fedavg", "fedsage"), change=near)])).text
    found = re.search(rf"The lead of fedsage over fedavg {word} \(paired over 3 seeds, p = ([\d.]+)\)", text)
    assert found
    assert f" {found[1]} 3 " in text.partition("more than luck?")[2], "the table has the same p"
    assert "within one standard deviation" not in text


def test_a_study_that_keeps_the_last_round_is_said_to(build: Build) -> None:
    def last(parts: dict[str, Any]) -> None:
        for each in parts["results"]["runs"]:
            each["chosen_round"] = each["rounds"]
        for method in parts["results"]["study"]["methods"]:
            method["select"] = "last"

    assert "test accuracy at the last round;" in Page(write_report([build(change=last)])).text

    def chosen(parts: dict[str, Any]) -> None:
        last(parts)
        for method in parts["results"]["study"]["methods"]:
            method["select"] = "validation"

    text = Page(write_report([build("chosen", change=chosen)])).text
    assert "test accuracy at the round that validation chose;" in text
    assert "Every run reports its last round" not in text

    def unlabelled(parts: dict[str, Any]) -> None:
        chosen(parts)
        parts["results"]["study"]["task"] = {"name": "graph-clustering"}

    assert "test accuracy at the last round;" in Page(write_report([build("un", change=unlabelled)])).text


def test_means_that_are_equal_are_no_lead(build: Build) -> None:
    def equal(parts: dict[str, Any]) -> None:
        for line in parts["results"]["summary"]:
            line |= {"mean": 0.5, "std": 0.0}

    text = Page(write_report([build(change=equal)])).text
    assert "fedavg and fedsage are equal." in text
    assert "The lead of" not in text


def test_it_is_said_when_training_alone_is_better(build: Build) -> None:
    def better(parts: dict[str, Any]) -> None:
        for line in parts["results"]["summary"]:
            line["mean"] = 0.9 if line["method"] == "local" else line["mean"]

    assert "Parties that train alone are better: local." in Page(write_report([build(change=better)])).text
    assert "Parties that train alone" not in Page(write_report([build("other")])).text


def test_one_seed_shows_no_spread(build: Build) -> None:
    page = Page(write_report([build(seeds=(0,))]))
    assert "One seed" in page.text
    assert "±" not in page.row("fedavg")[1]


def test_the_smaller_loss_leads(build: Build) -> None:
    def losses(parts: dict[str, Any]) -> None:
        parts["results"]["summary"] = [
            {"method": "fedavg", "metric": "test_loss", "mean": 0.9, "std": 0.01, "seeds": 3},
            {"method": "fedsage", "metric": "test_loss", "mean": 0.4, "std": 0.01, "seeds": 3},
        ]

    assert "fedsage reached 0.400 ± 0.010 test loss" in Page(write_report([build(change=losses)])).text


def test_the_table_holds_the_summary(build: Build) -> None:
    folder = build()
    page = Page(write_report([folder]))
    for line in json.loads((folder / "results.json").read_text())["summary"]:
        scale, digits = (100, 1) if line["metric"].endswith("accuracy") else (1, 3)
        figure = f"{scale * line['mean']:.{digits}f} ± {scale * line['std']:.{digits}f}"
        column = ("test_accuracy", "test_loss", "val_accuracy").index(line["metric"])
        assert page.row(line["method"])[1 + column] == figure
    assert page.row("fedavg")[4:] == ["0 to 2", "10 of 12", "1.2 s"]
    assert "chosen on validation data" in page.text


def test_every_method_has_its_curves_and_bars(build: Build) -> None:
    page = Page(write_report([build()]))
    for title in ("Validation accuracy", "Test accuracy"):
        chart = next(c for c in page.charts if c.findtext("title") == title)
        for method in LEVEL:
            band, line, end, name = (group for group in chart.iter("g") if said_over(group) == method)
            assert [len(path.attrib["d"].split("L")) for path in line.iter("path")] == [ROUNDS]
            (edge,) = band.iter("path")
            assert len(edge.attrib["d"].split("L")) == 2 * (ROUNDS + 1), "there and back"
            assert len(list(end.iter("use"))) == 1
            assert [text.text for text in name.iter("text")] == [method]
    assert [name.partition(":")[0] for name in page.names("Per round")] == list(LEVEL)
    assert [name.partition(":")[0] for name in page.names("In all")] == list(LEVEL)


def test_what_charts_show_stands_in_tables_too(build: Build) -> None:
    page = Page(write_report([build()]))
    heads = ["Method", *(f"seed {seed}" for seed in SEEDS)]
    at = next(at for at, row in enumerate(page.rows) if row == heads)
    for row, method in zip(page.rows[at + 1 :], LEVEL, strict=False):
        assert row[0].split()[0] == method
        assert row[1:] == [f"{100 * run(method, seed)['metrics']['test_accuracy']:.1f}" for seed in SEEDS]
    at = next(at for at, row in enumerate(page.rows) if row == ["Round", *LEVEL, *LEVEL])
    for row, round_ in zip(page.rows[at + 1 :], range(1, ROUNDS + 1), strict=False):
        assert row[0] == str(round_)
        means = [sum(curve(method, seed, round_) for seed in SEEDS) / len(SEEDS) for method in LEVEL]
        assert row[1 : 1 + len(LEVEL)] == [f"{100 * mean:.1f}" for mean in means]


def test_a_table_of_many_rounds_has_some_of_them(build: Build) -> None:
    def longer(parts: dict[str, Any]) -> None:
        first = [row for row in parts["history"] if row["round"] == 1]
        parts["history"] = [{**row, "round": at} for at in range(1, 1001) for row in first]

    page = Page(write_report([build(change=longer)]))
    at = next(at for at, row in enumerate(page.rows) if row[:1] == ["Round"])
    told = [int(row[0]) for row in page.rows[at + 1 :] if row[0].isdigit()]
    rounds = told[: told.index(1000) + 1]
    assert rounds[0] == 1
    assert len(rounds) <= 25
    assert f"in {len(rounds)} of 1000 rounds" in page.text


def test_a_method_without_history_is_named(build: Build) -> None:
    def drop(parts: dict[str, Any]) -> None:
        parts["history"] = [row for row in parts["history"] if row["method"] != "local"]

    assert "No value per round was recorded for local." in Page(write_report([build(change=drop)])).text


def test_values_that_are_no_number_do_not_break_a_chart(build: Build) -> None:
    def diverge(parts: dict[str, Any]) -> None:
        for row in parts["history"]:
            if row["method"] == "fedavg" and row["round"] > 5:
                row["value"] = math.nan
        parts["results"]["summary"][0]["mean"] = math.nan

    page = Page(write_report([build(change=diverge)]))
    assert "nan" not in page.source.partition("</style>")[2]
    assert page.row("fedavg")[1].startswith("–")


def test_traffic_equals_the_ledger(build: Build) -> None:
    page = Page(write_report([build()]))
    rows = ledger_rows("fedavg", 0)
    setup = sum(row["sent"] for row in rows if row["round"] == 0)
    total = sum(row["sent"] for row in rows)
    rounds = round((total - setup) / ROUNDS)
    expected = [setup, 2 * setup, rounds, round(2 * (total - setup) / ROUNDS), total, 2 * total]
    assert next(each for each in page.bytes if len(each) == 6) == expected
    assert "centralized All data were pooled" in page.text
    assert "local Nothing left any party" in page.text


def test_a_method_that_only_the_ledger_knows_is_shown(build: Build) -> None:
    def forget(parts: dict[str, Any]) -> None:
        parts["ledger"] += ledger_rows("unfinished", 0)

    page = Page(write_report([build(change=forget)]))
    assert "unfinished" in page.names("In all")[-1]
    assert page.row("unfinished")[1] == "–"


def test_everything_needed_to_run_it_again_is_there(build: Build) -> None:
    page = Page(write_report([build()]))
    assert page.row("torch") == ["torch", "2.13.0"]
    assert page.row("seeds") == ["seeds", "0, 1, 2"]
    assert 'name = "cora"' in page.text.replace("&quot;", '"')


def hostile(value: Any) -> Any:
    """The same data with a script in every text, keys included."""
    evil = "<script>alert('&\"')</script>"
    if isinstance(value, str):
        return value if value.startswith(("test_", "val_")) or value in ("node", "class") else value + evil
    if isinstance(value, dict):
        kept = {
            "format",
            "method",
            "metric",
            "name",
            "runs",
            "summary",
            "metrics",
            "parties",
            "study",
            "versions",
            "value",
        }
        kept |= {"isthmus", "created", "mean", "std", "seeds", "seed", "rounds", "chosen_round", "seconds", "data"}
        kept |= {"format", "cuts", *cut((0,)), *cut((0,))["parties"][0]}
        kept |= {"partition", "model", "methods", "encoder", *ledger_rows("", 0)[0]}
        return {key if key in kept else key + evil: hostile(each) for key, each in value.items()}
    return [hostile(each) for each in value] if isinstance(value, list) else value


def test_graphs_that_methods_made_are_told(build: Build) -> None:
    folder = build()
    graph = {"x": torch.ones(5, 3), "y": torch.tensor([0, 0, 0, 2, 2]), "edge_index": torch.tensor([[0, 1], [1, 2]])}
    write_graph(folder / "graphs" / "fedavg-1", {**graph, "edge_weight": torch.ones(2)})
    page = Page(write_report([folder]))
    assert ["fedavg", "1", "5", "2", "3", "3, 0, 2"] in page.rows
    assert "Graphs made" not in Page(write_report([build("none")])).text
    (folder / "graphs" / "fedavg-1" / "nodes.safetensors").write_bytes(b"")
    with pytest.raises(IsthmusError, match="no readable graph in"):
        write_report([folder])


def test_text_from_the_data_is_never_markup(build: Build) -> None:
    def poison(parts: dict[str, Any]) -> None:
        for key, value in parts.items():
            parts[key] = hostile(value)
        parts["ledger"][0]["status"] = "<script>"
        parts["results"]["summary"].append({"method": "m", "metric": "test_<script>", "mean": 0.1})

    page = Page(write_report([build("<script>", change=poison)]))
    assert "<script" not in page.source
    assert "script" not in page.tags
    assert page.open == []
    assert page.source.count("&lt;script&gt;") > 100


def drawn(parts: dict[str, Any]) -> None:
    """FedAvg's items after two rounds, for two seeds, and FedSage's after one."""
    spots = [("fedavg", seed, at) for seed in (1, 0) for at in (10, 1)] + [("fedsage", 0, 1)]
    parts["places"] = [
        {"method": method, "seed": seed, "round": at, "x": float(place), "y": float(-place * place), "class": kind}
        for method, seed, at in spots
        for place, kind in enumerate([0, 1, -1, 1])
    ]


def test_embeddings_are_drawn_for_the_first_seed(build: Build) -> None:
    page = Page(write_report([build(change=drawn)]))
    titles = [chart[0].text for chart in page.charts]
    assert [title for title in titles if title and "seed" in title and "round" in title] == [
        "fedavg, seed 0, round 1",
        "fedavg, seed 0, round 10",
        "fedsage, seed 0, round 1",
    ]
    chart = page.chart("fedavg, seed 0, round 1")
    clouds = {said_over(group): len(list(group.iter("use"))) for group in chart.iter("g") if said_over(group)}
    assert clouds == {"class 0: 1": 1, "class 1: 2": 2, "no label: 1": 1}
    assert set(clouds) == {text.text for text in chart.iter("text")} - {"fedavg, seed 0, round 1"}


def test_what_pictures_show_stands_in_a_table(build: Build) -> None:
    page = Page(write_report([build(change=drawn)]))
    values = [f"{100 * (curve('fedavg', 0, round_) - 0.01):.1f}" for round_ in (1, 10)]
    counts = "no label: 1, class 0: 1, class 1: 2"
    rows = [row for row in page.rows if row[-1:] == [counts]]
    assert [row[:2] for row in rows[:2]] == [["1", values[0]], ["10", values[1]]]
    assert len(rows) == 3


def test_nothing_is_said_of_embeddings_that_were_not_drawn(build: Build) -> None:
    assert "t-SNE" not in Page(write_report([build()])).text


def test_a_broken_file_of_places_is_named(build: Build) -> None:
    folder = build(change=drawn)
    (folder / "places.parquet").write_bytes(b"PAR1")
    with pytest.raises(IsthmusError, match=r"cannot read '.*places.parquet'"):
        write_report([folder])


def test_party_folders_are_called_by_their_folder_and_their_labels(tmp_path: Path) -> None:
    for draft in two_drafts():
        draft.write(tmp_path / "fraud" / draft.settings["name"])
    plan = {"data": {"name": "folder", "path": str(tmp_path / "fraud")}, "methods": [{"name": "local", "rounds": 1}]}
    run_study(Study.of(plan), tmp_path / "out")
    page = Page(write_report([tmp_path / "out"]))
    assert "<h1>fraud across 2 parties</h1>" in page.source
    assert ["Party", "low", "high"] in [[row[0], *row[-2:]] for row in page.rows if row]
    assert {"a: low", "b: high"} <= {text.text for text in page.chart("Labels of each party").iter("text")}
    assert "class 0" not in page.text


def test_the_page_stands_alone(build: Build) -> None:
    page = Page(write_report([build()]))
    assert not re.search(r"https?://", page.source.replace("http://www.w3.org/2000/svg", ""))
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not re.search(r"@import|url\(", page.source)


def test_the_page_can_be_read_aloud(build: Build) -> None:
    page = Page(write_report([build()]))
    assert page.open == []
    assert page.heads
    assert all(head.get("scope") for head in page.heads)
    assert page.charts
    for chart in page.charts:
        assert chart.get("role") == "img"
        assert chart.findtext("title")
        assert chart.findtext("desc")


def test_the_same_results_give_the_same_page(build: Build, tmp_path: Path) -> None:
    folder = build()
    first = write_report([folder]).read_bytes()
    assert write_report([folder], tmp_path / "again" / "page.html").read_bytes() == first


def test_where_the_page_goes(build: Build, tmp_path: Path) -> None:
    folder = build()
    assert write_report([folder]) == folder / "report.html"
    assert write_report([folder], tmp_path / "other.html") == tmp_path / "other.html"


def test_folders_with_different_methods_stand_in_one_table(build: Build) -> None:
    first, second = build("a", ("fedavg",)), build("b", ("fedsage",))
    page = Page(write_report([first, second]))
    assert page.names("Validation accuracy") == ["fedavg", "fedsage"]
    assert "fedsage reached" in page.text
    assert "fedavg reached" not in page.text


def test_a_method_in_two_folders_is_told_apart(build: Build) -> None:
    def elsewhere(parts: dict[str, Any]) -> None:
        parts["results"]["study"]["data"]["name"] = "citeseer"

    first, second = build("a", ("fedavg", "local")), build("b", ("fedavg",), change=elsewhere)
    page = Page(write_report([first, second, first]))
    assert page.names("Validation accuracy") == ["fedavg (a)", "local"]
    assert page.names("Validation accuracy", 1) == ["fedavg (b)"], "other data have a chart of their own"
    assert "cora and citeseer" in page.text
    assert "a fedavg reached" in page.text
    assert "b fedavg reached" in page.text
    assert "<td class=n><b>" not in page.source
    assert "a/study.toml" in page.text
    assert "b/study.toml" in page.text


def test_settings_that_other_metrics_judge_are_told_each_by_its_own(build: Build) -> None:
    def motifs(parts: dict[str, Any]) -> None:
        parts["results"]["study"]["data"]["name"] = "motifs"

    first, motif = build("first"), build("motif", change=motifs)
    page = Page(write_report([first, build("mol", change=of_another_task), motif]))
    assert "No metric was recorded" not in page.text
    mean = 100 * sum(run("fedsage", seed)["metrics"]["test_accuracy"] for seed in SEEDS) / len(SEEDS)
    for name, metric in (("first", "accuracy"), ("mol", "ROC AUC"), ("motif", "accuracy")):
        assert f"{name} fedsage reached {mean:.1f} ± 0.4 % test {metric} at the round" in page.text
        assert f"Gain of fedsage ({name})" in page.text
        assert [row[1:3] for row in page.rows if row[0].startswith(f"fedavg ({name})")].count(["4", "0"]) == 1, "gains"
    titles = [title for chart in page.charts if "a dot per seed" in (title := chart.findtext("title") or "")]
    assert [title.partition(":")[0] for title in titles] == ["Test accuracy", "Test ROC AUC", "Test accuracy"]
    seeds = [row for row in page.rows if row[0].startswith("fedavg (") and len(row) == 1 + len(SEEDS)]
    assert len(seeds) == 3
    assert all("–" not in row for row in seeds)


def test_many_metrics_stand_in_several_tables(build: Build) -> None:
    more = (*(f"test_party_{at}" for at in range(4)), *(f"val_party_{at}" for at in range(4)), "pooled_test_accuracy")
    page = Page(write_report([build(change=partial(of_another_task, more=more))]))
    heads = [row for row in page.rows if row[0] == "Method"]
    assert heads[0][1:] == ["ROC AUC (%)", *(f"party {at}" for at in range(4)), *heads[0][-3:]]
    assert heads[0][-3:] == ["Seeds", "Round reported", "Time per run"]
    assert heads[1][1:] == ["ROC AUC (%)", *(f"party {at}" for at in range(4))]
    assert heads[2][1:] == ["pooled test accuracy (%)"]


def test_one_method_of_one_setting_in_two_folders(build: Build) -> None:
    text = Page(write_report([build("a", ("fedavg",), (0,)), build("b", ("fedavg",), (1,))])).text
    assert "fedavg (b) reached" in text
    assert "; fedavg (a) " in text


def test_a_folder_that_cannot_be_read_makes_no_page(build: Build) -> None:
    folder = build()
    (folder / "results.json").write_text("{")
    with pytest.raises(IsthmusError, match=r"results\.json"):
        write_report([folder])
    assert not (folder / "report.html").exists()


def test_no_folder_and_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(IsthmusError, match="at least one"):
        write_report([])
    with pytest.raises(IsthmusError, match=r"study\.toml"):
        write_report([tmp_path / "nowhere"])


def test_a_failed_write_leaves_the_old_page(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build()
    before = write_report([folder]).read_bytes()
    held = sorted(folder.iterdir())

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(IsthmusError, match="No space left on device") as caught:
        write_report([folder])
    assert "\n" not in str(caught.value)
    assert (folder / "report.html").read_bytes() == before
    assert sorted(folder.iterdir()) == held


def test_a_place_that_cannot_be_written(build: Build, tmp_path: Path) -> None:
    folder = build()
    taken = tmp_path / "taken"
    taken.mkdir()
    with pytest.raises(IsthmusError, match="cannot write"):
        write_report([folder], taken)
    with pytest.raises(IsthmusError, match="cannot write"):
        write_report([folder], folder / "study.toml" / "report.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results", "taken"]
