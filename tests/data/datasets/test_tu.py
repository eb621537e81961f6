import pytest
import torch
from published import masks, real, same_graph, write_text, write_tu, zipped

from isthmus.data import rows
from isthmus.data.datasets import tu
from isthmus.data.datasets.tu import Dhfr, Enzymes, SmallGraphs, Tu, degree_features, read_graphs
from isthmus.errors import IsthmusError


def toy(**options):
    return Tu(title="TOY", train=0.5, val=0.25, **options)


@pytest.mark.parametrize("labels", [True, False])
def test_graphs_are_those_that_pyg_reads(empty_root, labels):
    from torch_geometric.data import Batch
    from torch_geometric.datasets import TUDataset

    write_tu(toy().raw_folder(), labels=labels)
    found = toy().load(0).party.graph
    due = Batch.from_data_list(list(TUDataset(str(empty_root / "tu"), "TOY", use_node_attr=True)))
    same_graph(found, due)
    assert torch.equal(found.batch, due.batch)
    assert found.num_graphs == 3


@pytest.mark.real
@pytest.mark.parametrize("kind", [Enzymes, Dhfr], ids=lambda each: each.name)
def test_real_graphs_are_those_that_pyg_reads(kind):
    from torch_geometric.io import read_tu_data

    real(kind.name)
    due, slices, _ = read_tu_data(str(kind().raw_folder()), kind.title)
    found = read_graphs(kind().raw_folder(), kind.title)
    shift = slices["x"][:-1].repeat_interleave(slices["edge_index"].diff())
    due.edge_index = due.edge_index + shift
    same_graph(found, due)


@pytest.mark.real
def test_graphs_are_split_alike_in_every_class():
    pool = real("enzymes")
    for label in range(6):
        own = pool.party.graph.y == label
        assert [int(mask[own].sum()) for mask in masks(pool).values()] == [80, 10, 10]
    other = real("enzymes", seed=1)
    assert not torch.equal(other.party.train, pool.party.train)


def test_graphs_without_features_get_their_degrees(empty_root):
    write_tu(toy().raw_folder(), labels=False, attributes=False)
    graph = toy(max_degree=2).load(0).party.graph
    assert graph.x.tolist() == torch.eye(3)[[2, 2, 2, 1, 1, 0, 2, 1, 1, 1]].tolist()
    assert toy().load(0).party.features == 101
    assert toy(max_degree=2).shared_encoding() == "degrees up to 2"


@pytest.mark.parametrize("labels", [True, False])
def test_attributes_are_left_out_on_demand(empty_root, labels):
    from torch_geometric.datasets import TUDataset

    write_tu(toy().raw_folder(), labels=labels)
    plain = toy(attributes=False)
    if labels:
        due = TUDataset(str(empty_root / "tu"), "TOY")._data.x
        assert torch.equal(plain.load(0).party.graph.x, due)
        assert plain.shared_encoding() == ""
    else:
        assert torch.equal(plain.load(0).party.graph.x, degree_features(plain.load(0).party.graph, 100))
        assert plain.shared_encoding() == "degrees up to 100"


def test_features_are_attributes_labels_and_degrees_as_chosen(empty_root):
    write_tu(toy().raw_folder())
    every = toy(degrees=True, max_degree=2).load(0).party
    only = {
        "attributes": toy(labels=False).load(0).party.graph.x,
        "labels": toy(attributes=False).load(0).party.graph.x,
        "degrees": toy(attributes=False, labels=False, max_degree=2).load(0).party.graph.x,
    }
    assert torch.equal(every.graph.x, torch.cat(list(only.values()), dim=1))
    assert torch.equal(only["degrees"], degree_features(every.graph, 2))
    assert every.structural.tolist() == list(range(every.features - 3, every.features)), "degrees follow from edges"
    assert toy(attributes=False, labels=False, max_degree=2).shared_encoding() == "degrees up to 2"
    beside = toy(attributes=False, degrees=True, max_degree=2).load(0).party.graph.x
    assert torch.equal(beside, torch.cat([only["labels"], only["degrees"]], dim=1))


def test_one_split_serves_all_seeds_on_demand(empty_root):
    write_tu(toy().raw_folder())
    seeds = range(8)
    drawn = {tuple(toy().load(seed).party.train.tolist()) for seed in seeds}
    fixed = {tuple(toy(split_seed=3).load(seed).party.train.tolist()) for seed in seeds}
    assert len(drawn) > 1
    assert fixed == {tuple(toy().load(3).party.train.tolist())}


@pytest.mark.real
def test_coordinates_that_are_left_out_tell_nothing():
    real("dhfr")
    plain = Dhfr(attributes=False).load(0).party
    assert (plain.features, plain.structural) == (53, None)


def test_sets_with_features_of_their_own_share_no_encoding(empty_root):
    write_tu(toy().raw_folder(), labels=False)
    assert toy().load(0).party.features == 2
    assert toy().shared_encoding() == Enzymes().shared_encoding() == ""


def test_many_degrees_are_sparse_and_the_same(empty_root, monkeypatch):
    write_tu(toy().raw_folder(), labels=False, attributes=False)
    dense = toy().load(0).party.graph.x
    monkeypatch.setattr(tu, "MAX_DENSE", 100)
    sparse = toy().load(0).party.graph.x
    assert rows.is_sparse(sparse)
    assert not rows.is_sparse(dense)
    assert torch.equal(rows.to_dense(sparse), dense)


