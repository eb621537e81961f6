"""Methods are named for what parties have, from counts alone."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.party_folders import two_drafts

from command_line import Isthmus
from helpers import slow_but
from isthmus.advice.counts import Counts
from isthmus.advice.methods import ROWS, Situation, advised, commands, costs, flags
from isthmus.methods.base import Method

NODES = Situation(parties=4, level="node", items=100, labelled=50, crossing=0, shared=0, classes=True, emd=0.1)
GRAPHS = replace(NODES, level="graph")


def first(situation: Situation) -> list[str]:
    return [advice.methods[0] for advice in advised(situation)]


def test_what_fits_comes_in_order_and_wishes_last() -> None:
    assert first(NODES) == ["fedavg", "fedgc"]
    assert first(replace(NODES, crossing=9)) == ["fedcog", "fedavg", "fedgc"]
    assert first(replace(NODES, crossing=9, emd=0.8)) == ["fedcog", "scaffold", "fedavg", "fedgc"]
    assert first(replace(NODES, crossing=9, shared=3, emd=0.8)) == ["fedgl", "scaffold", "fedavg"]
    assert first(GRAPHS) == ["fedavg", "fgcl"]
    assert first(replace(GRAPHS, labelled=10)) == ["infograph", "fedavg", "fgcl"]
    assert first(replace(GRAPHS, labelled=0, emd=None)) == ["infograph"]
    assert first(replace(NODES, labelled=0, emd=None)) == []


def test_a_rare_class_brings_a_metric_and_weights() -> None:
    fraud = replace(NODES, labels=(987, 13))
    assert fraud.rare_flags() == "--metric average_precision --set task.class_weights=balanced"
    line = "is rare, 1.3% of the labels: a model that never predicts it can have an accuracy of 98.7% (and ROC AUC"
    assert fraud.rare_class().startswith(f"class 1 {line}")
    assert fraud.rare_class(["false", "true"]).startswith(f"'true' {line}")
    many = replace(NODES, labels=(20, *[18] * 10, 1))
    assert "0.5% of the labels: accuracy hardly counts it, so judge" in many.rare_class()
    assert commands(fraud, ["fedavg", "fedcog"], "p/") == [
        f"isthmus run --data p/ --method local,fedavg {fraud.rare_flags()}",
        f"isthmus run --data p/ --method local,fedavg,fedcog --encoder sgc {fraud.rare_flags()}",
    ]
    first = replace(NODES, labels=(13, 987)).rare_flags()  # usually it is the second of two
    assert first == "--metric average_precision --set task.positive=0 --set task.class_weights=balanced"
    assert "--metric macro_f1 " in replace(NODES, labels=(13, 900, 400)).rare_flags()
    assert "class 2 is rare" in replace(NODES, labels=(300, 200, 5, 0)).rare_class()
    for even in ((60, 40), (0, 40), ()):
        assert (replace(NODES, labels=even).rare_flags(), replace(NODES, labels=even).rare_class()) == ("", "")
    assert commands(GRAPHS, ["infograph"], "p/") == [
        "isthmus run --data p/ --method infograph --set task.name=graph-clustering"
    ]


MORE: tuple[dict[str, Any], ...] = ({"shared": 3}, {"labelled": 0, "emd": None})
"""What rules out methods for coupled graphs, whichever way edges run."""


def test_edges_that_run_one_way_rule_methods_out_in_a_sentence() -> None:
    one_way = replace(NODES, crossing=9, directed=True)
    assert first(one_way) == ["fedavg", "fedgc"]
    assert one_way.one_way().endswith("make the folders again without --directed")
    others = ({"crossing": 9}, {"directed": True}, *({"crossing": 9, "directed": True, **each} for each in MORE))
    assert {replace(NODES, **each).one_way() for each in others} == {""}


def test_few_nodes_in_common_may_be_chance() -> None:
    due = "only 5 of 1,000 nodes are at several parties: if their ids are equal by chance, make the folders again with"
    assert replace(NODES, items=1000, shared=5).few_shared() == f"{due} --ids own"
    assert {replace(NODES, items=1000, shared=shared).few_shared() for shared in (None, 0, 11)} == {""}
    others = ({"typed": True}, {"level": "graph"}, {"crossing": 3})  # edges across parties need shared ids
    assert {replace(NODES, items=1000, shared=5, **each).few_shared() for each in others} == {""}


def test_a_party_with_few_labels_may_be_idle() -> None:
    (command,) = commands(replace(NODES, fewest=7), ["fedavg"], "p/")
    assert command == "isthmus run --data p/ --method local,fedavg --unlabelled idle"
    assert "idle" not in " ".join(commands(NODES, ["fedavg"], "p/"))


def test_a_party_with_most_items_is_a_sentence() -> None:
    small = [Counts(party=f"corner{at}", level="node", items=10, labelled=10, labels=[6, 4]) for at in range(30)]
    giant = Counts(party="giant", level="node", items=900, labelled=900, labels=[500, 400])
    text = Situation.of([*small, giant]).large_party()
    assert text.startswith("the largest party has 75% of the nodes, so figures over all items are mostly its own: read")
    assert Situation.of(small).large_party() == ""
    assert Situation.of([small[0], giant]).large_party() == ""  # of two, one always has half


def test_what_refuses_the_data_is_not_named() -> None:
    shared = [name for advice in advised(replace(NODES, crossing=9, shared=3)) for name in advice.methods]
    assert not any(Method.named(name).disjoint for name in shared)
    one_way = [name for advice in advised(replace(NODES, crossing=9, directed=True)) for name in advice.methods]
    assert "fedavg" in one_way
    assert not any(Method.named(name).both_ways for name in one_way)
    several = replace(NODES, crossing=9, shared=3, classes=False, emd=None)  # labels of several tasks
    assert first(several) == ["fedavg"]
    assert first(replace(GRAPHS, labelled=10, classes=False, emd=None)) == ["fedavg", "fgcl"]


def unlabelled(folder: Path) -> None:
    """Leaves a third of the graphs their labels."""
    for path in folder.glob("*/graphs.parquet"):
        table = pq.read_table(path)
        kept = [label if at % 3 == 0 else None for at, label in enumerate(table["label"].to_pylist())]
        at = table.schema.get_field_index("label")
        table = table.set_column(at, "label", pa.array(kept, table.schema.types[at]))
        pq.write_table(table.drop_columns(["split"]), path)


EXPORTS: dict[str, tuple[str, Callable[[Path], None] | None]] = {
    "banks": ("--data banks --set data.nodes=120", None),
    "overlapping banks": ("--data banks --set data.nodes=120 --set data.overlap=0.3", None),
    "unlike banks": (
        "--data banks --set data.nodes=160 --partition label-skew --set partition.emd=0.8 --parties 4",
        None,
    ),
    "hospitals": ("--data hospitals --set data.nodes=120", None),
    "molecules": ("--data molecules --set data.graphs=60", None),
    "motifs": ("--data motifs --set data.graphs=48", None),
    "unlabelled motifs": ("--data motifs --set data.graphs=48", unlabelled),
}
"""What is exported and changed; together they fit every row of the advice."""
DRIFT = {"scaffold", "feddyn", "fedadam", "fedprox"}
NAMED: dict[str, set[str]] = {
    "banks": {"fedcog", "fedcog-gcn", "fedgcn", "fedgc", "fedavg"},
    "overlapping banks": {"fedgl", "fedavg"},
    "unlike banks": {*DRIFT, "fedcog", "fedcog-gcn", "fedgcn", "fedgc", "fedavg"},
    "hospitals": {"fedgl", "fedavg"},
    "molecules": {"fgcl", "fedavg"},
    "motifs": {"fgcl", "fedavg"},
    "unlabelled motifs": {*DRIFT, "infograph", "mvgrl", "fclg", "fgcl", "fedavg"},  # few labels are unlike by chance
}


@pytest.mark.parametrize("which", slow_but(["banks", "molecules"], EXPORTS))
@pytest.mark.slow
def test_every_method_named_runs_on_what_parties_exported(which: str, isthmus: Isthmus, tmp_path: Path) -> None:
    options, changed = EXPORTS[which]
    assert isthmus("party", "export", "parties", *shlex.split(options)).code == 0
    if changed is not None:
        changed(tmp_path / "parties")
    advice = json.loads(isthmus("advise", "parties", "--json").out)["advice"]
    assert {name for each in advice for name in each["methods"]} == NAMED[which]
    for each in advice:
        for command in each["commands"]:
            done = isthmus(*shlex.split(command)[1:], "--rounds", "2", "--seed", "0")
            assert done.code == 0, done.err


def test_every_row_of_the_advice_is_tried() -> None:
    assert {kind.name for row in ROWS for kind in row.methods()} == set().union(*NAMED.values())


def test_flags_are_those_that_a_method_cannot_do_without() -> None:
    assert flags("fedcog") == "--encoder sgc"
    assert flags("infograph") == "--set task.name=graph-clustering"
    assert {flags(name) for name in ("fedavg", "fedgl", "fedgc", "fgcl")} == {""}


def test_every_method_named_is_one_for_that_level() -> None:
    for row in ROWS:
        for kind in row.methods():
            assert ("graph" if row.has.startswith("Many small") else "node") in kind.levels


def test_folders_are_advised_at_the_command_line(isthmus: Isthmus, tmp_path: Path) -> None:
    assert isthmus("party", "export", "p", "--data", "hospitals", "--set", "data.nodes=200").code == 0
    done = isthmus("advise", "p")
    assert done.code == 0
    assert "nodes at several of them" in done.out
    assert "fedgl\n  why: " in done.out
    assert done.out.count("  time: ") == 0, "none that is advised takes long"
    one = sorted((tmp_path / "p").iterdir())[0]
    assert "1 party with" in isthmus("advise", one).out
    alone = isthmus("advise", one).out
    assert "nodes in common unknown" in alone
    assert "only if no other party holds the same nodes, which is unknown here" in alone
    assert "only if no other party" not in isthmus("advise", "p").out
    told = json.loads(isthmus("advise", "p", one, "--json").out)  # who is named twice counts once
    assert told["situation"]["parties"] == len(list((tmp_path / "p").iterdir()))
    assert told["situation"]["level"] == "node"
    (command,) = told["advice"][-1]["commands"]
    assert command.startswith(f"isthmus run --data {tmp_path.resolve() / 'p'}/ --method local,fedavg")


def test_methods_that_take_long_say_so(isthmus: Isthmus) -> None:
    assert isthmus("party", "export", "p", "--data", "banks", "--set", "data.nodes=200").code == 0
    lines = isthmus("advise", "p").out.splitlines()
    fedgc = lines.index("fedgc")
    assert lines[fedgc + 3].startswith("  time: some 90 times federated averaging")
    (unlabelled,) = (row for row in ROWS if row.setting == "unlabelled")
    assert costs(unlabelled.methods()) == "mvgrl: 4 times the time of a contrast without diffusion (PROTEINS)"


def test_a_rare_class_of_folders_has_its_name(isthmus: Isthmus, tmp_path: Path) -> None:
    north, south = two_drafts()
    for draft, labels in ((north, ["low"] * 7 + ["high"]), (south, ["low"] * 8)):
        draft.put("label", labels).write(tmp_path / "p" / draft.settings["name"])
    assert "\n'high' is rare, 6.2% of the labels" in isthmus("advise", "p").out
    assert json.loads(isthmus("advise", "p", "--json").out)["rare_class"].startswith("'high' is rare")
    assert isthmus("party", "counts", "p", "--out", "counts.json").code == 0
    assert "\nclass 1 is rare" in isthmus("advise", "counts.json").out


def test_nodes_and_graphs_are_not_advised_together(isthmus: Isthmus) -> None:
    isthmus("party", "export", "a", "--data", "banks", "--set", "data.nodes=100")
    isthmus("party", "export", "b", "--data", "motifs", "--set", "data.graphs=40")
    done = isthmus("advise", "a", "b")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "some parties hold nodes and others graphs" in done.err
