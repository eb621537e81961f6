"""An organisation's tables become a party folder, or an error and nothing else."""

import math
import shutil
from dataclasses import replace

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from isthmus.data.folder.encoding import Encoding
from isthmus.data.folder.from_tables import SourceTables, UnusableFolder, create_folder, create_folders, is_pattern
from isthmus.data.folder.loading import check_folders, read_folders
from isthmus.data.folder.reading import check_folder
from isthmus.data.folder.settings import read_settings
from isthmus.data.folder.table import EDGES, GRAPHS, NODES
from isthmus.errors import IsthmusError
from party_folders import collection_draft, graph_draft, lines

COUNT = 24


def accounts(**columns):
    """A bank's accounts with its own column names; columns that are None are left out."""
    table = {
        "account": [f"A{at}" for at in range(COUNT)],
        "balance": [at * 3.5 for at in range(COUNT)],
        "sector": ["xyz"[at % 3] for at in range(COUNT)],
        "risk": ["low", "high"] * (COUNT // 2),
        **columns,
    }
    return {name: values for name, values in table.items() if values is not None}


def transfers(**columns):
    table = {
        "from": [f"A{at}" for at in range(COUNT)] + ["S1", "A3"],
        "to": [f"A{(at + 1) % COUNT}" for at in range(COUNT)] + ["A2", "S2"],
        "amount": [1.0 + at for at in range(COUNT + 2)],
        "bank": [None] * COUNT + ["south", "south"],
        **columns,
    }
    return {name: values for name, values in table.items() if values is not None}


ROLES = {"id": "account", "label": "risk", "source": "from", "target": "to", "weight": "amount", "owner": "bank"}


@pytest.fixture(params=["csv", "parquet"])
def source(request, tmp_path):
    """Write tables as one kind of file and return their paths."""

    def write(nodes=None, edges=None, graphs=None, **options):
        paths = {}
        for name, columns in (("nodes", nodes), ("edges", edges), ("graphs", graphs)):
            if columns is not None:
                paths[name] = tmp_path / f"{name}.{request.param}"
                write = csv.write_csv if request.param == "csv" else parquet.write_table
                write(pa.table(columns), paths[name])
        return SourceTables(**paths, **{"columns": ROLES, **options})

    return write


def create(folder, source, **options):
    """Create a folder; return its contents and the problems that were reported."""
    problems = create_folder(folder, source, **options)
    contents, again = check_folder(folder)
    assert [each for each in again if each.severe] == []
    return contents, lines(problems)


def tree(root):
    return sorted(str(each.relative_to(root)) for each in root.rglob("*"))


# ---- from tables to a folder


def test_tables_with_their_own_names_become_a_party_folder(tmp_path, source):
    contents, problems = create(tmp_path / "north", source(accounts(), transfers()))
    assert problems == []
    said = contents.settings
    assert (said.name, said.level, said.labels, said.partners, said.directed) == (
        "north",
        "node",
        ["high", "low"],
        ["south"],
        False,
    )
    assert {name: kind.name for name, kind in said.feature_columns().items()} == {
        "balance": "number",
        "sector": "category",
    }
    assert contents.items == COUNT
    assert contents.y.tolist() == [1, 0] * (COUNT // 2)
    assert len(contents.border) == 2
    assert contents.border.weight.tolist() == [25.0, 26.0]
    assert tree(tmp_path / "north") == ["edges.parquet", "nodes.parquet", "party.toml"]


def test_a_name_may_be_given(tmp_path, source):
    contents, _ = create(tmp_path / "folder", source(accounts(), transfers()), name="Bank Nord & Söhne")
    assert contents.settings.name == "Bank Nord & Söhne"


def test_directed_edges(tmp_path, source):
    contents, _ = create(tmp_path / "north", source(accounts(), transfers(), directed=True))
    assert contents.settings.directed
    assert contents.edge_index.size(1) == COUNT


def test_kind_of_a_column_follows_from_its_values(tmp_path):
    nodes = accounts(
        near=[[1.0, at] for at in range(COUNT)],
        open=[at % 2 == 0 for at in range(COUNT)],
        age=[None if at % 5 == 0 else at for at in range(COUNT)],
        debt=[float("nan") if at % 5 == 0 else 1.0 * at for at in range(COUNT)],
        size=pa.array(["ab"[at % 2] for at in range(COUNT)]).dictionary_encode(),
        note=[None if at % 2 else "seen" for at in range(COUNT)],
    )
    parquet.write_table(pa.table(nodes), tmp_path / "nodes.parquet")
    parquet.write_table(pa.table(transfers()), tmp_path / "edges.parquet")
    contents, _ = create(
        tmp_path / "north", SourceTables(tmp_path / "nodes.parquet", tmp_path / "edges.parquet", columns=ROLES)
    )
    assert {
        name: (kind.name, kind.model_dump(exclude={"structural"}))
        for name, kind in contents.settings.feature_columns().items()
    } == {
        "balance": ("number", {"scale": "standard", "missing": "error"}),
        "sector": ("category", {"values": None}),
        "near": ("vector", {"width": 2}),
        "open": ("number", {"scale": "none", "missing": "error"}),
        "age": ("number", {"scale": "standard", "missing": "mean"}),
        "debt": ("number", {"scale": "standard", "missing": "mean"}),
        "size": ("category", {"values": None}),
        "note": ("category", {"values": None}),
    }


def test_whole_number_labels_with_blanks_are_classes(tmp_path, source):
    """Tables without missing integers store such columns as floats."""
    risk = [None if at % 4 == 3 else float(at % 3) for at in range(COUNT)]
    contents, _ = create(tmp_path / "north", source(accounts(risk=risk), transfers()))
    assert contents.settings.classes == 3
    assert contents.y.tolist() == [-1 if at % 4 == 3 else at % 3 for at in range(COUNT)]


@pytest.mark.parametrize(("numbers", "names"), [((1, 2), ["1", "2"]), ((0.0, None, 3.0), ["0", "3"])])
def test_whole_numbers_with_gaps_are_names_of_classes(tmp_path, source, numbers, names):
    risk = [numbers[at % len(numbers)] for at in range(COUNT)]
    contents, problems = create(tmp_path / "north", source(accounts(risk=risk), transfers()))
    assert (contents.settings.labels, contents.settings.classes) == (names, None)
    assert f"label 'risk' has the numbers {', '.join(names)}: they are the names of 2 classes" in problems[0]
    known = [number for number in numbers if number is not None]
    assert contents.y.tolist() == [-1 if each is None else known.index(each) for each in risk]
    numbered, _ = create(tmp_path / "all", source(accounts(risk=risk), transfers(), classes=4))
    assert numbered.settings.classes == 4


@pytest.mark.parametrize(
    ("labels", "due"),
    [
        (
            [at * 7 for at in range(COUNT)],
            "24 different numbers in 24 rows: for regression give --task risk in place of",
        ),
        ([0, 1000] * (COUNT // 2), "2 different numbers in 24 rows, of which the largest is 1,000: for regression"),
        ([0.5, 2.25, 3.0] * (COUNT // 3), "3 different numbers in 24 rows: for regression"),
        ([f"k{at}" for at in range(COUNT)], "24 different texts, which look like names"),
    ],
)
def test_measured_numbers_and_keys_are_no_classes(tmp_path, source, labels, due):
    with pytest.raises(IsthmusError, match=due):
        create(tmp_path / "north", source(accounts(risk=labels), transfers()))


def test_boolean_labels_are_two_classes(tmp_path, source):
    contents, _ = create(tmp_path / "north", source(accounts(risk=[True] * COUNT), transfers()))
    assert contents.settings.labels == ["false", "true"]
    assert contents.y.tolist() == [1] * COUNT
    assert contents.y.tolist() == [1] * COUNT


def test_several_tasks(tmp_path, source):
    nodes = accounts(
        risk=None, fraud=[at % 2 for at in range(COUNT)], loss=[None if at % 3 else 0.5 for at in range(COUNT)]
    )
    roles = {role: column for role, column in ROLES.items() if role != "label"}
    contents, _ = create(tmp_path / "north", source(nodes, transfers(), columns=roles, tasks=["loss", "fraud"]))
    assert contents.settings.tasks == ["loss", "fraud"]
    assert contents.y.shape == (COUNT, 2)
    assert set(contents.settings.columns) == {"balance", "sector"}


def test_a_label_beside_tasks_is_not_lost(tmp_path, source):
    nodes = accounts(loss=[at % 3 for at in range(COUNT)])
    both = source(nodes, transfers(), tasks=["loss"])
    due = "column 'risk' would be the label beside the task loss: name it with --task as well, or leave it out with"
    with pytest.raises(IsthmusError, match=due):
        create(tmp_path / "north", both)
    assert not (tmp_path / "north").exists()
    roles = {role: column for role, column in ROLES.items() if role != "label"}
    create(tmp_path / "north", source(nodes, transfers(), columns=roles, tasks=["loss"], ignore=["risk"]))
    like = source(nodes, transfers(), like=tmp_path / "north")
    with pytest.raises(IsthmusError, match="beside the task loss of --like"):
        create(tmp_path / "south", like)


def test_ignored_columns_are_not_in_the_folder(tmp_path, source):
    nodes = accounts(holder=[f"person {at}" for at in range(COUNT)])
    _, problems = create(tmp_path / "north", source(nodes, transfers(), ignore=["holder"]))
    assert problems == []
    assert not any(b"person" in (tmp_path / "north" / file).read_bytes() for file in (NODES, EDGES, "party.toml"))


def test_column_may_take_the_name_of_an_ignored_one(tmp_path, source):
    nodes = accounts(label=["some text"] * COUNT)
    contents, _ = create(tmp_path / "north", source(nodes, transfers(), ignore=["label"]))
    assert contents.settings.labels == ["high", "low"]


def test_other_columns_of_edges_are_left_out_with_a_note(tmp_path, source):
    _, problems = create(
        tmp_path / "north", source(accounts(), transfers(when=["monday"] * (COUNT + 2), memo=[1] * (COUNT + 2)))
    )
    assert len(problems) == 1
    assert problems[0].startswith("note: edges.")
    assert problems[0].endswith(  # there is a weight already
        "columns without a role are left out: when, memo; as features of edges they are read from --tables with "
        "--as-edges TABLE in place of --edges"
    )
    assert parquet.read_schema(tmp_path / "north" / EDGES).names == ["source", "target", "weight", "owner"]


def test_ids_with_leading_zeros_stay_texts(tmp_path):
    (tmp_path / "nodes.csv").write_text("id,x,label\n007,1,0\n7,2,1\n12,3,0\n")
    (tmp_path / "edges.csv").write_text("source,target\n7,12\n12,7\n")
    create(tmp_path / "a", SourceTables(tmp_path / "nodes.csv", tmp_path / "edges.csv"))
    assert parquet.read_table(tmp_path / "a" / NODES).column("id").to_pylist() == ["007", "7", "12"]
    assert parquet.read_table(tmp_path / "a" / EDGES).column("source").to_pylist() == ["7", "12"]


def test_ids_of_graphs_with_leading_zeros_stay_texts(tmp_path):
    (tmp_path / "graphs.csv").write_text("id,label\n07,0\n7,1\n")
    (tmp_path / "nodes.csv").write_text("id,graph,x\n1,07,1\n2,7,2\n3,7,3\n")
    (tmp_path / "edges.csv").write_text("source,target\n2,3\n")
    files = [tmp_path / f"{name}.csv" for name in ("nodes", "edges", "graphs")]
    contents, _ = create(tmp_path / "a", SourceTables(*files))
    assert contents.batch.tolist() == [0, 1, 1]


def test_ids_beyond_64_bits_become_texts(tmp_path):
    ids = pa.array([1, 2**64 - 1], pa.uint64())
    parquet.write_table(pa.table({"id": ids, "x": [1.0, 2.0], "label": [0, 1]}), tmp_path / "nodes.parquet")
    parquet.write_table(pa.table({"source": ids[:1], "target": ids[1:]}), tmp_path / "edges.parquet")
    contents, _ = create(tmp_path / "a", SourceTables(tmp_path / "nodes.parquet", tmp_path / "edges.parquet"))
    assert contents.hashed
    assert contents.edge_index.tolist() == [[0, 1], [1, 0]]


def test_ids_that_are_whole_numbers_in_all_tables_become_numbers(tmp_path):
    (tmp_path / "nodes.csv").write_text("id,x,label\n-7,1,0\n0,2,1\n12,3,0\n")
    parquet.write_table(pa.table({"source": ["-7", "0"], "target": ["12", "12"]}), tmp_path / "edges.parquet")
    contents, _ = create(tmp_path / "a", SourceTables(tmp_path / "nodes.csv", tmp_path / "edges.parquet"))
    assert contents.ids.tolist() == [-7, 0, 12]
    assert contents.edge_index.tolist() == [[0, 1, 2, 2], [2, 2, 0, 1]]


def test_ids_that_are_whole_numbers_as_floats_in_one_table_become_numbers(tmp_path, source):
    nodes = accounts(account=list(range(COUNT)))
    edges = transfers(**{"from": [float(at) for at in range(COUNT)], "to": [0] * COUNT, "bank": None})
    edges["amount"] = edges["amount"][:COUNT]
    contents, _ = create(
        tmp_path / "north", source(nodes, edges, columns={each: ROLES[each] for each in ROLES if each != "owner"})
    )
    assert contents.ids.tolist() == list(range(COUNT))


def test_ids_of_mixed_types_become_texts(tmp_path):
    parquet.write_table(pa.table({"id": [1, 2], "x": [1.0, 2.0], "label": [0, 1]}), tmp_path / "nodes.parquet")
    columns = {"source": ["1", "X9"], "target": ["2", "1"], "owner": [None, "south"]}
    parquet.write_table(pa.table(columns), tmp_path / "edges.parquet")
    contents, _ = create(tmp_path / "a", SourceTables(tmp_path / "nodes.parquet", tmp_path / "edges.parquet"))
    assert contents.hashed
    assert len(contents.border) == 1


def test_features_may_have_names_of_edge_columns(tmp_path, source):
    nodes = accounts(
        source=["web", "desk"] * (COUNT // 2), target=[1.5 * at for at in range(COUNT)], weight=[1] * COUNT
    )
    roles = {"id": "account", "label": "risk"}
    columns = transfers()
    edges = {"source": columns["from"][:COUNT], "target": columns["to"][:COUNT], "weight": columns["amount"][:COUNT]}
    contents, _ = create(tmp_path / "north", source(nodes, edges, columns=roles))
    kinds = {name: kind.name for name, kind in contents.settings.feature_columns().items()}
    assert kinds == {
        **dict.fromkeys(("balance", "target", "weight"), "number"),
        **dict.fromkeys(("sector", "source"), "category"),
    }


def test_party_is_not_its_own_partner(tmp_path, source):
    edges = transfers(bank=["north"] * COUNT + ["south", "south"])
    contents, _ = create(tmp_path / "north", source(accounts(), edges))
    assert contents.settings.partners == ["south"]
    assert contents.edge_index.size(1) == 2 * COUNT


def test_collection_of_graphs(tmp_path, source):
    draft = collection_draft()
    nodes = {name: draft.tables[NODES][name] for name in ("graph", "id", "age", "kind")}
    nodes = {**nodes, "age": [1.0 * at for at in range(15)]}
    graphs = {"compound": draft.tables[GRAPHS]["id"], "active": draft.tables[GRAPHS]["label"]}
    nodes["compound"] = nodes.pop("graph")
    roles = {"graph": "compound", "label": "active"}
    contents, _ = create(tmp_path / "lab", source(nodes, draft.tables[EDGES], graphs, columns=roles))
    assert contents.settings.level == "graph"
    assert contents.items == 6
    assert contents.batch.bincount().tolist() == [2, 3] * 3


WIRES = {"circuit": list("aabbb"), "pin": ["a0", "a1", "b0", "b1", "b2"], "other": ["a1", "a2", "b1", "b2", "b0"]}
CIRCUITS = {"circuit": ["a", "b"], "state": ["works", "fails"]}
WIRED = {"columns": {"graph": "circuit", "label": "state", "source": "pin", "target": "other"}, "degrees": True}


def test_nodes_of_graphs_may_be_the_ends_of_edges(tmp_path, source):
    contents, _ = create(tmp_path / "lab", source(None, WIRES, CIRCUITS, **WIRED))
    assert contents.settings.level == "graph"
    assert contents.batch.bincount().tolist() == [3, 3]
    assert contents.edge_index.size(1) == 2 * 5
    assert set(contents.settings.columns) == {"degree"}


@pytest.mark.parametrize("number", [str, int])
def test_each_graph_may_number_its_nodes_anew(tmp_path, source, number):
    wires = {
        "circuit": list("aabbb"),
        **{end: [*map(number, ids)] for end, ids in {"pin": "01012", "other": "12120"}.items()},
    }
    contents, problems = create(tmp_path / "lab", source(None, wires, CIRCUITS, **WIRED))
    assert contents.batch.bincount().tolist() == [3, 3]
    ids = parquet.read_table(tmp_path / "lab" / NODES).column("id").to_pylist()
    assert set(ids) == {f"{graph}/{pin}" for graph in "ab" for pin in "012"}
    due = "ids stand in several graphs, such as '0', so each graph has nodes of its own: 'a/0'"
    assert [due in problem for problem in problems] == [True]
    other, _ = create(tmp_path / "other", source(None, WIRES, CIRCUITS, **WIRED))
    assert contents.edge_index.equal(other.edge_index)


def test_graphs_with_a_table_of_nodes_may_number_these_anew(tmp_path, source):
    pins = {"circuit": list("aaabbb"), "pin": list("012012"), "volt": [1.0, 2.0, 3.0, 4.0, 5.0, 7.0]}
    wires = {"circuit": list("aabbb"), "pin": list("01012"), "other": list("12120")}
    given = {"columns": {**WIRED["columns"], "id": "pin"}}
    contents, problems = create(tmp_path / "lab", source(pins, wires, CIRCUITS, **given))
    other, _ = create(tmp_path / "other", source(None, WIRES, CIRCUITS, **WIRED))
    assert contents.edge_index.equal(other.edge_index)
    assert contents.batch.bincount().tolist() == [3, 3]
    assert sum("ids stand in several graphs, such as '0'" in problem for problem in problems) == 1
    del wires["circuit"]
    with pytest.raises(
        IsthmusError, match=r"stand in several graphs, such as '0': give each node .* a column 'circuit'"
    ):
        create(tmp_path / "none", source(pins, wires, CIRCUITS, **given))
    assert not (tmp_path / "none").exists()


def test_texts_that_may_be_lists_are_told_what_lists_need(tmp_path, source):
    pins = {"pin": [*range(30)], "tags": [f"t{at};t{at + 1}" for at in range(30)], "state": ["on", "off"] * 15}
    wires = {"pin": [0, 1], "other": [1, 2]}
    columns = {"id": "pin", "label": "state", "source": "pin", "target": "other"}
    with pytest.raises(
        IsthmusError, match="'tags' has 30 different texts, most with ';': if they are lists, make them"
    ):
        create(tmp_path / "lab", source(pins, wires, columns=columns))


def test_graphs_with_default_names_may_number_their_nodes_anew(tmp_path, source):
    nodes = {"graph": list("aabb"), "id": [0, 1, 0, 1], "volt": [1.0, 2.0, 3.0, 4.0]}
    edges = {"graph": list("ab"), "source": [0, 0], "target": [1, 1]}
    graphs = {"graph": list("ab"), "label": ["works", "fails"]}
    contents, _ = create(tmp_path / "lab", source(nodes, edges, graphs, columns={}))
    assert contents.batch.bincount().tolist() == [2, 2]
    with pytest.raises(IsthmusError, match=r"column 'graph' has no value in some row, .* name each edge's graph"):
        create(tmp_path / "none", source(nodes, {**edges, "graph": ["a", None]}, graphs, columns={}))
    with pytest.raises(IsthmusError, match="column 'graph' has no value"):
        create(tmp_path / "none", source({**nodes, "graph": ["a", "a", "b", None]}, edges, graphs, columns={}))
    with pytest.raises(IsthmusError, match="name the columns of an edge's ends with --source COLUMN"):
        create(
            tmp_path / "none",
            source(nodes, {"graph": list("ab"), "from": [0, 0], "target": [1, 1]}, graphs, columns={}),
        )


@pytest.mark.parametrize(
    ("column", "due"), [("id", "column 'id' .*whole numbers or texts"), ("graph", "'id' repeats an earlier id")]
)
def test_ids_of_graphs_that_are_no_ids_are_named(tmp_path, column, due):
    nodes = {"graph": list("aabb"), "id": [0, 1, 0, 1], "volt": [1.0, 2.0, 3.0, 4.0]}
    edges = {"graph": list("ab"), "source": [0, 0], "target": [1, 1]}
    tables = {
        "nodes": {**nodes, column: [[1]] * 4},
        "edges": edges,
        "graphs": {"graph": ["a", "b"], "label": ["x", "y"]},
    }
    for name, table in tables.items():
        parquet.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    given = SourceTables(**{name: tmp_path / f"{name}.parquet" for name in tables})
    with pytest.raises(IsthmusError, match=due):
        create(tmp_path / "lab", given)


def test_a_repeated_id_within_a_graph_stays_a_problem(tmp_path, source):
    pins = {"circuit": list("aaabb"), "pin": ["a0", "a1", "a1", "b0", "b1"], "volt": [1.0, 2.0, 3.0, 4.0, 5.0]}
    wires = {"circuit": ["a", "b"], "pin": ["a0", "b0"], "other": ["a1", "b1"]}
    with pytest.raises(IsthmusError, match="column 'id' repeats an earlier id"):
        create(tmp_path / "lab", source(pins, wires, CIRCUITS, columns={**WIRED["columns"], "id": "pin"}))


@pytest.mark.parametrize(
    ("wires", "circuits", "options", "due"),
    [
        (
            {},
            {"circuit": ["a", "b", "c"], "state": ["works"] * 3},
            {},
            "graphs without an edge in edges.* have no node: c",
        ),
        ({"circuit": None}, {}, {}, "has no column 'circuit': it has pin, other"),
        (
            {"pin": None},
            {},
            {"columns": {"graph": "circuit"}},
            "has no column of each edge's source: name it with --so",
        ),
        ({}, {}, {"degrees": False}, "the nodes have no feature column: .* their degrees with --features degree"),
    ],
    ids=["no edge", "no graph", "no source", "no features"],
)
def test_edges_that_make_no_nodes_are_refused(tmp_path, source, wires, circuits, options, due):
    edges = {name: values for name, values in {**WIRES, **wires}.items() if values is not None}
    with pytest.raises(IsthmusError, match=due):
        create(tmp_path / "lab", source(None, edges, {**CIRCUITS, **circuits}, **{**WIRED, **options}))


def test_molecules(tmp_path):
    pytest.importorskip("rdkit")
    (tmp_path / "assays.csv").write_text("structure,toxic,soluble,remark\nCCO,1,0,good\nC(,0,1,\nC,,1,odd\n")
    source = SourceTables(smiles=tmp_path / "assays.csv", columns={"smiles": "structure"}, tasks=["toxic", "soluble"])
    contents, problems = create(tmp_path / "lab", source)
    assert problems == [
        "note: assays.csv: columns without a role are left out: remark",
        "note: molecules.csv, row 2: the SMILES cannot be read: the molecule is left out",
    ]
    assert contents.items == 2
    (tmp_path / "more.csv").write_text("structure,soluble,toxic\nCC,1,0\n")
    like = SourceTables(smiles=tmp_path / "more.csv", columns={"smiles": "structure"}, like=tmp_path / "lab")
    second, _ = create(tmp_path / "other", like)
    assert second.settings.tasks == ["toxic", "soluble"]
    assert second.y.tolist() == [[0, 1]]


# ---- like another party


def test_a_second_party_shares_labels_and_columns(tmp_path, source):
    create(tmp_path / "all" / "north", source(accounts(), transfers()))
    swapped = {
        name: [each.replace("A", "S") for each in transfers()[name][:COUNT]] + transfers()[name][COUNT:]
        for name in ("from", "to")
    }
    nodes = accounts(account=[f"S{at}" for at in range(COUNT)], sector=["w"] * COUNT, risk=["low"] * COUNT)
    edges = transfers(**swapped, bank=[None] * COUNT + ["north"] * 2)
    for like in ("north", "north/party.toml"):
        source_ = source(nodes, edges, like=tmp_path / "all" / like)
        contents, _ = create(tmp_path / "all" / "south", source_, force=True)
        assert contents.settings.labels == ["high", "low"]
        assert contents.settings.partners == ["north"]
        assert contents.y.tolist() == [1] * COUNT
    problems = check_folders(tmp_path / "all")[1]
    assert [line for found in problems.values() for line in lines(found)] == []


def test_party_like_another_may_lack_the_labels(tmp_path, source):
    create(tmp_path / "north", source(accounts(), transfers()))
    nodes = {name: values for name, values in accounts().items() if name != "risk"}
    contents, problems = create(tmp_path / "new", source(nodes, transfers(), like=tmp_path / "north"), name="north")
    assert contents.y.tolist() == [-1] * COUNT
    assert "there is no column 'label': a trained model can predict this" in problems[0]
    misnamed = source(nodes | {"risks": ["low"] * COUNT}, transfers(), like=tmp_path / "north")
    with pytest.raises(IsthmusError, match="no column 'risk': did you mean 'risks'"):
        create_folder(tmp_path / "other", misnamed)


def test_labels_of_one_class_are_noted(tmp_path, source):
    _, problems = create(tmp_path / "north", source(accounts(risk=["low"] * COUNT), transfers()))
    assert "note: nodes.parquet: all labels are 'low': with one class there is nothing to tell apart" in problems


def test_a_column_cannot_be_the_label_and_ignored(tmp_path, source):
    roles = {"label": "sector"}
    with pytest.raises(IsthmusError, match="column 'sector' is named by --label and by --ignore: leave one out"):
        create(tmp_path / "north", source(accounts(), transfers(), columns=roles, ignore=["sector"]))


def test_like_takes_declared_settings(tmp_path, source):
    columns = {
        "balance": {"kind": "number", "scale": "none"},
        "sector": {"kind": "category", "values": ["y", "x", "z"]},
    }
    graph_draft().with_settings(labels=["none", "low", "high"], columns=columns, directed=True).write(
        tmp_path / "first"
    )
    contents, _ = create(tmp_path / "second", source(accounts(), transfers(), like=tmp_path / "first"))
    first, _ = read_settings(tmp_path / "first")
    assert contents.settings.common == first.common
    assert not contents.settings.directed  # what a party's own lines mean is its own


def test_labels_outside_the_list_of_the_other_party_are_refused(tmp_path, source):
    columns = {"balance": {"kind": "number"}, "sector": {"kind": "category"}}
    graph_draft().with_settings(labels=["low"], columns=columns).write(tmp_path / "first")
    with pytest.raises(UnusableFolder) as caught:
        create_folder(tmp_path / "second", source(accounts(), transfers(), like=tmp_path / "first"))
    (found,) = caught.value.problems[tmp_path / "second"]
    assert str(found) == (
        f"nodes.parquet, {MANY}: label 'high' is not one of low: correct it, or declare it at all parties "
        "(in party.toml, or isthmus party new --classes)"
    )


@pytest.mark.parametrize(
    ("changed", "due"),
    [
        (
            {"risk": ["low", None] * (COUNT // 2)},
            "its labels are numbers from 0 to 1, and column 'risk' holds texts, such",
        ),
        (
            {"risk": [0, 1] * (COUNT // 2), "owner": ["x"] * COUNT},
            " has no column 'owner': leave it out with --ignore own",
        ),
    ],
)
def test_what_another_party_has_no_place_for_is_said_of_the_tables(tmp_path, source, changed, due):
    create(tmp_path / "first", source(accounts(risk=[0, 1] * (COUNT // 2)), transfers()))
    with pytest.raises(IsthmusError, match=f"^--like .*first.*{due}"):
        create_folder(tmp_path / "second", source(accounts(**changed), transfers(), like=tmp_path / "first"))


def test_numeric_labels_are_names_if_the_other_party_says_so(tmp_path, source):
    columns = {"balance": {"kind": "number"}, "sector": {"kind": "category"}}
    graph_draft().with_settings(labels=["2", "1"], columns=columns).write(tmp_path / "first")
    nodes = accounts(risk=[1 + at % 2 for at in range(COUNT)])
    contents, _ = create(tmp_path / "second", source(nodes, transfers(), like=tmp_path / "first"))
    assert contents.y.tolist() == [1, 0] * (COUNT // 2)


@pytest.mark.parametrize(
    ("draft", "options", "due"),
    [
        (collection_draft(), {}, "that party holds a collection of graphs, these tables do not"),
        (graph_draft(), {"tasks": ["balance"]}, "its tasks are none: remove --task"),
        (graph_draft().with_settings(classes=3), {}, "party.toml: give one of labels, classes and tasks"),
        (None, {}, "party.toml: No such file or directory"),
    ],
)
def test_unusable_like_is_refused(tmp_path, source, draft, options, due):
    (tmp_path / "first").mkdir()
    if draft is not None:
        draft.write(tmp_path / "first")
    with pytest.raises(IsthmusError, match=f"--like .*first: .*{due}"):
        create_folder(tmp_path / "second", source(accounts(), transfers(), like=tmp_path / "first", **options))
    assert not (tmp_path / "second").exists()


# ---- what is refused


def roles_without(role):
    """Return the roles without this one."""
    return {"columns": {each: column for each, column in ROLES.items() if each != role}}


MANY = "rows 2, 4, 6, 8, 10, 12, 14, 16 and 4 more"


@pytest.mark.parametrize(
    ("nodes", "edges", "options", "due"),
    [
        (
            {"risk": None},
            {},
            roles_without("label"),
            "there is no label: name the column with --label, take the classes from another party with --like",
        ),
        (
            {"risk": [None] * COUNT},
            {},
            {},
            "there is no label: name the column with --label, take the classes from another party with --like",
        ),
        (
            {"risk": [at / 2 for at in range(COUNT)]},
            {},
            {},
            "label 'risk' has 24 different numbers in 24 rows: for regression give --task risk in place of --label",
        ),
        ({"risk": [-1] * COUNT}, {}, {}, "label -1 is not a whole number from 0 to 0"),
        (
            {"risk": [10**15] * COUNT},
            {},
            {},
            "1 different number in 24 rows, of which the largest is 1e+15",
        ),
        ({}, {}, {"columns": {**ROLES, "id": "acount"}}, "no column 'acount': did you mean 'account'?"),
        ({}, {}, {"columns": {**ROLES, "id": "zzz"}}, "no column 'zzz': it has account, balance, sector, risk"),
        ({}, {}, {"ignore": ["riks"]}, "--ignore riks: no table has this column: did you mean 'risk'?"),
        ({"id": list(range(COUNT))}, {}, {}, "has two columns for 'id': leave one out with --ignore"),
        ({"balance": None, "sector": None}, {}, {}, "the nodes have no feature column: add at least one"),
        ({"balance": [None] * COUNT}, {}, {}, "column 'balance' has no value in any row: leave it out with --ignore"),
        (
            {"account": ["A1"] * COUNT},
            {},
            {},
            "9 and 15 more: column 'id' repeats an earlier id: make ids unique",
        ),
        (
            {},
            {"bank": None},
            roles_without("owner"),
            "edges.parquet, rows 25, 26: source or target is not in nodes.parquet: add the node",
        ),
        (
            {},
            {"bank": [3] * (COUNT + 2)},
            {},
            "the owner column holds values of type int64: it must hold names",
        ),
        (
            {},
            None,
            {},
            "a party has nodes and edges: give both --nodes and --edges (whose table may have no rows), or --smiles",
        ),
    ],
    ids=range(15),
)
def test_unusable_tables_are_refused_and_nothing_is_written(tmp_path, source, nodes, edges, options, due):
    origin = source(accounts(**nodes), None if edges is None else transfers(**edges), **options)
    before = tree(tmp_path)
    with pytest.raises(IsthmusError) as caught:
        create_folder(tmp_path / "deep" / "north", origin)
    assert due in str(caught.value)
    assert "\n" not in str(caught.value)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("column", "count"),
    [([f"person {at}" for at in range(COUNT)], 24), ([f"person {at % 13}" for at in range(COUNT)], 13)],
)
def test_names_are_not_taken_for_categories(tmp_path, source, column, count):
    with pytest.raises(
        IsthmusError, match=rf"column 'holder' has {count} different texts, .* leave it out with --ignore holder"
    ):
        create_folder(tmp_path / "north", source(accounts(holder=column), transfers()))
    assert not (tmp_path / "north").exists()
    create(tmp_path / "fine", source(accounts(holder=[f"town {at % 12}" for at in range(COUNT)]), transfers()))


def test_a_forgotten_id_is_asked_for(tmp_path, source):
    columns = {role: column for role, column in ROLES.items() if role != "id"}
    tables = source(accounts(), transfers(), columns=columns)
    with pytest.raises(IsthmusError, match=r"column 'account' has a different text in each row, .* id\? --id account"):
        create_folder(tmp_path / "north", tables)
    again = source(accounts(account=["A0"] * 2 + [f"A{at}" for at in range(2, COUNT)]), transfers(), columns=columns)
    with pytest.raises(IsthmusError, match=r"column 'account' has 23 different texts, .* --ignore account"):
        create_folder(tmp_path / "north", again)


def test_more_than_a_hundred_texts_are_never_categories(tmp_path):
    count = 2_000
    nodes = {"id": list(range(count)), "street": [f"street {at % 101}" for at in range(count)], "label": [0] * count}
    parquet.write_table(pa.table(nodes), tmp_path / "nodes.parquet")
    parquet.write_table(pa.table({"source": [0], "target": [1]}), tmp_path / "edges.parquet")
    source = SourceTables(tmp_path / "nodes.parquet", tmp_path / "edges.parquet")
    with pytest.raises(IsthmusError, match="column 'street' has 101 different texts"):
        create_folder(tmp_path / "out", source)
    nodes["street"] = [f"street {at % 100}" for at in range(count)]
    parquet.write_table(pa.table(nodes), tmp_path / "nodes.parquet")
    create(tmp_path / "out", source)


def test_names_are_not_taken_for_labels(tmp_path):
    count = 150
    nodes = {"id": list(range(count)), "x": [1.0] * count, "label": [f"person {at}" for at in range(count)]}
    parquet.write_table(pa.table(nodes), tmp_path / "nodes.parquet")
    parquet.write_table(pa.table({"source": [0], "target": [1]}), tmp_path / "edges.parquet")
    with pytest.raises(IsthmusError, match="the label column has 150 different texts, which look like names"):
        create_folder(tmp_path / "out", SourceTables(tmp_path / "nodes.parquet", tmp_path / "edges.parquet"))


def test_dates_are_features(tmp_path, source):
    since = pa.array([None, *([86_400] * (COUNT - 1))], pa.timestamp("s"))
    contents, _ = create(tmp_path / "north", source(accounts(since=since), transfers()))
    assert contents.settings.columns["since"] == {"kind": "date", "missing": "mean"}


def test_problems_name_the_rows_of_the_source(tmp_path, source):
    risk = ["low", "high"] * (COUNT // 2)
    split = [None] * COUNT
    split[4], split[17], split[20] = "trian", "train", "test"
    risk[17] = None
    balance = [float(at) for at in range(COUNT)]
    ends = list(transfers()["to"])
    ends[11] = "A99"
    origin = source(accounts(risk=risk, split=split, balance=balance), transfers(to=ends))
    with pytest.raises(UnusableFolder) as caught:
        create_folder(tmp_path / "north", origin)
    assert lines(caught.value.problems[tmp_path / "north"]) == [
        "nodes.parquet, row 5: column 'split' must be empty or one of train, val, test, not 'trian'",
        "nodes.parquet, row 18: the row is in a split but has no label: add a label, or leave the split empty",
        "note: nodes.parquet: no row is in the split 'val'",
        "edges.parquet, row 12: source or target is not in nodes.parquet: add the node, or name its party in 'owner'",
    ]
    assert str(caught.value).startswith("nothing was written: nodes.parquet, row 5: ")


@pytest.mark.parametrize("name", ["a\nb", "\udcff", "a/b", ".."])
def test_invalid_name_is_refused(tmp_path, source, name):
    origin = source(accounts(), transfers())
    before = tree(tmp_path)
    with pytest.raises(IsthmusError, match="name") as caught:
        create_folder(tmp_path / "north", origin, name=name)
    assert str(caught.value).isprintable()
    assert tree(tmp_path) == before


def test_a_table_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "nodes.parquet").write_bytes(b"garbage")
    with pytest.raises(IsthmusError, match=r"cannot read .*nodes\.parquet"):
        create_folder(tmp_path / "north", SourceTables(tmp_path / "nodes.parquet", tmp_path / "edges.parquet"))
    (tmp_path / "nodes.csv").write_text("id,x,label\n1,1,0\n")
    with pytest.raises(IsthmusError, match=r"edges\.csv does not exist"):
        create_folder(tmp_path / "north", SourceTables(tmp_path / "nodes.csv", tmp_path / "edges.csv"))
    assert not (tmp_path / "north").exists()


def test_molecules_with_other_tables_are_refused(tmp_path):
    source = SourceTables(nodes=tmp_path / "a.csv", edges=tmp_path / "b.csv", smiles=tmp_path / "c.csv")
    with pytest.raises(IsthmusError, match="give --smiles alone"):
        create_folder(tmp_path / "north", source)


# ---- all of it or nothing


@pytest.mark.parametrize(
    "step", ["isthmus.data.folder.from_tables.write_table", "isthmus.data.folder.from_tables.check_folders"]
)
def test_interruption_leaves_no_files(tmp_path, source, monkeypatch, step):
    origin = source(accounts(), transfers())
    before, calls = tree(tmp_path), []

    def interrupt(*_):
        calls.append(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(step, interrupt)
    with pytest.raises(KeyboardInterrupt):
        create_folder(tmp_path / "deep" / "north", origin)
    assert calls
    assert tree(tmp_path) == before


def test_existing_folder_is_replaced_only_with_force(tmp_path, source):
    origin = source(accounts(), transfers())
    create(tmp_path / "north", origin)
    with pytest.raises(IsthmusError, match="exists: choose another folder"):
        create_folder(tmp_path / "north", origin)
    bad = source(accounts(risk=[at / 2 for at in range(COUNT)]), transfers())
    with pytest.raises(IsthmusError, match="24 different numbers in 24 rows: for regression give --task risk"):
        create_folder(tmp_path / "north", bad, force=True)
    assert check_folder(tmp_path / "north")[0].items == COUNT


def test_the_tables_inside_a_folder_are_never_lost(tmp_path, source):
    """The tables lie in the folder that is created from them."""
    create(tmp_path / "north", source(accounts(), transfers()))
    csv.write_csv(pa.table(accounts()), tmp_path / "north" / "accounts.csv")
    with pytest.raises(IsthmusError, match="holds other files than party folders"):
        create_folder(tmp_path / "north", source(accounts(), transfers()), force=True)
    assert (tmp_path / "north" / "accounts.csv").exists()


# ---- lists and degrees


@pytest.fixture
def games(tmp_path):
    """Four players with lists, as Parquet; returns a function that makes their source."""

    def write(lists, **options):
        columns = {"games": lists} if isinstance(lists, pa.Array | list) else lists
        parquet.write_table(pa.table({"id": [1, 2, 3, 4], "label": [0, 1, 0, 1], **columns}), tmp_path / "n.parquet")
        parquet.write_table(pa.table({"source": [1, 2], "target": [2, 3]}), tmp_path / "e.parquet")
        return SourceTables(tmp_path / "n.parquet", tmp_path / "e.parquet", **options)

    return write


def features_of(contents):
    """The features of a party, dense, and which of them follow from the edges."""
    x, structural = Encoding(
        contents.settings.feature_columns(), {name: {} for name in contents.settings.columns}
    ).encode(contents)
    return x.to_dense().tolist(), structural.tolist()


RAGGED = [[3, 0, 3], [], [1], [2, 3]]
COUNTED = [[1, 0, 0, 2], [0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1]]


def test_lists_of_different_lengths_are_a_bag(tmp_path, games):
    contents, problems = create(tmp_path / "a", games(RAGGED))
    assert features_of(contents) == (COUNTED, [])
    assert problems == [
        "note: n.parquet: column 'games' holds lists of whole numbers: it is a bag of width 4, its largest number "
        "plus 1 (for a larger one: --bag games=WIDTH)"
    ]


def test_a_bag_may_be_named_with_its_width(tmp_path, games):
    even = [[3, 0], [1, 1], [2, 3], [0, 1]]
    assert create(tmp_path / "a", games(even))[0].settings.columns["games"] == {"kind": "vector", "width": 2}
    for width, due in ((None, 4), (6, 6)):
        contents, problems = create(tmp_path / f"b{due}", games(even, bags={"games": width}))
        assert (contents.settings.columns["games"], problems) == ({"kind": "bag", "width": due}, [])
    with pytest.raises(
        UnusableFolder, match=r"rows 1, 3: column 'games' .* outside 0 to 1: .*=WIDTH\); the largest is 3"
    ):
        create_folder(tmp_path / "c", games(even, bags={"games": 2}))


def test_a_bag_may_come_in_two_columns(tmp_path, games):
    columns = {"games.at": [[3, 0], [], [1], [2]], "games.value": [[0.5, 1.0], [], [2.0], [4.0]]}
    contents, _ = create(tmp_path / "a", games(columns))
    assert contents.settings.columns == {"games": {"kind": "bag", "width": 4}}
    assert features_of(contents)[0] == [[1, 0, 0, 0.5], [0] * 4, [0, 2, 0, 0], [0, 0, 4, 0]]


@pytest.mark.parametrize("lists", [[[1], None, [2, 3], [1]], [["go"], None, ["chess", "go"], []]])
def test_a_missing_list_is_read_as_empty(tmp_path, games, lists):
    contents, problems = create(tmp_path / "a", games({"games": lists}))
    assert any("column 'games': 1 of 4 rows have no list: they are read as empty lists" in each for each in problems)
    rows = features_of(contents)[0]
    assert [any(row) for row in rows] == [True, False, True, bool(lists[3])]


def test_lists_of_texts_are_bags_of_the_words_of_all_parties(tmp_path, games):
    lists = {"north": [["go", "chess", "go"], [], ["chess"], ["go"]], "south": [["bridge"], ["go"], ["chess"], []]}
    for name, each in lists.items():
        written = games({"games": pa.array(each, pa.list_(pa.string()))})
        written.nodes.rename(tmp_path / f"{name}.parquet")
    both = SourceTables(tmp_path / "*.parquet", tmp_path / "edges" / "*.parquet")
    for name in lists:
        (tmp_path / "edges").mkdir(exist_ok=True)
        shutil.copy(written.edges, tmp_path / "edges" / f"{name}.parquet")
    written.edges.unlink()
    create_folders(tmp_path / "all", both)
    contents, _ = check_folder(tmp_path / "all" / "north")
    words = ["bridge", "chess", "go"]
    assert contents.settings.columns["games"] == {"kind": "bag", "width": 3, "words": words}
    assert features_of(contents)[0] == [[0, 1, 2], [0] * 3, [0, 1, 0], [0, 0, 1]]
    new = games({"games": [["go", "poker"], [], ["chess"], ["whist"]]}, like=tmp_path / "all" / "north")
    contents, problems = create(tmp_path / "new", new)
    assert features_of(contents)[0] == [[0, 0, 1], [0] * 3, [0, 1, 0], [0] * 3]
    assert problems[0].endswith(
        "column 'games': 2 of 4 rows have texts that are not among the 3 of --like, such as 'poker': they are left out"
    )
    with pytest.raises(IsthmusError, match="--bag games=9: the texts of its lists give the width"):
        create_folder(tmp_path / "c", games({"games": [["go"]] * 4}, bags={"games": 9}))


def test_a_bag_of_another_party_has_its_width(tmp_path, games):
    create(tmp_path / "a", games(RAGGED, bags={"games": 9}))
    contents, problems = create(tmp_path / "b", games([[3], [1], [2], [8]], like=tmp_path / "a"))
    assert (contents.settings.columns["games"]["width"], problems) == (9, [])
    with pytest.raises(UnusableFolder, match=r"row 4: column 'games' has a position outside 0 to 8"):
        create_folder(tmp_path / "c", games([[3], [1], [2], [9]], like=tmp_path / "a"))
    with pytest.raises(IsthmusError, match="give --bag without a width"):
        create_folder(tmp_path / "c", games(RAGGED, like=tmp_path / "a", bags={"games": 9}))


@pytest.mark.parametrize(
    ("lists", "bags", "due"),
    [
        (
            [[0.5], [], [1.5, 2.0], [1.0]],
            {},
            "'games' holds lists of different lengths: make them one length, give a few numbers of each",
        ),
        ([[0.5], [1.0], [1.5], [1.0]], {"games": None}, "a bag needs lists of whole numbers"),
        ([[1], [-1], [2, 3], [1]], {}, "column 'games', row 2: a bag has positions from 0"),
        ([[1], [2], [2, None], [1]], {}, "column 'games', row 3: a bag has positions from 0"),
        ([[1], [2], [2, 10**9], [1]], {}, "has the number 1,000,000,000, a bag has positions below 16,777,216"),
        (RAGGED, {"game": None}, "--bag game: the nodes have no such column: did you mean 'games'?"),
        ({"games": RAGGED, "games.at": RAGGED}, {}, "columns 'games' and 'games.at' are one bag"),
    ],
)
def test_lists_that_are_no_bag_are_refused_with_the_remedy(tmp_path, games, lists, bags, due):
    with pytest.raises(IsthmusError) as caught:
        create_folder(tmp_path / "a", games(lists, bags=bags))
    assert due in str(caught.value)
    assert not (tmp_path / "a").exists()


def test_nodes_without_features_get_their_degrees(tmp_path, games):
    contents, _ = create(tmp_path / "a", games({}, degrees=True))
    x, structural = features_of(contents)
    assert structural == list(range(33))
    assert [row[1:].index(1.0) for row in x] == [1, 2, 1, 0]
    assert [row[0] for row in x] == pytest.approx([math.log(2), math.log(3), math.log(2), 0.0])
    second, _ = create(tmp_path / "b", games({}, like=tmp_path / "a", directed=True))
    assert [row[1:].index(1.0) for row in features_of(second)[0]] == [0, 1, 1, 0]


def test_degrees_beside_other_features_count_edges_across_the_border(tmp_path, source):
    contents, _ = create(tmp_path / "north", source(accounts(sector=None), transfers(), degrees=True))
    assert list(contents.settings.columns) == ["balance", "degree"]
    degree = [
        row.index(1.0, 1) - 1 for row in parquet.read_table(tmp_path / "north" / NODES).column("degree").to_pylist()
    ]
    assert degree[:5] == [2, 2, 3, 3, 2]
    with pytest.raises(IsthmusError, match="have a column 'degree' already: leave it out with --ignore degree"):
        create_folder(tmp_path / "b", source(accounts(degree=[1.0] * COUNT), transfers(), degrees=True))


def test_molecules_have_features_of_their_own(tmp_path):
    (tmp_path / "m.csv").write_text("smiles,label\nC,0\n")
    with pytest.raises(IsthmusError, match="molecules have features of their own"):
        create_folder(tmp_path / "a", SourceTables(smiles=tmp_path / "m.csv", degrees=True))


# ---- classes and ids that the tables do not show


def test_classes_may_be_declared_by_name_or_number(tmp_path, source):
    origin = source(accounts(), transfers(), classes=["low", "high", "rare"])
    first, _ = create(tmp_path / "first", origin)
    assert first.settings.labels == ["low", "high", "rare"]
    risk = ["rare", "high"] * (COUNT // 2)
    second, _ = create(tmp_path / "second", source(accounts(risk=risk), transfers(), like=tmp_path / "first"))
    assert second.y.tolist() == [2, 1] * (COUNT // 2)
    numbers, _ = create(tmp_path / "third", source(accounts(risk=[0, 1] * (COUNT // 2)), transfers(), classes=5))
    assert numbers.settings.classes == 5


@pytest.mark.parametrize(
    ("options", "due"),
    [
        ({"classes": 3}, "--classes 3: labels are texts: give their names, --classes high,low"),
        ({"classes": ["low"]}, "label 'high' is not one of low"),
        ({"ids": "mine"}, "ids"),
        ({"ids": "own"}, "a party with partners needs shared ids"),
    ],
)
def test_declarations_that_do_not_fit_are_refused(tmp_path, source, options, due):
    with pytest.raises(IsthmusError) as caught:
        create_folder(tmp_path / "north", source(accounts(), transfers(), **options))
    assert due in str(caught.value)
    assert not (tmp_path / "north").exists()


def test_classes_are_not_given_beside_another_party(tmp_path, source):
    create(tmp_path / "first", source(accounts(), transfers()))
    with pytest.raises(IsthmusError, match="leave out --classes"):
        create_folder(tmp_path / "second", source(accounts(), transfers(), like=tmp_path / "first", classes=["a"]))


def test_own_ids_are_taken_from_another_party(tmp_path, source):
    plain = {"columns": {role: column for role, column in ROLES.items() if role != "owner"}}
    inside = {name: values[:COUNT] for name, values in transfers(bank=None).items()}
    first, _ = create(tmp_path / "first", source(accounts(), inside, ids="own", **plain))
    second, _ = create(tmp_path / "second", source(accounts(), inside, like=tmp_path / "first", **plain))
    assert (first.ids, second.ids) == (None, None)


def test_a_column_of_numbers_may_be_a_weight(tmp_path, source):
    columns = {role: column for role, column in ROLES.items() if role != "weight"}
    _, problems = create(tmp_path / "north", source(accounts(), transfers(when=["x"] * (COUNT + 2)), columns=columns))
    assert problems[0].endswith(
        "left out: amount, when (if it is the edges' weight, larger for nearer ends: --weight amount)"
    )


@pytest.mark.parametrize("weight", [None, "road_km"])
def test_distances_are_not_proposed_as_weights(tmp_path, source, weight):
    columns = {role: column for role, column in ROLES.items() if role != "weight"}
    columns |= {} if weight is None else {"weight": weight}
    edges = transfers(road_km=[2.0] * (COUNT + 2), amount=None)
    _, problems = create(tmp_path / "north", source(accounts(), edges, columns=columns))
    due = {
        None: "larger for nearer ends: --weight road_km; if it is a distance, 1 / road_km in its place)",
        "road_km": "'road_km' is named like a distance, and a larger weight means nearer: if it is one, give",
    }
    assert due[weight] in problems[0]


def test_missing_values_are_notes(tmp_path, source):
    balance = [None if at % 3 == 0 else 1.5 * at for at in range(COUNT)]
    sector = [None if at == 1 else "xyz"[at % 3] for at in range(COUNT)]
    _, problems = create(tmp_path / "north", source(accounts(balance=balance, sector=sector), transfers()))
    assert problems == [
        "note: nodes.parquet, rows 1, 4, 7, 10, 13, 16, 19, 22: column 'balance' has no value: the mean over all "
        "parties is used",
        "note: nodes.parquet, row 2: column 'sector' has no value: all its features are 0",
    ]


def test_texts_that_are_probably_mistakes_are_notes(tmp_path, source):
    table = accounts(
        balance=[*(str(at % 5) for at in range(COUNT - 2)), "?", None],
        sector=["x", "X ", *["y"] * (COUNT - 2)],
        risk=["lo", " lo", *["hi"] * (COUNT - 2)],
        size=["1", "2", "big"] * (COUNT // 3),
    )
    tables = source(table, transfers())
    assert create(tmp_path / "north", tables)[1][:3] == [
        f"note: {tables.nodes.name}: {what}"
        for what in (
            "column 'risk': ' lo' differs from 'lo' by blanks: make them equal",
            "column 'balance' is taken for texts: 22 of 23 values are numbers, but not '?': correct them if all should "
            "be numbers",
            "column 'sector': 'X ' differs from 'x' in blanks, and in upper and lower case: make them equal",
        )
    ]


@pytest.mark.parametrize(
    ("odd", "due"),
    [(["noon"], "23 of 24 values are numbers, but not 'noon'"), (["-", "n/a"] * 4, "16 of 24 .* '-', 'n/a'")],
)
def test_a_text_among_many_numbers_is_named(tmp_path, source, odd, due):
    table = accounts(balance=[*(f"{at}.5e-{at}" for at in range(COUNT - len(odd))), *odd])
    with pytest.raises(IsthmusError, match=f"column 'balance': {due}.*: correct them"):
        create_folder(tmp_path / "north", source(table, transfers()))


def test_amounts_and_ids_are_told_from_numbers_with_odd_cells(tmp_path, source):
    """Although most cells of each are numbers."""
    amounts = [f"{at}" if at % 3 else f"{at},4{at % 10}4.5" for at in range(COUNT)]
    with pytest.raises(IsthmusError, match="looks like numbers with commas between thousands"):
        create_folder(tmp_path / "amounts", source(accounts(balance=amounts), transfers()))
    lists = [f"{at};{at + 1}" if at % 5 < 3 else f"{at}" for at in range(COUNT)]
    with pytest.raises(IsthmusError, match="different texts, most with ';': if they are lists"):
        create_folder(tmp_path / "lists", source(accounts(balance=lists), transfers()))


# ---- many parties at once


@pytest.fixture
def banks(tmp_path):
    """Write tables of three banks; the second lacks a class, the third has missing and longer values."""

    def write(**third):
        for at, name in enumerate(("a", "b", "c")):
            own = {
                "account": [f"{name}{row}" for row in range(COUNT)],
                "risk": ["low", ["high", "low", "rare"][at]] * (COUNT // 2),
                "sector": None,
                "words": [[row % 3, at] for row in range(COUNT)],
            }
            own |= third if at == 2 else {}
            ends = {"from": [f"{name}0"], "to": [f"{name}1"], "amount": [2.0], "bank": None}
            (tmp_path / "in" / name).mkdir(parents=True, exist_ok=True)
            parquet.write_table(pa.table(accounts(**own)), tmp_path / "in" / name / "nodes.parquet")
            parquet.write_table(pa.table(transfers(**ends)), tmp_path / "in" / name / "edges.parquet")
        inside = tmp_path / "in" / "*"
        columns = {role: column for role, column in ROLES.items() if role != "owner"}
        return SourceTables(inside / "nodes.parquet", inside / "edges.parquet", columns=columns)

    return write


def test_a_pattern_makes_a_folder_for_each_match_with_the_same_settings(tmp_path, banks):
    balance = [None, *range(COUNT - 1)]
    words = [[9] * (row % 2) for row in range(COUNT)]
    origin = banks(balance=balance, words=words)
    assert is_pattern(origin)
    notes = {folder.name: lines(each) for folder, each in create_folders(tmp_path / "out", origin).items()}
    assert list(notes) == ["a", "b", "c", "out"]
    assert (notes["a"], notes["b"]) == ([], [])
    assert [line.startswith("note: nodes.parquet: column 'words' holds lists") for line in notes["out"]] == [True]
    assert notes["c"] == [
        "note: nodes.parquet, row 1: column 'balance' has no value: the mean over all parties is used"
    ]
    contents, note = read_folders(tmp_path / "out")
    assert [each.settings.labels for each in contents] == [["high", "low", "rare"]] * 3
    assert [each.settings.columns["words"] for each in contents] == [{"kind": "bag", "width": 10}] * 3
    assert all(each.settings.columns["balance"] == {"kind": "number", "missing": "mean"} for each in contents)
    assert note.startswith("Note: c: nodes.parquet, row 1: ")


def test_a_column_of_one_party_can_be_left_out(tmp_path, banks):
    with pytest.raises(IsthmusError, match=r"party 'c' has a column 'note', .* leave it out with --ignore note"):
        create_folders(tmp_path / "out", banks(note=["x"] * COUNT))
    create_folders(tmp_path / "out", replace(banks(note=["x"] * COUNT), ignore=["note"]))
    assert "note" not in parquet.read_schema(tmp_path / "out" / "c" / NODES).names
    with pytest.raises(IsthmusError, match=r"--ignore nota: no table has this column: did you mean 'note'\?"):
        create_folders(tmp_path / "again", replace(banks(note=["x"] * COUNT), ignore=["note", "nota"]))


@pytest.mark.parametrize(
    ("third", "due"),
    [
        (
            {"risk": ["low", None] * (COUNT // 2), "extra": [1] * COUNT},
            "party 'c' has a column 'extra', party 'a' has none: leave it out with --ignore extra",
        ),
        (
            {"balance": ["1.5", None, "much", *["2"] * (COUNT - 3)]},
            r"column 'balance' holds values of type double in .*/a/nodes\.parquet, but values of type string in "
            r".*/c/nodes\.parquet \(row 3: 'much'\): make the types equal",
        ),
        (
            {"risk": [0, 1] * (COUNT // 2)},
            r"column 'risk' holds values of type string in .*/a/nodes\.parquet \(row 1: 'low'\), but values of type "
            r"int64 in .*/c/nodes\.parquet: make",
        ),
        ({"account": ["c1"] * COUNT}, "nothing was written: c: nodes.parquet"),
    ],
)
def test_tables_of_parties_that_do_not_fit_are_refused(tmp_path, banks, third, due):
    with pytest.raises(IsthmusError, match=due) as caught:
        create_folders(tmp_path / "out", banks(**third))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "due"),
    [
        ({"nodes": "in/*/*.parquet"}, "a pattern has one"),
        ({"nodes": "in/*/none.csv"}, "matches no file"),
        ({"edges": "in/*/edge?.parquet"}, "matches no file"),
        ({"edges": "in/a*/edges.parquet"}, "has no match for party"),
        ({"edges": "in/a/edges.parquet"}, "a pattern has one"),
    ],
)
def test_patterns_that_do_not_fit_are_refused(tmp_path, banks, changes, due):
    paths = {table: tmp_path / path for table, path in changes.items()}
    with pytest.raises(IsthmusError, match=due):
        create_folders(tmp_path / "out", replace(banks(), **paths))


def test_columns_may_be_separated_by_semicolons_and_other_encodings_are_named(tmp_path, source):
    origin = source(accounts(), transfers())
    if origin.nodes.suffix == ".csv":
        text = origin.nodes.read_text().replace(",", ";")
        origin.nodes.write_text(text)
        assert create(tmp_path / "north", origin)[0].items == COUNT
        origin.nodes.write_text(text.replace("low", "g\xe9ring"), encoding="latin1")
        with pytest.raises(
            IsthmusError, match=r"nodes.csv is not UTF-8: save it as UTF-8, or iconv -f latin1 -t utf-8"
        ):
            create(tmp_path / "south", origin)
        origin.nodes.write_text(text, encoding="utf-16")
        with pytest.raises(IsthmusError, match=r"nodes.csv is not UTF-8: save it as UTF-8, or iconv -f utf-16 -t"):
            create(tmp_path / "south", origin)


def test_ends_of_edges_without_their_flags_are_asked_for(tmp_path, source):
    columns = {each: ROLES[each] for each in ROLES if each not in ("source", "target")}
    with pytest.raises(
        IsthmusError, match=r"has no column 'source' and 'target': name .* --source COLUMN and --target"
    ):
        create(tmp_path / "north", source(accounts(), transfers(), columns=columns))


def test_index_that_pandas_wrote_is_left_out_with_a_note(tmp_path, source):
    contents, problems = create(tmp_path / "north", source(accounts(__index_level_0__=range(COUNT)), transfers()))
    assert list(contents.settings.columns) == ["balance", "sector"]
    assert any(line.endswith("is the rows' index that pandas wrote: left out") for line in problems)


def test_table_without_rows_is_named(tmp_path, source):
    nodes = {column: pa.array([], pa.string()) for column in accounts()}
    with pytest.raises(IsthmusError, match="the table of the labels has no rows"):
        create(tmp_path / "north", source(nodes, transfers()))


def test_columns_without_a_name_are_left_out_with_a_note(tmp_path):
    """As `to_csv` of pandas writes them."""
    nodes = pa.table({"": range(4), "id": list("abcd"), "age": [1.5, 2.0, 3.5, 4.0], "label": ["x", "y"] * 2})
    edges = pa.table({"Unnamed: 0": [0, 1], "source": ["a", "b"], "target": ["c", "d"]})
    for name, table in (("nodes", nodes), ("edges", edges)):
        csv.write_csv(table, tmp_path / f"{name}.csv")
    source = SourceTables(nodes=tmp_path / "nodes.csv", edges=tmp_path / "edges.csv")
    _, notes = create(tmp_path / "new", source)
    assert [each for each in notes if "without a name" in each] == [
        "note: nodes.csv: a column without a name is left out", "note: edges.csv: a column without a name is left out",
    ]  # fmt: skip
    assert parquet.read_table(tmp_path / "new" / "nodes.parquet").column_names == ["id", "age", "label"]
