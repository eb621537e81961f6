"""Curves and embeddings of a table, on a page."""

from __future__ import annotations

import re
from pathlib import Path

from a_paper import TABLE1
from tests.papers.a_paper import NEVER, table

from isthmus.papers.pictures import pictures_page
from isthmus.papers.results import TableResults
from isthmus.papers.running import Runner


def test_curves_are_kept_where_they_are_asked_for(at_once: None, tmp_path: Path) -> None:
    text = TABLE1.replace("seeds = 2", 'seeds = 2\nmeasure = { name = "training", curves = ["test_accuracy"] }', 1)
    plan, results = table(tmp_path, table1=text), TableResults()
    Runner(plan, results, NEVER, max_seeds=1, only={"size": ["120"], "method": ["fedavg"]}).run(1)
    ((run,),) = [results.runs(cell) for cell in plan.cells() if results.runs(cell)]
    assert [at for at, _ in run["curves"]["test_accuracy"]] == [1, 2, 3]
    page = pictures_page(plan, results)
    assert page.count("<svg") == 1
    assert "size: 120" in page
    assert "test_accuracy" not in page
    assert "fedavg ends at" in page
    told = "".join(f"<td class=n>{value:.3g}</td>" for _, value in run["curves"]["test_accuracy"])
    assert f"<tr><th scope=row>fedavg</th>{told}</tr>" in page
    assert pictures_page(table(tmp_path / "without"), results) == ""


def test_pictures_are_kept_where_items_are_embedded(at_once: None, tmp_path: Path) -> None:
    text = TABLE1.replace("seeds = 2", 'seeds = 2\nmeasure = { name = "embeddings" }', 1)
    text = text.replace('"test_accuracy"', '"silhouette"').replace("[study]", '[study]\npartition.name = "overlap"', 1)
    plan, results = table(tmp_path, table1=text), TableResults()
    Runner(plan, results, NEVER, max_seeds=1, only={"size": ["120"], "method": ["fedavg"]}).run(1)
    ((run,),) = [results.runs(cell) for cell in plan.cells() if results.runs(cell)]
    (items,) = run["pictures"].values()
    page = pictures_page(plan, results)
    assert page.count("<svg") == 1
    assert sum(map(int, dict(re.findall(r">class (\d): (\d+)<", page)).values())) == len(items)
