"""The files of a party folder are read, and every problem is reported with its rows."""

import os

import numpy as np
import pyarrow as pa
import pytest
import torch

from isthmus.data.folder import table
from isthmus.data.folder.columns import Number
from isthmus.data.folder.reading import check_folder
from isthmus.data.folder.settings import FILE
from isthmus.data.folder.table import EDGES, GRAPHS, NODES, read_table
from isthmus.data.ids import PLAIN, KeyedHash
from isthmus.errors import IsthmusError
from party_folders import Draft, collection_draft, graph_draft, lines, read, report

KEYED = KeyedHash(b"k" * 32)
DECLARE = "correct it, or declare it at all parties (in party.toml, or isthmus party new --classes)"
NAN, INF = float("nan"), float("inf")


def alone(**nodes) -> Draft:
    """A party without partners; `nodes` replaces columns of its nodes."""
    draft = graph_draft(partner=None)
    for column, values in nodes.items():
        draft = draft.put(column, values)
    return draft


def edges_of(draft: Draft, *rows: tuple, **columns) -> Draft:
    """Return the draft with only these edges: source, target and, if given, owner."""
    names = ("source", "target", "owner")[: len(rows[0])]
    table = {name: [row[at] for row in rows] for at, name in enumerate(names)} | columns
    return Draft(draft.settings, {**draft.tables, EDGES: table})


# ---- what is sound


def test_written_graph_is_read_back(tmp_path):
    found = read(graph_draft(), tmp_path)
    ring = [(at, (at + 1) % 8) for at in range(8)]
    assert found.edge_index.t().tolist() == [list(each) for each in ring + [(two, one) for one, two in ring]]
    assert found.edge_weight.tolist() == [1.0 + at / 4 for at in range(8)] * 2
    assert found.ids.tolist() == list(range(8))
    assert found.y.tolist() == [0, 1] * 4
    assert {name: mask.nonzero().flatten().tolist() for name, mask in found.splits.items()} == {
        "train": [0, 1, 2], "val": [3, 4], "test": [5, 6],
    }  # fmt: skip
    assert found.border.inner.tolist() == [1, 3]
    assert found.border.outer.tolist() == [100, 102]
    assert (found.border.owner.tolist(), found.border.owners) == ([0, 0], ("south",))
    assert found.border.weight.tolist() == [3.0, 3.25]
    assert found.border_rows.tolist() == [9, 10]
    assert found.summary() == "8 nodes, 16 edges, 2 across its border, 8 labelled, 3 in train, 2 in val, 2 in test"


def test_directed_party_keeps_only_incoming_edges_across_the_border(tmp_path):
    found = read(graph_draft().with_settings(directed=True), tmp_path)
    assert found.edge_index.t().tolist() == [[at, (at + 1) % 8] for at in range(8)]
    assert (found.border.inner.tolist(), found.border.outer.tolist()) == ([1], [100])
    assert found.border.weight.tolist() == [3.0]


def test_ids_that_are_texts_or_under_a_key_are_hashed(tmp_path):
    draft = graph_draft(ids="n{}".format)
    plain, keyed = read(draft, tmp_path / "a"), read(draft, tmp_path / "b", KEYED)
    assert plain.ids.equal(PLAIN.numbers([f"n{at}" for at in range(8)]))
    assert keyed.ids.equal(KEYED.numbers([f"n{at}" for at in range(8)]))
    assert keyed.border.outer.equal(KEYED.numbers(["n100", "n102"]))
    assert (plain.hashed, keyed.hashed, read(graph_draft(), tmp_path / "c").hashed) == (True, True, False)
    assert read(graph_draft(), tmp_path / "d", KEYED).ids.equal(KEYED.numbers(range(8)))


def test_own_ids_are_not_shared(tmp_path):
    found = read(alone().with_settings(ids="own"), tmp_path)
    assert found.ids is None
    assert found.item_ids.tolist() == list(range(8))


def test_self_loops_occur_once_and_missing_weights_are_one(tmp_path):
    found = read(edges_of(alone(), (3, 3), (1, 2), weight=[0.5, None]), tmp_path)
    assert found.edge_index.tolist() == [[3, 1, 2], [3, 2, 1]]
    assert found.edge_weight.tolist() == [0.5, 1.0, 1.0]


