"""Party folders are found, compared with each other and loaded."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.data.datasets.folder import PartyFolders
from isthmus.data.folder.loading import check_folders, find_folders, read_folders
from isthmus.data.folder.settings import FILE
from isthmus.data.folder.table import EDGES, GRAPHS, NODES
from isthmus.data.ids import PLAIN, KeyedHash, uniform
from isthmus.data.party import SPLITS
from isthmus.errors import IsthmusError
from party_folders import Draft, collection_draft, graph_draft, lines, load_folders, two_drafts

KEY = b"k" * 32


def write(root: Path, *drafts: Draft) -> Path:
    for draft in drafts:
        draft.write(root / draft.settings["name"])
    return root


def reports(root: Path, hashing=PLAIN) -> dict[str, list[str]]:
    """Return the problems of each folder."""
    return {folder.name: lines(found) for folder, found in check_folders(root, hashing)[1].items()}


def load(root: Path, seed=0, train=0.6, val=0.2, key=None):
    return list(load_folders(root, key, seed=seed, train=train, val=val).parties)


# ---- which folders


def test_party_folder_is_found(tmp_path):
    folder = graph_draft().write(tmp_path / "north")
    assert find_folders(folder) == [folder]


def test_party_folders_inside_are_found_sorted_by_name(tmp_path):
    root = write(tmp_path, graph_draft("b"), graph_draft("a"), graph_draft("c"))
    (root / "notes").mkdir()
    (root / "readme.txt").write_text("hello")
    assert [each.name for each in find_folders(root)] == ["a", "b", "c"]


def test_folder_without_party_toml_is_reported(tmp_path):
    root = write(tmp_path, *two_drafts())
    (root / "south" / FILE).unlink()
    assert reports(root)["south"] == [
        "party.toml: No such file or directory: every party folder needs this file; create one with isthmus party new"
    ]
    with pytest.raises(IsthmusError, match=r"south has 1 problem: party\.toml"):
        read_folders(root)


@pytest.mark.parametrize("path", ["nowhere", "file", "empty", "x" * 300, "a\0b"])
def test_path_without_party_folders_is_a_one_line_error(tmp_path, path):
    (tmp_path / "file").write_text("hello")
    (tmp_path / "empty").mkdir()
    with pytest.raises(IsthmusError, match=r"give a |create one with isthmus party new") as caught:
        find_folders(tmp_path / path)
    assert "\n" not in str(caught.value)


def test_unreadable_folder_is_a_one_line_error(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(IsthmusError, match="Permission denied; give a folder that can be read"):
        find_folders(tmp_path)


# ---- what is wrong between folders


def test_two_good_parties_have_no_problems(tmp_path):
    assert reports(write(tmp_path, *two_drafts())) == {"north": [], "south": []}


def test_single_folder_is_not_checked_against_partners(tmp_path):
    assert reports(graph_draft().write(tmp_path / "north")) == {"north": []}


@pytest.mark.parametrize(
    ("change", "due"),
    [
        ({"labels": ["high", "low"]}, ["party.toml: 'labels' differs from that of party 'north': make them equal"]),
        ({"ignore": ["x"]}, []),
        (
            {"directed": True},
            [
                "note: edges.parquet: edges run one way, those of other parties both ways: make 'directed' equal if "
                "they mean the same"
            ],
        ),
        (
            {"columns": {**graph_draft().settings["columns"], "age": {"kind": "number", "scale": "none"}}},
            ["party.toml: 'columns' differs from that of party 'north': make them equal"],
        ),
        ({"columns": dict(reversed(graph_draft().settings["columns"].items()))}, []),
    ],
)
def test_differing_settings_are_reported(tmp_path, change, due):
    north, south = two_drafts()
    found = reports(write(tmp_path, north, south.with_settings(**change)))
    assert found == {"north": [], "south": due}


def test_of_several_parties_the_odd_one_is_named(tmp_path):
    for at, name in enumerate(("a", "b", "c")):
        draft = graph_draft(name, None, 100 * at)
        draft.settings["labels"] = ["low", "high", *(["odd"] if name == "a" else [])]
        draft.write(tmp_path / name)
    _, problems = check_folders(tmp_path)
    assert [(folder.name, each.what) for folder, own in problems.items() for each in own if each.severe] == [
        ("a", "'labels' differs from that of party 'b': make them equal")
    ]


def test_settings_of_a_folder_with_problems_of_its_own_are_compared(tmp_path):
    north, south = two_drafts()
    south.tables[NODES]["id"][1] = south.tables[NODES]["id"][0]
    found = reports(write(tmp_path, north, south.with_settings(labels=["high", "low"])))
    assert "party.toml: 'labels' differs from that of party 'north': make them equal" in found["south"]
    assert any("repeats an earlier id" in each for each in found["south"])


def test_differing_level_and_ids_are_reported(tmp_path):
    found = reports(write(tmp_path, graph_draft("a", partner=None), collection_draft("b")))
    assert "party.toml: 'level' differs from that of party 'a': make them equal" in found["b"]
    found = reports(write(tmp_path, graph_draft("b", partner=None).with_settings(ids="own")))
    assert found["b"] == ["party.toml: 'ids' differs from that of party 'a': make them equal"]


def test_weights_that_some_edges_or_parties_lack_are_noted(tmp_path):
    north, south = two_drafts()
    edges = len(north.tables[EDGES]["source"])
    north.tables[EDGES]["weight"] = [None, *[0.5] * (edges - 1)]
    south.tables[EDGES].pop("weight", None)
    found = reports(write(tmp_path, north, south))
    assert found["north"] == [
        "note: edges.parquet, row 1: column 'weight' is empty: 1 is used, fill it in if that is wrong"
    ]
    assert found["south"] == ["note: edges.parquet: no edge has a weight, at other parties edges have: 1 is used"]


def test_negative_weights_are_noted(tmp_path):
    draft = graph_draft("north", partner=None)
    draft.tables[EDGES]["weight"] = [-0.5, *[0.0] * (len(draft.tables[EDGES]["source"]) - 1)]
    assert reports(write(tmp_path, draft))["north"] == [
        "note: edges.parquet, row 1: column 'weight' is negative, and a larger weight means nearer: give 0 or more"
    ]


def test_ids_of_different_types_need_a_key(tmp_path):
    north, _ = two_drafts()
    _, south = two_drafts(ids=str)
    root = write(tmp_path, north, south)
    found = reports(root)
    what = "column 'id' holds texts, that of party 'north' whole numbers: use one type, or a key"
    assert f"nodes.parquet: {what}" in found["south"]
    assert reports(root, KeyedHash(KEY)) == {"north": [], "south": []}


def test_ids_of_graphs_are_not_compared(tmp_path):
    one, two = collection_draft("a"), collection_draft("b")
    two = two.put("id", list(range(6)), "graphs.parquet")
    two = two.put("graph", [int(each[1:]) for each in two.tables[NODES]["graph"]])
    assert reports(write(tmp_path, one, two)) == {"a": [], "b": []}


def test_two_parties_with_one_name_are_reported(tmp_path):
    draft = graph_draft(partner=None)
    draft.write(tmp_path / "a")
    draft.write(tmp_path / "b")
    what = f"party.toml: name 'north' is also used in {tmp_path / 'a'}: give each party its own name"
    assert reports(tmp_path) == {"a": [], "b": [what]}


def test_edge_to_a_node_that_its_owner_lacks_is_reported(tmp_path):
    north, south = two_drafts()
    source = list(north.tables[EDGES]["source"])
    source[8] = 111
    root = write(tmp_path, north.put("source", source, EDGES), south)
    assert reports(root) == {
        "north": ["edges.parquet, row 9: the other end is not a node of its owner 'south'"],
        "south": ["note: edges.parquet, row 9: party 'north' does not list this edge: both sides should"],
    }


def test_edge_to_an_owner_with_own_ids_is_reported(tmp_path):
    north, south = two_drafts()
    south = graph_draft("south", None, 100).with_settings(ids="own")
    found = reports(write(tmp_path, north, south))
    assert "edges.parquet, rows 9, 10: the other end is not a node of its owner 'south'" in found["north"]


def test_edge_that_only_one_side_lists_is_a_note(tmp_path):
    north, south = two_drafts()
    ends = list(south.tables[EDGES]["source"])
    ends[8] = 107  # the edge between 100 and 1
    root = write(tmp_path / "a", north, south.put("source", ends, EDGES))
    assert reports(root) == {
        "north": ["note: edges.parquet, row 9: party 'south' does not list this edge: both sides should"],
        "south": ["note: edges.parquet, row 9: party 'north' does not list this edge: both sides should"],
    }
    assert (
        reports(write(tmp_path / "b", north, south.put("source", ends, EDGES).with_settings(directed=True)))["north"]
        == []
    )
    without = graph_draft("south", None, 100)
    due = ["note: edges.parquet, rows 9, 10: party 'south' does not list this edge: both sides should"]
    assert reports(write(tmp_path / "c", north, without)) == {"north": due, "south": []}


def test_missing_partner_is_a_note(tmp_path):
    root = write(tmp_path, *two_drafts(), graph_draft("west", "east", 200))
    assert reports(root)["west"] == [
        "note: party.toml: partner 'east' is not among these folders: edges to it have no effect"
    ]
    assert [party.name for party in load(root)] == ["north", "south", "west"]
    north, south = two_drafts()
    west = graph_draft("west", "Sauth", 200)
    assert reports(write(tmp_path / "b", north, south, west))["west"][0].endswith("no effect (did you mean 'south'?)")
    found = reports(write(tmp_path / "c", north, south.put("id", [100] * 8)))
    assert found["north"] == []
    assert "repeats" in found["south"][0]


def test_node_trained_on_by_one_party_and_held_out_by_another_is_reported(tmp_path):
    one, two = graph_draft("a", None), graph_draft("b", None, 4)
    root = write(tmp_path, one, two)  # nodes 4 .. 7 are with both
    what = "is held out here, but another party trains on it: use one split, or remove the column at all parties"
    assert reports(root)["a"] == [f"nodes.parquet, rows 5, 6, 7: {what}"]
    assert not any(line.startswith("nodes") for line in reports(root)["b"])
    agreed = write(
        tmp_path / "agreed", one, two.put("split", ["val", "test", "test", None, "train", "val", "test", None])
    )
    assert reports(agreed) == {"a": [], "b": []}
    drawn = write(tmp_path / "drawn", one.without("split"), two.without("split"))
    assert reports(drawn) == {"a": [], "b": []}


def test_shared_node_with_a_split_at_one_party_only_is_reported(tmp_path):
    one, two = graph_draft("a", None), graph_draft("b", None, 6).without("split")
    what = "has no split here, but at another party that holds it: give all parties a column 'split', or none"
    assert reports(write(tmp_path, one, two)) == {"a": [], "b": [f"nodes.parquet, rows 1, 2: {what}"]}
    apart = write(tmp_path / "apart", one, graph_draft("b", None, 8).without("split"))
    assert reports(apart) == {"a": [], "b": []}


def test_differing_labels_of_a_node_are_a_note(tmp_path):
    one, two = graph_draft("a", None).without("split"), graph_draft("b", None, 6).without("split")
    two = two.put("label", ["low", "low", *["low"] * 6])  # node 7 is 'high' at the other
    what = "note: nodes.parquet, row {}: has another label at another party (if ids are equal by chance: "
    what += "isthmus party new --ids own, at all)"
    assert reports(write(tmp_path, one, two)) == {"a": [what.format(8)], "b": [what.format(2)]}
    unknown = two.put("label", [None, None, *["low"] * 6])
    assert reports(write(tmp_path, one, unknown)) == {"a": [], "b": []}


def test_all_problems_of_all_folders_are_in_one_report(tmp_path):
    north, south = two_drafts()
    root = write(
        tmp_path,
        north.put("age", [float("nan")] * 8),
        south.put("label", ["odd"] * 8),
        graph_draft("west").with_settings(labels=["x"]),
    )
    found = reports(root)
    assert [len(found[name]) for name in ("north", "south", "west")] == [1, 1, 2]
    with pytest.raises(IsthmusError) as caught:
        read_folders(root)
    assert str(caught.value) == (
        f"{root / 'north'} has 1 problem, other folders have 3: nodes.parquet, rows 1, 2, 3, 4, 5, 6, 7, 8: column "
        f"'age' has no value: "
        f'fill it in, or declare missing = "mean" before training (all of them: isthmus party check {root})'
    )


# ---- parties


def test_parties_share_one_encoding(tmp_path):
    north, south = load(write(tmp_path, *two_drafts()))
    pooled = torch.cat([north.graph.x.to_dense(), south.graph.x.to_dense()])[:, 0]
    torch.testing.assert_close(pooled.mean(), torch.tensor(0.0), atol=1e-6, rtol=0)
    torch.testing.assert_close(pooled.std(correction=0), torch.tensor(1.0))
    assert north.border.outer.tolist() == [100, 102]
    assert south.ids.tolist() == list(range(100, 108))


def test_given_splits_do_not_depend_on_the_seed(tmp_path):
    root = graph_draft(partner=None).write(tmp_path / "a")
    for seed in (0, 1):
        (party,) = load(root, seed)
        assert [getattr(party, split).nonzero().flatten().tolist() for split in SPLITS] == [[0, 1, 2], [3, 4], [5, 6]]


def test_a_drawn_split_has_its_shares_and_no_unlabelled_item(tmp_path):
    count = 4_000
    nodes = {"id": list(range(count)), "x": [0.0] * count, "label": [None if at % 4 == 3 else 0 for at in range(count)]}
    Draft(
        {"name": "a", "classes": 1, "columns": {"x": {"kind": "number"}}},
        {NODES: nodes, EDGES: {"source": [0], "target": [1]}},
    ).write(tmp_path)
    (party,) = load(tmp_path, train=0.5, val=0.3)
    counts = [int(getattr(party, split).sum()) for split in SPLITS]
    assert sum(counts) == 3_000
    for found, due in zip(counts, (1_500, 900, 600), strict=True):
        assert abs(found - due) < 100
    assert not any(bool(getattr(party, split)[3::4].any()) for split in SPLITS)
    (again,), (other,) = load(tmp_path, train=0.5, val=0.3), load(tmp_path, seed=1, train=0.5, val=0.3)
    assert torch.equal(party.train, again.train)
    assert not torch.equal(party.train, other.train)


@given(
    st.lists(st.lists(st.integers(-5, 40), min_size=1, max_size=25, unique=True), min_size=2, max_size=3),
    st.integers(0, 3),
    st.sampled_from([None, KEY]),
)
@settings(max_examples=15)
def test_shared_item_gets_the_same_split_at_every_party(tmp_path_factory, held, seed, key):
    root = tmp_path_factory.mktemp("parties")
    for at, ids in enumerate(held):
        nodes = {"id": ids, "x": [0.0] * len(ids), "label": [0] * len(ids)}
        Draft(
            {"name": f"p{at}", "classes": 1, "columns": {"x": {"kind": "number"}}},
            {NODES: nodes, EDGES: {"source": ids[:1], "target": ids[:1]}},
        ).write(root / f"p{at}")
    parties = load(root, seed, key=key)
    seen: dict[int, tuple[bool, ...]] = {}
    for party in parties:
        masks = torch.stack([getattr(party, split) for split in SPLITS], 1)
        assert (masks.sum(1) == 1).all()
        for one, mask in zip(party.ids.tolist(), masks.tolist(), strict=True):
            assert seen.setdefault(one, tuple(mask)) == tuple(mask)
        at = uniform(party.ids, seed, "split")
        assert torch.equal(party.train, at < 0.6)
        assert torch.equal(party.val, (at >= 0.6) & (at < 0.8))


def test_shares_above_one_are_an_error(tmp_path):
    root = graph_draft(partner=None).without("split").write(tmp_path / "a")
    with pytest.raises(IsthmusError, match=r"train = 0.7 and val = 0.5 add up to more than 1: lower one of them"):
        load(root, train=0.7, val=0.5)


def test_collections_become_parties_of_graphs(tmp_path):
    drafts = collection_draft("a"), collection_draft("b", graphs=3, first=10)
    one, two = load(write(tmp_path, *drafts))
    assert (one.level, one.items, two.items, one.nodes) == ("graph", 6, 3, 15)
    for party, draft in zip((one, two), drafts, strict=True):
        assert torch.equal(party.ids, PLAIN.numbers(draft.tables[GRAPHS]["id"]))
    assert one.graph.x.size(1) == two.graph.x.size(1)
    assert (one.train | one.val | one.test).all()


# ---- units


def with_units(root: Path, factors: dict[str, float], graphs: int = 8) -> Path:
    """Parties whose ages differ a little, times a factor."""
    for at, (name, factor) in enumerate(factors.items()):
        draft = collection_draft(name, graphs, first=100 * at)
        age = [factor * (20 + at + each) for each in range(len(draft.tables[NODES]["id"]))]
        draft.put("age", age).write(root / name)
    return root


@pytest.mark.parametrize(
    ("factors", "lines_of"),
    [
        ({"a": 1, "b": 1, "c": 1}, {}),
        ({"a": 1, "b": 10, "c": 1}, {}),
        ({"a": 1, "b": 100, "c": 1}, {"b": "100 times as large as at the others"}),
        ({"a": 1, "b": 1, "c": 0.01, "d": 1}, {"c": "0.01 times as large as at the others"}),
        (
            {"a": 1, "b": -1000},
            {"a": "0.001 times as large as at the other party", "b": "1000 times as large as at the other party"},
        ),
        ({"a": 1, "b": 100, "c": 10000}, {}),  # no two agree
        ({"a": 1, "b": 0, "c": 1}, {}),
    ],
)
def test_another_unit_is_noted(tmp_path, factors, lines_of):
    with_units(tmp_path, factors)
    expected = {name: f"column 'age' is about {what}: check its unit" for name, what in lines_of.items()}
    for name, found in check_folders(tmp_path)[1].items():
        assert [each.what for each in found if "unit" in each.what] == [
            what for party, what in expected.items() if party == name.name
        ]
    note = PartyFolders(path=str(tmp_path)).load(seed=0).note
    for name in factors:
        assert (f"Note: {name}: column 'age'" in note) == (name in lines_of)


@pytest.mark.parametrize(
    ("values", "noted"),
    [
        ({"a": "xy", "b": "yz", "c": "xy"}, ""),
        ({"a": "xy", "b": "XY", "c": "xy"}, "b"),
        ({"a": "xx", "b": "yy", "c": "zz"}, ""),  # such as the party's country
        ({"a": "xy", "b": "XY"}, "ab"),
    ],
)
def test_categories_that_no_other_party_has_are_noted(tmp_path, values, noted):
    for at, (name, own) in enumerate(values.items()):
        draft = collection_draft(name, 8, first=100 * at)
        draft.put("kind", [own[each % 2] for each in range(20)]).write(tmp_path / name)
    what = "column 'kind' has no value that another party has: where they mean the same, write them alike"
    found = {folder.name: [each.what for each in of_party] for folder, of_party in check_folders(tmp_path)[1].items()}
    assert "".join(name for name, lines in found.items() if what in lines) == noted
    note = PartyFolders(path=str(tmp_path)).load(seed=0).note
    assert [f"Note: {name}: {what}" in note for name in values] == [name in noted for name in values]


def test_unit_of_few_numbers_is_not_judged(tmp_path):
    found = check_folders(with_units(tmp_path, {"a": 1, "b": 100}, graphs=2))[1]
    assert not any("unit" in each.what for of_party in found.values() for each in of_party)
