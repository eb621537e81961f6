"""The comparison with other packages runs, on a small graph and without looking at the clock or at a package index."""

import argparse
import importlib
import json
import sys
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from isthmus.data.datasets.public import node_pool

FOLDER = Path(__file__).parents[2] / "benchmarks" / "peers"
SIDE = """
import json, sys
import torch
from side import serve

parties = torch.load(sys.argv[1])["parties"]


def learn(rounds):
    print("a line that is no answer")
    return len(parties) / rounds


serve(learn, lambda rounds: [float(party["x"].sum()) for party in parties[:rounds]])
"""


@pytest.fixture
def compare(monkeypatch):
    """The script's module, on a small graph instead of Cora."""
    monkeypatch.syspath_prepend(str(FOLDER))
    known = set(sys.modules)
    module = importlib.import_module("compare")
    monkeypatch.setattr(module, "setting_of", lambda cut, parties: module.Setting(cut, parties, pool(), parties < 3))
    yield module
    for name in set(sys.modules) - known:
        if str(FOLDER.parent) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def pool():
    """120 nodes in three classes; a node's feature is its class."""
    y = torch.arange(120) % 3
    at = torch.arange(120)
    data = Data(x=torch.eye(3)[y].repeat(1, 4), edge_index=torch.stack([at, (at + 3) % 120]), y=y)
    data.edge_index = torch.cat([data.edge_index, data.edge_index.flip(0)], dim=1)
    for name, part in (("train", 0), ("val", 1), ("test", 2)):
        data[f"{name}_mask"] = at % 9 // 3 == part
    return node_pool(data)


def options(**changed):
    values = {"cut": ["random"], "parties": [2, 3], "hidden": 4, "rounds": 2, "repeats": 1, "learn": 30}
    return argparse.Namespace(**values, environments=Path("nowhere"), **changed)


@pytest.mark.slow
def test_it_tells_what_each_side_took_and_learned(compare, monkeypatch, tmp_path, capsys):
    (tmp_path / "a_side.py").write_text(f"import sys\nsys.path.append({str(FOLDER)!r})\n{SIDE}")
    there = compare.Peer("There", ("numpy==2",), script=str(tmp_path / "a_side.py"))
    absent = compare.Peer("Absent", ("absent",))
    monkeypatch.setattr(compare, "PEERS", (there, absent))

    def build(peer, folder):
        if peer is absent:
            raise compare.NotInstalled("no such package")
        return Path(sys.executable)

    monkeypatch.setattr(compare, "build", build)
    monkeypatch.setattr(compare, "check_learning", lambda accuracies, where: None)
    figures = compare.figures_of(options())
    row, without = figures["rows"]
    parties = compare.Bench(pool(), 2, hidden=4, device=torch.device("cpu")).parties
    assert row["there_accuracy"] == round(2 / 30, 3)
    assert row["there_ms"] == sum(party.nodes for party in parties) / 2 * 4  # it read the features of these parties
    assert row["training"] == 2
    assert not any(name.startswith("there") for name in without)  # not every party has all splits there
    assert min(row["isthmus_ms"], row["plain_ms"]) > 0
    assert min(row["isthmus_accuracy"], row["plain_accuracy"]) > 0.9
    assert figures["missing"] == {"Absent": "no such package"}

    page = tmp_path / "speed.md"
    page.write_text(f"before\n\n{compare.MARKS[0]}\nstale\n{compare.MARKS[1]}\n\nafter\n")
    monkeypatch.setattr(compare, "PAGE", page)
    monkeypatch.setattr(compare, "RESULTS", tmp_path / "results" / "compare.json")
    compare.write(figures)
    assert json.loads(compare.RESULTS.read_text()) == figures
    text = page.read_text()
    assert "stale" not in text
    assert f"| There, ms a round | {row['there_ms']:.1f} |  |" in text
    assert "Absent is not in the table: `no such package`" in text
    assert capsys.readouterr().out == ""


def test_a_side_that_learns_nothing_stops_it(compare):
    compare.check_learning({"isthmus": 0.80, "other": 0.76}, "here")
    for bad in ({"isthmus": 0.80, "other": 0.7}, {"isthmus": 0.45, "other": 0.45}, {"a": 0.8, "b": float("nan")}):
        with pytest.raises(SystemExit, match=r"here: .* reaches a test accuracy of"):
            compare.check_learning(bad, "here")


def test_a_side_that_ends_is_named(compare, tmp_path):
    script = tmp_path / "broken.py"
    script.write_text("raise SystemExit(0)\n")
    side = compare.Side(Path(sys.executable), script, tmp_path, {}, {})
    with pytest.raises(SystemExit, match=r"broken\.py ended without an answer"):
        side.turn(1)
    side.close()


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("Collecting a\n  ImportError: no torch\nerror: subprocess-exited", "ImportError: no torch"),
        ("WARNING: x\nERROR: No matching distribution found for a", "ERROR: No matching distribution found for a"),
        ("", "pip said nothing"),
    ],
)  # fmt: skip
def test_why_pip_failed_is_one_line(compare, output, line):
    assert sys.modules["environments"].why(output) == line


def test_the_page_has_the_marks_of_both_scripts(compare):
    text = compare.PAGE.read_text()
    for begin, end in (compare.MARKS, sys.modules["rounds"].MARKS):
        assert text.count(begin) == text.count(end) == 1
        assert text.index(begin) < text.index(end)