def test_column_without_weights_gives_none(tmp_path):
    assert read(edges_of(alone(), (3, 3), weight=[None]), tmp_path / "a").edge_weight is None
    assert read(edges_of(alone(), (3, 3)), tmp_path / "b").edge_weight is None


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.null()], ids=str)
def test_a_party_without_edges(tmp_path, kind):
    draft = Draft(
        graph_draft().settings,
        {**graph_draft().tables, EDGES: {name: pa.array([], kind) for name in ("source", "target")}},
    )
    found = read(draft, tmp_path, KEYED)
    assert found.edge_index.shape == (2, 0)
    assert found.edge_index.dtype == found.border.outer.dtype == found.border.inner.dtype == torch.int64
    assert len(found.border) == 0


def test_owner_may_be_the_party_itself(tmp_path):
    draft = graph_draft()
    owner = [each or "north" for each in draft.tables[EDGES]["owner"]]
    found, due = read(draft.put("owner", owner, EDGES), tmp_path / "a"), read(draft, tmp_path / "b")
    assert torch.equal(found.edge_index, due.edge_index)
    assert found.border.inner.equal(due.border.inner)


def test_dictionaries_and_large_texts_are_texts(tmp_path):
    draft = graph_draft(ids="n{}".format)
    due = read(draft, tmp_path / "plain")
    for column, file in (("id", NODES), ("label", NODES), ("split", NODES), ("source", EDGES), ("owner", EDGES)):
        values = pa.array(draft.tables[file][column])
        draft = draft.put(
            column, values.dictionary_encode() if column != "id" else values.cast(pa.large_string()), file
        )
    found = read(draft, tmp_path / "other")
    assert found.ids.equal(due.ids)
    assert found.edge_index.equal(due.edge_index)
    assert found.y.equal(due.y)
    assert found.border.outer.equal(due.border.outer)


def test_ignored_columns_are_not_checked(tmp_path):
    draft = alone(note=[b"\x00"] * 8, split=["nonsense"] * 8).with_settings(ignore=["note", "split"])
    assert read(draft, tmp_path).splits is None


def test_collection_is_read_graph_by_graph(tmp_path):
    draft = collection_draft(graphs=3)
    order = [4, 0, 6, 2, 1, 5, 3]  # nodes in any order; those of a graph keep theirs
    for column, values in draft.tables[NODES].items():
        draft.tables[NODES][column] = [values[at] for at in order]
    found = read(draft, tmp_path)
    assert found.batch.tolist() == [0, 0, 1, 1, 1, 2, 2]
    names = [draft.tables[NODES]["id"][order.index(at)] for at in order]
    assert sorted(found.features.column("id").to_pylist()) == sorted(names)
    ids = found.features.column("id").to_pylist()
    pairs = {(ids[one], ids[two]) for one, two in found.edge_index.t().tolist()}
    lines_ = set(zip(draft.tables[EDGES]["source"], draft.tables[EDGES]["target"], strict=True))
    assert pairs == lines_ | {(two, one) for one, two in lines_}
    assert found.y.tolist() == [0, 1, 0]
    assert found.ids is None


# ---- labels


@pytest.mark.parametrize(
    ("settings", "values", "due"),
    [
        ({"labels": ["low", "high"]}, ["high", "low", None, ""], [1, 0, -1, -1]),
        ({"labels": ["low", "high"]}, [1, 0, None, 1], [1, 0, -1, 1]),
        ({"labels": ["low", "high"]}, [1.0, 0.0, None, NAN], [1, 0, -1, -1]),
        ({"labels": ["2", "1"]}, [1, 2, None, 2], [1, 0, -1, 0]),
        ({"labels": ["2", "1"]}, [1.0, 2.0, NAN, 2.0], [1, 0, -1, 0]),
        ({"labels": ["2", "1", "other"]}, [1, 2, None, 2], [1, 0, -1, 0]),
        ({"labels": ["true", "false"]}, [True, False, None, True], [0, 1, -1, 0]),
        ({"labels": ["no", "yes"]}, [True, False, None, True], [1, 0, -1, 1]),
        ({"labels": None, "classes": 3}, [2, 0, None, 1], [2, 0, -1, 1]),
        ({"labels": None, "classes": 3}, [2.0, 0.0, None, NAN], [2, 0, -1, -1]),
        ({"labels": None, "classes": 3}, pa.nulls(4), [-1] * 4),
        ({"labels": ["a"]}, ["", "", "", ""], [-1] * 4),
    ],
)
def test_labels_of_every_kind(tmp_path, settings, values, due):
    values = values if isinstance(values, pa.Array) else pa.array(values)
    draft = alone(label=pa.concat_arrays([values, values])).without("split").with_settings(**settings)
    assert read(draft, tmp_path).y.tolist() == due * 2