def test_any_title_names_a_set_unless_it_could_leave_the_folder():
    for title in ("MUTAG", "REDDIT-MULTI-5K", "Tox21_AHR_training", "MCF-7"):
        assert Tu.read({"title": title}, "data 'tu'").raw_folder().parent.name == title
    for title in ("../x", "", ".", "a/b", "a\\b", "-", "a b"):
        with pytest.raises(IsthmusError, match="data 'tu': option 'title' is"):
            Tu.read({"title": title}, "data 'tu'")
    with pytest.raises(IsthmusError, match="data 'tu': option 'title' is required"):
        Tu.read({}, "data 'tu'")


def test_a_named_set_is_what_its_title_says(empty_root):
    write_tu(Enzymes().raw_folder(), "ENZYMES")
    named, titled = Enzymes().load(0), Tu(title="ENZYMES").load(0)
    same_graph(named.party.graph, titled.party.graph)
    assert torch.equal(named.party.train, titled.party.train)
    assert not SmallGraphs.name


def test_an_archive_is_downloaded_and_unpacked(empty_root, tmp_path, monkeypatch):
    write_tu(tmp_path / "TOY")
    archive = zipped(tmp_path / "TOY", tmp_path / "TOY.zip")
    monkeypatch.setattr(Tu, "source", lambda self: archive.as_uri())
    assert toy().load(0).party.items == 3
    assert sorted(each.name for each in toy().raw_folder().iterdir()) == sorted(
        f"TOY_{part}.txt" for part in ("A", "graph_indicator", "graph_labels", "node_attributes", "node_labels")
    )


def test_sets_without_classes_are_refused(empty_root):
    write_tu(toy().raw_folder())
    (toy().raw_folder() / "TOY_graph_labels.txt").unlink()
    with pytest.raises(IsthmusError, match=r"TOY has no TOY_graph_labels\.txt, so its graphs have no classes"):
        toy().load(0)


BROKEN = {
    "no number": ("A", [("a", "b")], "TOY_A.txt: "),
    "an edge to nowhere": ("A", [(1, 11)], r"an edge names a node outside 0 \.\. 9"),
    "an edge between graphs": ("A", [(1, 4)], r"TOY_A\.txt: an edge joins two graphs"),
    "one end": ("A", [(1,)], r"TOY_A\.txt: a line must hold the two ends of an edge"),
    "empty": ("A", [], "TOY_A.txt: "),
    "graphs mixed": ("graph_indicator", [(1,), (2,)] * 5, r"TOY_graph_indicator\.txt: graphs must be in the order"),
    "graphs from 0": ("graph_indicator", [(0,)] * 10, r"TOY_graph_indicator\.txt: graphs must be in the order"),
    "a graph too many": ("graph_indicator", [(4,)] * 10, r"graphs must be in the order 1 \.\. 3"),
    "two labels": ("graph_labels", [(1, 2)] * 3, r"TOY_graph_labels\.txt: 2 labels for each graph"),
    "attributes too few": (
        "node_attributes",
        [(1.0,)] * 9,
        r"TOY_node_attributes\.txt: it must have a line of finite numbers",
    ),
    "attributes missing": ("node_attributes", [("nan",)] * 10, r"TOY_node_attributes\.txt"),
    "kinds too few": ("node_labels", [(1,)] * 9, r"TOY_node_labels\.txt: 9 lines, but there are 10 nodes"),
}


@pytest.mark.parametrize("wrong", BROKEN)
def test_broken_files_are_one_line_that_names_them(empty_root, wrong):
    part, table, why = BROKEN[wrong]
    write_tu(toy().raw_folder())
    write_text(toy().raw_folder() / f"TOY_{part}.txt", table)
    with pytest.raises(
        IsthmusError, match=rf"^data set 'tu': cannot read the files in .*/tu/TOY/raw \(.*{why}"
    ) as error:
        toy().load(0)
    assert "\n" not in str(error.value)


def test_degrees_count_edges_that_arrive():
    from torch_geometric.data import Data

    graph = Data(edge_index=torch.tensor([[0, 1, 2], [1, 0, 1]]), num_nodes=4)
    assert degree_features(graph, 3).argmax(1).tolist() == [1, 2, 0, 0]


def test_degrees_follow_from_edges_and_labels_do_not(empty_root):
    write_tu(toy().raw_folder(), labels=False, attributes=False)
    assert toy(max_degree=2).load(0).party.structural.tolist() == [0, 1, 2]
    write_tu(toy().raw_folder())
    assert toy().load(0).party.structural is None


def test_where_atoms_are_tells_their_bonds():
    assert Dhfr().structural(None).tolist() == [0, 1, 2]


def test_a_title_may_be_in_any_case(empty_root):
    titles = ("mutag", "MUTAG", "mutagenicity", "letter-HIGH", "imdb-binary", "Other")
    assert [Tu(title=title).title for title in titles] == [
        "MUTAG", "MUTAG", "Mutagenicity", "Letter-high", "IMDB-BINARY", "Other",
    ]  # fmt: skip
    (empty_root / "tu" / "My-Own").mkdir(parents=True)
    assert Tu(title="my-own").title == "My-Own"
