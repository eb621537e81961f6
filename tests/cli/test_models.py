"""Predict, embed and export write a file or give one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pyarrow import csv, parquet
from tests.party_folders import graph_draft, two_drafts

from command_line import Isthmus
from isthmus import load_model, load_results, own_code


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for draft in two_drafts():
        draft.write(tmp_path / "parties" / draft.settings["name"])
    graph_draft("new", partner=None, ids=lambda at: f"id-{at}").write(tmp_path / "new")
    return tmp_path


def test_a_trained_model_is_used_on_a_new_party(isthmus: Isthmus, folders: Path) -> None:
    run, new = str(folders / "run"), str(folders / "new")

    def works(*words: str) -> str:
        done = isthmus(*words)
        assert done.code == 0, done.err
        return done.out

    works("run", "--data", str(folders / "parties"), "--method", "fedavg,local", "--rounds", "2", "--out", run)
    out = works("predict", run, "--data", new, "--method", "fedavg", "--out", str(folders / "found.csv"))
    assert out == f"8 rows in {folders / 'found.csv'}\n"
    table = csv.read_csv(folders / "found.csv").to_pydict()
    assert list(table) == ["party", "id", "prediction", "score.low", "score.high", "label", "split"]
    assert table["id"] == [f"id-{at}" for at in range(8)]
    works("embed", run, "--data", new, "--method", "local", "--party", "north", "--out", str(folders / "z.parquet"))
    assert parquet.read_table(folders / "z.parquet").column_names == ["party", "id", "embedding"]
    works("export", run, "--method", "fedavg", "--out", str(folders / "model.pt2"))
    done = isthmus("export", run, "--out", str(folders / "other.pt2"))
    assert (done.code, done.err) == (2, f"isthmus: {run} holds several models: choose --method fedavg or local\n")
    assert torch.export.load(folders / "model.pt2").graph_signature.user_inputs[:2] == ("x", "edge_index")


def test_a_method_of_a_grid_is_its_chosen_setting_and_a_shared_model_says_so(isthmus: Isthmus) -> None:
    words = ("--rounds", "1", "--set", "data.nodes=120", "--grid", "local.lr=0.0001,0.05", "--out", "grid")
    assert isthmus("run", "--method", "fedavg", *words).code == 0
    search = load_results("grid").search
    assert search is not None
    label = search.chosen_label("fedavg")
    assert {each.label for each in search.tried} == {"fedavg local.lr=0.0001", "fedavg local.lr=0.05"}
    done = isthmus("export", "grid", "--method", "fedavg", "--party", "party-0", "--out", "model.pt2")
    assert done.err.splitlines() == [
        f"note: the model is that of '{label}', which validation data chose of the settings of fedavg",
        "note: all parties share this model: party-0 has none of its own",
    ]
    assert isthmus("predict", "grid", "--data", "banks", "--out", "p.csv").code == 2  # several settings, none named
    assert load_model("grid", label).about == []


def test_a_model_without_embeddings_is_called_by_its_encoders_name(isthmus: Isthmus) -> None:
    for words in (("--encoder", "sgc"), ("--encoder", "gcn", "--set", "model.layers=1")):
        out = words[1]
        assert isthmus("run", "--method", "fedavg", "--rounds", "1", *words, "--out", out).code == 0
        done = isthmus("embed", out, "--data", "banks", "--out", "z.csv")
        assert (done.code, done.out) == (2, "")
        assert f"model '{out}' has no embedding before its head: " in done.err
    assert "use more layers, or another encoder" in done.err


OWN = """
from torch import nn
from torch_geometric.nn import SAGEConv

class Own(nn.Module):
    head = "last"

    def __init__(self, features, outputs, width=3):
        super().__init__()
        self.first, self.last = SAGEConv(features, width), nn.Linear(width, outputs)

    def forward(self, x, edge_index):
        return self.last(self.first(x, edge_index).relu())
"""


def test_a_model_of_ones_own_is_used_with_its_file_and_its_options(
    isthmus: Isthmus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_for_use.py").write_text(OWN)
    own = ("--encoder", "own_for_use:Own", "--set", "model.width=5", "--set", "data.nodes=80")
    assert isthmus("run", *own, "--rounds", 1, "--import", "own_for_use.py", "--out", "run").code == 0
    monkeypatch.setattr(own_code, "imported", set[str]())  # as in another process
    uses = (("predict", "p.csv"), ("embed", "z.csv"), ("export", "m.pt2"))
    for command, out in uses:
        words = (command, "run", "--out", out, *(() if command == "export" else ("--data", "banks")))
        done = isthmus(*words)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "the study trained a model of your own, own_for_use:Own: give it, --import FILE.py" in done.err
        done = isthmus(*words, "--import", "own_for_use.py")
        assert done.code == 0, done.err
        own_code.imported.clear()
    assert {out for _, out in uses} <= {path.name for path in tmp_path.iterdir()}
    (tmp_path / "own_for_use.py").write_text(OWN.replace("relu", "sigmoid"))
    for command, out in uses:
        words = (command, "run", "--out", f"new-{out}", *(() if command == "export" else ("--data", "banks")))
        done = isthmus(*words, "--import", "own_for_use.py")
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "the source of 'own_for_use:Own' is not the one that this model was trained with" in done.err
        assert not (tmp_path / f"new-{out}").exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("predict", "nowhere", "--data", "banks", "--out", "x.csv"), "nowhere does not exist: give a folder"),
        (
            ("embed", "nowhere", "--data", "banks", "--out", "x.txt"),
            "--out is x.txt: give a file that ends in .parquet",
        ),
    ],
)
def test_a_mistake_is_one_line(words: tuple[str, ...], line: str, isthmus: Isthmus) -> None:
    done = isthmus(*words)
    assert done.code == 2
    assert line in done.err


def test_a_file_of_the_run_or_of_the_data_is_not_replaced(isthmus: Isthmus, folders: Path) -> None:
    run, data = str(folders / "run"), str(folders / "parties")
    assert isthmus("run", "--data", f"{data}/", "--rounds", "1", "--method", "fedavg", "--out", run).code == 0
    for command, file in (("predict", "parties/north/nodes.parquet"), ("embed", "run/history.parquet")):
        kept = (folders / file).read_bytes()
        done = isthmus(command, run, "--data", data, "--out", str(folders / file))
        assert (done.code, done.err.endswith("that would be lost: choose another file\n")) == (2, True)
        assert (folders / file).read_bytes() == kept