def test_labels_of_several_tasks(tmp_path):
    draft = alone(toxic=[1, 0, None] + [0] * 5, size=[0.5, NAN, None] + [2.0] * 5).without("label").without("split")
    found = read(draft.with_settings(labels=None, tasks=["size", "toxic"]), tmp_path)
    assert found.y.dtype == torch.get_default_dtype()
    torch.testing.assert_close(found.y[:4], torch.tensor([[0.5, 1], [NAN, 0], [NAN, NAN], [2, 0]]), equal_nan=True)
    assert found.labelled.tolist() == [True, True, False] + [True] * 5


# ---- what is wrong, with its rows


SPOILED = {
    "id repeated": (
        lambda: edges_of(alone(id=[0, 1, 2, 1, 4, 5, 6, 1]), (1, 4)),
        ["nodes.parquet, rows 4, 8: column 'id' repeats an earlier id: make ids unique"],
    ),
    "id without a value": (
        lambda: edges_of(alone(id=[0, 1, 2, 3, None, 5, 6, None]), (1, 5)),
        ["nodes.parquet, rows 5, 8: column 'id' has no value: fill it in"],
    ),
    "id an empty text": (
        lambda: edges_of(alone(id=["n0", "n1", "n2", "n3", "", "n5", "n6", "n7"]), ("n1", "n5")),
        ["nodes.parquet, row 5: column 'id' has no value: fill it in"],
    ),
    "id beyond 64 bits": (
        lambda: alone(id=pa.array([*range(7), 2**63], pa.uint64())),
        ["nodes.parquet: column 'id' has numbers beyond 64 bits: write them as texts"],
    ),
    "id a real number": (
        lambda: alone(id=[at / 2 for at in range(8)]),
        ["nodes.parquet: column 'id' holds values of type double: it must hold whole numbers or texts"],
    ),
    "id a date": (
        lambda: alone(id=pa.array(range(8), pa.date32())),
        ["nodes.parquet: column 'id' holds values of type date32[day]: it must hold whole numbers or texts"],
    ),
    "no rows": (
        lambda: Draft(
            alone().settings,
            {
                NODES: {name: pa.array(values)[:0] for name, values in alone().tables[NODES].items()},
                EDGES: {"source": pa.array([0], pa.int64()), "target": pa.array([1], pa.int64())},
            },
        ),
        ["nodes.parquet: the file has no rows: a party holds at least one item"],
    ),
    "column missing": (lambda: alone().without("age"), ["nodes.parquet: column 'age' is missing: add it to the table"]),
    "part of a column missing": (
        lambda: alone().without("words.at"),
        ["nodes.parquet: column 'words.at' is missing: add it to the table"],
    ),
    "column unknown": (
        lambda: alone(aeg=[1] * 8),
        ["nodes.parquet: column 'aeg' is not known: declare it in party.toml, or 'ignore' it"],
    ),
    "column ignored but needed": (
        lambda: alone().with_settings(ignore=["id"]),
        ["nodes.parquet: column 'id' is missing: party.toml lists it under 'ignore'"],
    ),
    "source missing": (
        lambda: alone().without("source", EDGES),
        ["edges.parquet: column 'source' is missing: add it to the table"],
    ),
    "label outside": (
        lambda: alone(label=["low", "middle", "high", "", "top", None, "low", "low"]).without("split"),
        [f"nodes.parquet, rows 2, 5: label 'middle', 'top' is not one of low, high: {DECLARE}"],
    ),
    "label number outside": (
        lambda: alone(label=[0, 2, -1, 1.5, INF, NAN, None, 1]).without("split"),
        [
            "nodes.parquet, rows 2, 3, 4, 5: label 2, -1, 1.5, inf is not a whole number from 0 to 1: correct it; if "
            "labels are measured (regression), list the column under tasks (party new --task)"
        ],
    ),
    "label a text where numbers are declared": (
        lambda: alone().with_settings(labels=None, classes=2),
        ["nodes.parquet: column 'label' holds texts: list them under 'labels' in party.toml"],
    ),
    "label a list": (
        lambda: alone(label=[[0]] * 8),
        ["nodes.parquet: column 'label' holds values of type list<element: int64>: it must hold numbers or texts"],
    ),
    "split unknown": (
        lambda: alone(split=["train", "val", "test", "Train", None, "", "valid", "train"]),
        ["nodes.parquet, rows 4, 7: column 'split' must be empty or one of train, val, test, not 'Train'"],
    ),
    "split a number": (
        lambda: alone(split=[0] * 8),
        ["nodes.parquet: column 'split' holds values of type int64: it must hold texts"],
    ),
    "split without a label": (
        lambda: alone(label=["low", None, "low", "", "low", "low", "low", None]),
        ["nodes.parquet, rows 2, 4: the row is in a split but has no label: add a label, or leave the split empty"],
    ),
    "task missing": (
        lambda: alone().without("label").with_settings(labels=None, tasks=["toxic"]),
        ["nodes.parquet: column 'toxic' is missing: party.toml lists it under 'tasks'"],
    ),
    "task a text": (
        lambda: alone(toxic=["yes"] * 8).without("label").with_settings(labels=None, tasks=["toxic"]),
        ["nodes.parquet: column 'toxic' holds values of type string, such as 'yes': it must hold numbers"],
    ),
    "task infinite": (
        lambda: (
            alone(toxic=[1.0, INF, 1e39, 0, 0, 0, 0, 0]).without("label").with_settings(labels=None, tasks=["toxic"])
        ),
        ["nodes.parquet, rows 2, 3: column 'toxic' is infinite or beyond 3.4e38: correct it"],
    ),
    "edge dangling": (
        lambda: edges_of(alone(), (0, 1), (0, 99), (99, 0), (98, 99)),
        [
            "edges.parquet, rows 2, 3, 4: source or target is not in nodes.parquet: add the node, "
            "or add a column 'owner' (isthmus party new --owner)"
        ],
    ),
    "edge dangling where there are partners": (
        lambda: edges_of(graph_draft(), (0, 1, None), (0, 99, None)),
        ["edges.parquet, row 2: source or target is not in nodes.parquet: add the node, or name its party in 'owner'"],
    ),
    "edge without an end": (
        lambda: edges_of(alone(), (0, None), (0, 1), (None, None)),
        [
            "edges.parquet, row 3: column 'source' has no value: fill it in",
            "edges.parquet, rows 1, 3: column 'target' has no value: fill it in",
        ],
    ),
    "ends of another type": (
        lambda: edges_of(alone(), ("0", "1")),
        ["edges.parquet: source and target have type string and string, ids of nodes int64: use one type"],
    ),
    "owner unknown": (
        lambda: edges_of(graph_draft(), (0, 1, None), (0, 100, "west"), (1, 101, "south"), (2, 102, "east")),
        ["edges.parquet, rows 2, 4: unknown owner: party.toml lists south as partners"],
    ),
    "owner where there are no partners": (
        lambda: edges_of(alone(), (0, 1, None), (0, 100, "south")),
        ["edges.parquet, row 2: unknown owner: party.toml lists no 'partners'"],
    ),
    "owner a number": (
        lambda: edges_of(graph_draft(), (0, 1, 3)),
        ["edges.parquet: column 'owner' holds values of type int64: it must hold names of parties"],
    ),
    "owner of an inner edge": (
        lambda: edges_of(graph_draft(), (0, 1, "south"), (0, 1, None), (1, 1, "south")),
        ["edges.parquet, rows 1, 3: both nodes are in this party: leave 'owner' empty"],
    ),
    "owner of a foreign edge": (
        lambda: edges_of(graph_draft(), (0, 1, None), (100, 101, "south")),
        ["edges.parquet, row 2: neither source nor target is in nodes.parquet: remove the edge, or add a node"],
    ),
    "weight infinite": (
        lambda: edges_of(alone(), (0, 1), (1, 2), (2, 3), (3, 4), weight=[1.0, INF, NAN, 1e39]),
        ["edges.parquet, rows 2, 3, 4: column 'weight' is not a finite number: correct it"],
    ),
    "weight a text": (
        lambda: edges_of(alone(), (0, 1), weight=["heavy"]),
        ["edges.parquet: column 'weight' holds values of type string, such as 'heavy': it must hold numbers"],
    ),
    "graph repeated": (
        lambda: collection_draft().put("id", ["g0", "g1", "g2", "g3", "g4", "g0"], GRAPHS),
        [
            "graphs.parquet, row 6: column 'id' repeats an earlier id: make ids unique",
            "nodes.parquet, rows 13, 14, 15: column 'graph' has an id that is not in graphs.parquet",
        ],
    ),
    "graph unknown": (
        lambda: collection_draft().put(
            "graph", ["g0", "g0", "g1", "g9", "g1", *collection_draft().tables[NODES]["graph"][5:]]
        ),
        [
            "nodes.parquet, row 4: column 'graph' has an id that is not in graphs.parquet",
        ],
    ),
    "graph without a node": (
        lambda: collection_draft().put("graph", ["g0"] * 5 + collection_draft().tables[NODES]["graph"][5:]),
        ["graphs.parquet, row 2: this graph has no node in nodes.parquet"],
    ),
    "graph of another type": (
        lambda: collection_draft().put("graph", [0] * 15),
        [
            "nodes.parquet: column 'graph' holds values of type int64, the ids of graphs string: "
            "use one type"
        ],
    ),
    "edge between graphs": (
        lambda: edges_of(collection_draft(), ("g0-0", "g0-1"), ("g0-0", "g1-0"), ("g2-1", "g1-0")),
        ["edges.parquet, rows 2, 3: the edge joins nodes of two graphs: remove it"],
    ),
    "owner in a pile": (
        lambda: edges_of(collection_draft(), ("g0-0", "g0-1", "south")),
        [
            "edges.parquet: column 'owner' is not known: declare it in party.toml, or 'ignore' it",
            "edges.parquet, row 1: unknown owner: party.toml lists no 'partners'",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SPOILED)
def test_each_problem_is_reported_with_its_rows(tmp_path, case):
    draft, due = SPOILED[case]
    assert [line for line in report(draft(), tmp_path) if not line.startswith("note")] == due


def test_all_problems_are_reported_at_once(tmp_path):
    draft = graph_draft()
    draft = draft.put("id", [0, 1, 1, 3, None, 5, 6, 7]).put("age", [1.0, NAN, 3, 4, 5, INF, 7, 8])
    draft = draft.put("near", [[1.0, 2.0]] * 7 + [[1.0]]).put(
        "label", ["low", "odd", "low", "low", "low", "low", None, None]
    )
    draft = draft.put("split", ["train", "train", "test", "test", "tset", "test", "test", None]).put("extra", [0] * 8)
    draft = draft.without("kind")
    draft = edges_of(draft, (0, 1, None), (0, 77, None), (1, 100, "west"), (None, 3, None), weight=[1.0, 1.0, INF, 1.0])
    assert report(draft, tmp_path) == [
        "nodes.parquet: column 'kind' is missing: add it to the table",
        "nodes.parquet: column 'extra' is not known: declare it in party.toml, or 'ignore' it",
        "nodes.parquet, row 5: column 'id' has no value: fill it in",
        "nodes.parquet, row 3: column 'id' repeats an earlier id: make ids unique",
        "nodes.parquet, row 6: column 'age' is infinite or beyond 3.4e38: correct it",
        "nodes.parquet, row 2: column 'age' has no value: fill it in, or declare missing = \"mean\" before training",
        "nodes.parquet, row 8: column 'near' does not have 2 numbers, as party.toml declares",
        f"nodes.parquet, row 2: label 'odd' is not one of low, high: {DECLARE}",
        "nodes.parquet, row 5: column 'split' must be empty or one of train, val, test, not 'tset'",
        "nodes.parquet, row 7: the row is in a split but has no label: add a label, or leave the split empty",
        "note: nodes.parquet: no row is in the split 'val'",
        "edges.parquet, row 4: column 'source' has no value: fill it in",
        "edges.parquet, row 3: column 'weight' is not a finite number: correct it",
        "edges.parquet, row 3: unknown owner: party.toml lists south as partners",
        "edges.parquet, row 2: source or target is not in nodes.parquet: add the node, or name its party in 'owner'",
    ]


def test_every_file_is_checked(tmp_path):
    draft = collection_draft().without("graph").without("id", GRAPHS).without("target", EDGES)
    assert report(draft, tmp_path) == [
        "graphs.parquet: column 'id' is missing: add it to the table",
        "nodes.parquet: column 'graph' is missing: add it to the table",
        "edges.parquet: column 'target' is missing: add it to the table",
    ]


def test_missing_and_damaged_files_are_reported_together(tmp_path):
    folder = collection_draft().write(tmp_path)
    (folder / NODES).unlink()
    (folder / EDGES).write_bytes(b"PAR1 this is no parquet PAR1")
    (folder / GRAPHS).unlink()
    (folder / GRAPHS).mkdir()
    found = lines(check_folder(folder)[1])
    assert len(found) == 3
    assert found[0].startswith("graphs.parquet: cannot read the file: ")
    assert found[1] == "nodes.parquet: the file does not exist"
    assert found[2].startswith("edges.parquet: cannot read the file: ")


def test_problem_with_many_rows_lists_the_first(tmp_path):
    count = 3_000
    nodes = {
        "id": list(range(count)),
        "age": [NAN if at % 3 == 1 else 1.0 for at in range(count)],
        "label": [0] * count,
    }
    draft = Draft(
        {"name": "x", "classes": 1, "columns": {"age": {"kind": "number"}}},
        {NODES: nodes, EDGES: {"source": [0], "target": [1]}},
    )
    assert report(draft, tmp_path) == [
        "nodes.parquet, rows 2, 5, 8, 11, 14, 17, 20, 23 and 992 more: column 'age' has no value: fill it in, "
        'or declare missing = "mean" before training'
    ]


# ---- what may be meant


def test_folder_with_notes_is_usable(tmp_path):
    draft = edges_of(alone(split=["train"] * 7 + [None]), (0, 1), (1, 0), (2, 2), (0, 1))
    assert report(draft, tmp_path / "a") == [
        "note: nodes.parquet: no row is in the split 'val'",
        "note: nodes.parquet: no row is in the split 'test'",
        "note: edges.parquet, rows 2, 4: repeats an earlier edge: both count",
    ]
    assert read(draft, tmp_path / "b").edge_index.size(1) == 7


def test_reverse_of_a_directed_edge_is_no_repeat(tmp_path):
    draft = edges_of(alone().with_settings(directed=True), (0, 1), (1, 0), (0, 1))
    assert report(draft, tmp_path) == ["note: edges.parquet, row 3: repeats an earlier edge: both count"]


@pytest.mark.parametrize("count", [20, 70_000])
def test_a_number_far_from_all_others_is_a_note(count):
    def notes(values, **options):
        return list(Number(**options).check("age", pa.table({"age": values}), NODES))

    ages = [*(30.0 + at % 7 for at in range(count - 1)), 9999.0]
    (note,) = notes(ages)
    what = "column 'age' is 9,999, over 100 times as far out as any other: is it right?"
    assert (str(note), note.severe) == (f"nodes.parquet, row {count}: {what}", False)
    assert not notes(ages, scale="none")
    fine = {
        "one flag": [0] * (count - 1) + [1],
        "two flags": [0] * (count - 2) + [1, 1],
        "alike up to rounding": [0.1] * (count - 1) + [0.2],
        "near": [*ages[:-1], 60.0],
        "sorted": np.exp(np.arange(count) / count * 30),
    }
    assert {name for name, values in fine.items() if notes(values)} == set()
    (missing,) = notes([*ages[:-1], NAN])
    assert "has no value" in missing.what
    assert not [each for each in notes([*ages[:-1], INF]) if "far out" in each.what]


def test_repeated_edges_across_the_border_are_noted_with_those_within(tmp_path):
    rows = [(0, 1, None), (2, 100, "south"), (2, 100, "south"), (100, 2, "south"), (1, 0, None), (3, 100, "south")]
    for directed, due in ((False, "rows 3, 4, 5"), (True, "row 7")):
        more = [(100, 2, "south")] if directed else []
        draft = edges_of(graph_draft().with_settings(directed=directed), *rows, *more)
        note = f"note: edges.parquet, {due}: repeats an earlier edge: both count"
        assert report(draft, tmp_path / str(directed)) == [note]


def test_equal_ids_at_two_parties_are_two_ends(tmp_path):
    draft = graph_draft().with_settings(partners=["south", "west"])
    assert report(edges_of(draft, (2, 100, "south"), (2, 100, "west")), tmp_path) == []


def test_nothing_to_train_on_is_a_note(tmp_path):
    draft = alone().without("label").without("split")
    assert report(draft, tmp_path / "a") == [
        "note: nodes.parquet: there is no column 'label': a trained model can predict this, and only methods without "
        "labels can train on it"
    ]
    assert read(draft, tmp_path / "b").y.tolist() == [-1] * 8
    (note,) = report(alone(label=[None] * 8).without("split"), tmp_path / "c")
    assert note == "note: nodes.parquet: column 'label' labels no row: no item can be learned"


def test_no_edges_are_a_note_of_the_check_alone(tmp_path):
    draft = alone()
    draft = Draft(
        draft.settings, {**draft.tables, EDGES: {name: pa.array([], pa.int64()) for name in ("source", "target")}}
    )
    assert "note: edges.parquet: the party has no edge: models read its nodes one by one" in report(draft, tmp_path)
    assert check_folder(tmp_path)[1][-1].minor


# ---- tables


def test_text_that_is_not_utf8_is_reported(tmp_path):
    offsets, letters = np.array([0, 2, 4], np.int32), b"ok\xff\xfe"
    bad = pa.StringArray.from_buffers(2, pa.py_buffer(offsets.tobytes()), pa.py_buffer(letters))
    found = report(Draft(alone().settings, {**alone().tables, NODES: {"id": bad}}), tmp_path)
    assert found[0].startswith("nodes.parquet: cannot read the file: ")
    assert "UTF8" in found[0]


def test_two_columns_with_one_name_are_reported(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,id,x\n1,2,3\n")
    assert read_table(path).column_names == ["id", "id", "x"]
    folder = alone().write(tmp_path / "party")
    table = pa.table([pa.array([1]), pa.array([2])], names=["id", "id"])
    pa.parquet.write_table(table, folder / NODES)
    found = lines(check_folder(folder)[1])
    assert "nodes.parquet: column 'id' occurs twice: remove one" in found
    assert not any("'id' is missing" in line for line in found)


def test_missing_values_of_a_csv_file(tmp_path):
    (tmp_path / "a.csv").write_text("number,text\n1,a\nNA,NULL\n,\nnan,N/A\n")
    assert read_table(tmp_path / "a.csv").to_pydict() == {"number": [1, None, None, None], "text": ["a"] + [None] * 3}


def test_columns_of_a_csv_file_can_be_read_as_texts(tmp_path):
    (tmp_path / "a.csv").write_text("id,x\n007,1\n12,\n")
    assert read_table(tmp_path / "a.csv", as_text=["id", "nowhere"]).to_pydict() == {
        "id": ["007", "12"],
        "x": [1, None],
    }


@pytest.mark.parametrize("name", ["no.parquet", "no.csv"])
def test_missing_table_is_an_error(tmp_path, name):
    with pytest.raises(IsthmusError, match=f"{name} does not exist$"):
        read_table(tmp_path / name)


@pytest.mark.parametrize("name", ["a.csv", "a.CSV", "a.parquet", "a"])
@pytest.mark.parametrize("content", [b"", b"\x00\xff", b'a,b\n1,2,3\n"'])
def test_unreadable_table_is_a_one_line_error(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(IsthmusError, match=r"cannot read|is not UTF-8: save it as UTF-8") as caught:
        read_table(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_file_without_permission_is_reported(tmp_path, monkeypatch):
    from pyarrow import parquet

    def refuse(path, **options):
        raise PermissionError(13, "Permission denied", str(path))

    folder = alone().write(tmp_path)
    monkeypatch.setattr(parquet, "ParquetFile", refuse)
    assert lines(check_folder(folder)[1])[0] == "nodes.parquet: cannot read the file: Permission denied"
    monkeypatch.setattr("isthmus.store.read_text", refuse)
    assert lines(check_folder(folder)[1])[0].startswith(f"{FILE}: Permission denied")


# ---- molecules


def molecules(text: str, **settings) -> Draft:
    said = {"name": "lab", "level": "graph", "classes": 2, "smiles": {}, **settings}
    return Draft(said, {}, {"molecules.csv": text.encode()})


def test_unreadable_molecules_are_left_out(tmp_path):
    pytest.importorskip("rdkit")
    draft = molecules("smiles,label,split\nCCO,1,train\nC(,0,train\nc1ccccc1,0,val\nC,,\n")
    assert report(draft, tmp_path / "a") == [
        "note: molecules.csv: no row is in the split 'test'",
        "note: molecules.csv, row 2: the SMILES cannot be read: the molecule is left out",
    ]
    found = read(draft, tmp_path / "b")
    assert found.batch.tolist() == [0] * 3 + [1] * 6 + [2]
    assert found.x.size(0) == 10
    assert found.y.tolist() == [1, 0, -1]
    assert {name: mask.tolist() for name, mask in found.splits.items()}["train"] == [True, False, False]
    assert found.item_ids.equal(PLAIN.numbers(["CCO", "c1ccccc1", "C"]))


@pytest.mark.parametrize(
    ("text", "due"),
    [
        (
            "smiles,label\n,1\nCCO,3\n",
            [
                "row 1: column 'smiles' has no value: fill it in",
                f"row 2: label 3 is not a whole number from 0 to 1: {DECLARE}",
            ],
        ),
        ("smiles,label\n1,1\n2,1\n", ["column 'smiles' holds values of type int64: it must hold texts"]),
        (
            "smile,label\nCCO,1\n",
            [
                "column 'smiles' is missing: add it to the table",
                "column 'smile' is not known: declare it in party.toml, or 'ignore' it",
            ],
        ),
        ("id,smiles,label\n7,CCO,1\n7,C,0\n", ["row 2: column 'id' repeats an earlier id: make ids unique"]),
        (
            "smiles,label\nC(,1\n",
            [
                "note: row 1: the SMILES cannot be read: the molecule is left out",
                "no SMILES can be read: correct them",
            ],
        ),
    ],
)  # fmt: skip
def test_wrong_molecules_are_reported(tmp_path, text, due):
    pytest.importorskip("rdkit")
    found = report(molecules(text), tmp_path)
    assert [line.replace("molecules.csv, ", "").replace("molecules.csv: ", "") for line in found] == due


def test_missing_rdkit_is_a_problem(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "rdkit", None)
    assert report(molecules("smiles,label\nC,1\n"), tmp_path) == [
        "molecules.csv: reading SMILES needs rdkit: install it with pip install 'isthmus[molecules]'"
    ]


@pytest.mark.parametrize("file", [NODES, EDGES])
def test_a_missing_file_of_a_large_folder_is_a_problem(tmp_path, monkeypatch, file):
    monkeypatch.setattr(table, "LARGE", 1)
    folder = graph_draft().write(tmp_path)
    (folder / file).unlink()
    assert lines(check_folder(folder)[1]) == [f"{file}: the file does not exist"]


@pytest.mark.parametrize("file", ["nodes.parquet", "edges.parquet", "party.toml"])
@pytest.mark.parametrize("kind", ["pipe", "device", "link"])
def test_file_that_is_no_file_of_the_folder_is_reported_at_once(tmp_path, file, kind):
    folder = alone().write(tmp_path / "party")
    outside = (folder / file).rename(tmp_path / "outside")
    if kind == "pipe":
        os.mkfifo(folder / file)
    else:
        (folder / file).symlink_to(outside if kind == "link" else "/dev/zero")
    contents, problems = check_folder(folder)
    assert contents is None
    assert ("a link that leaves its folder" if kind == "link" else "not a regular file but a pipe") in str(problems[0])
