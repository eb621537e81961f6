"""The commands of party folders, as a person types them."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from command_line import Done, Isthmus
from isthmus.data.datasets.folder import PartyFolders
from isthmus.data.datasets.public import data_root
from isthmus.data.ids import read_key
from isthmus.deploy.party_ledger import PartyLedger
from isthmus.study.config import Study
from party_folders import assert_same_parties, graph_draft, two_drafts


def tables(folder: Path) -> None:
    rows = [f"A{at},{at * 3 % 7},{'xy'[at % 2]},{['low', 'high'][at % 2]}" for at in range(30)]
    (folder / "accounts.csv").write_text("\n".join(["account,balance,sector,risk", *rows]) + "\n")
    lines = [f"A{at},A{(at + 1) % 30},," for at in range(30)] + ["S5,A2,south,9"]
    (folder / "transfers.csv").write_text("\n".join(["from,to,bank,memo", *lines]) + "\n")


NEW = (
    "party", "new", "north", "--nodes", "accounts.csv", "--edges", "transfers.csv", "--id", "account", "--label",
    "risk", "--source", "from", "--target", "to", "--owner", "bank",
)  # fmt: skip


# ---- check


def test_check_says_what_sound_parties_hold(isthmus: Isthmus, tmp_path: Path) -> None:
    for draft in two_drafts():
        draft.write(tmp_path / "all" / draft.settings["name"])
    held = "8 nodes, 16 edges, 2 across its border, 8 labelled, 3 in train, 2 in val, 2 in test"
    assert isthmus("party", "check", "all") == Done(0, f"north: {held}\nsouth: {held}\n", "")
    assert isthmus("party", "check", "all/north") == Done(0, f"north: {held}\n", "")


def test_check_reports_everything_at_once_and_exits_with_1(isthmus: Isthmus, tmp_path: Path) -> None:
    north, south = two_drafts()
    north.put("age", [float("nan")] * 8).put("label", ["odd", *["low"] * 7]).write(tmp_path / "all" / "north")
    south.put("split", ["train"] * 8).put("id", [0] * 8).write(tmp_path / "all" / "south")
    done = isthmus("party", "check", "all")
    assert (done.code, done.out) == (1, "")
    assert "note: all/south: nodes.parquet: no row is in the split 'val'" in done.err.splitlines()
    assert done.err.splitlines()[:3] == [
        "all/north: nodes.parquet, rows 1, 2, 3, 4, 5, 6, 7, 8: column 'age' has no value: fill it in, or declare "
        'missing = "mean" before training',
        "all/north: nodes.parquet, row 1: label 'odd' is not one of low, high: correct it, or declare it at all "
        "parties (in party.toml, or isthmus party new --classes)",
        "all/south: nodes.parquet, rows 2, 3, 4, 5, 6, 7, 8: column 'id' repeats an earlier id: make ids unique",
    ]


def test_notes_do_not_change_the_exit_code(isthmus: Isthmus, tmp_path: Path) -> None:
    graph_draft(partner=None).put("split", ["train"] * 8).write(tmp_path / "north")
    done = isthmus("party", "check", "north")
    assert done.code == 0
    assert done.err.splitlines() == [
        f"note: north: nodes.parquet: no row is in the split '{x}'" for x in ("val", "test")
    ]


def test_check_as_json(isthmus: Isthmus, tmp_path: Path) -> None:
    north, south = two_drafts()
    north.put("id", [0, 0, 2, 3, 4, 5, 6, 7]).write(tmp_path / "all" / "north")
    south.write(tmp_path / "all" / "south")
    done = isthmus("party", "check", "all", "--json")
    found = json.loads(done.out)
    assert (done.code, done.err, set(found)) == (1, "", {"all/north", "all/south"})
    assert found["all/north"][0] == {
        "file": "nodes.parquet",
        "what": "column 'id' repeats an earlier id: make ids unique",
        "rows": [2],
        "count": 1,
        "severe": True,
        "largest": None,
        "minor": False,
    }
    graph_draft().write(tmp_path / "alone")
    assert isthmus("party", "check", "alone", "--json") == Done(0, '{"alone": []}\n', "")


def test_check_with_a_key(isthmus: Isthmus, tmp_path: Path) -> None:
    north, south = two_drafts()[0], two_drafts(ids=str)[1]
    for draft in (north, south):
        draft.write(tmp_path / "all" / draft.settings["name"])
    assert isthmus("party", "key", "key").code == 0
    assert isthmus("party", "check", "all").code == 1
    assert isthmus("party", "check", "all", "--key", "key").code == 0


@pytest.mark.parametrize(
    ("arguments", "due"),
    [
        (("nowhere",), "isthmus: nowhere is not a folder: give a party folder, or a folder of party folders\n"),
        ((".",), "isthmus: . has no party.toml, nor has a folder inside it: create one with isthmus party new\n"),
        (
            (".", "--key", "no"),
            "isthmus: cannot read the key no (No such file or directory): give a key file\n",
        ),
    ],
)
def test_what_cannot_be_checked_is_one_line(isthmus: Isthmus, arguments: tuple[str, ...], due: str) -> None:
    assert isthmus("party", "check", *arguments) == Done(2, "", due)


# ---- new


def test_new_makes_bags_and_degrees(isthmus: Isthmus, tmp_path: Path) -> None:
    tables(tmp_path)
    lists = pa.table(
        {"account": [f"A{at}" for at in range(30)], "games": [[at, 3] for at in range(30)], "risk": [0] * 30}
    )
    parquet.write_table(lists, tmp_path / "accounts.parquet")
    words = [word.replace("accounts.csv", "accounts.parquet") for word in NEW]
    assert isthmus(*words, "--bag", "games=50", "--features", "degree").code == 0
    declared = Study.of({"data": {"name": "folder", "path": "north"}}).cut_data(0).parties[0]
    assert (declared.features, declared.structural.tolist()) == (83, list(range(33)))  # type: ignore[union-attr]
    for wrong, due in (
        ("--bag=games=a", "give the width as a number"),
        ("--features=size", "--features size: the only"),
    ):
        done = isthmus(*words, wrong, "--force")
        assert (done.code, done.out) == (2, "")
        assert due in done.err


def test_new_makes_a_folder_that_a_study_takes(isthmus: Isthmus, tmp_path: Path) -> None:
    tables(tmp_path)
    done = isthmus(*NEW)
    assert done.code == 0
    assert done.out == "party folder in north\n"
    note = (
        "columns without a role are left out: memo (if it is the edges' weight, larger for nearer ends: --weight memo)"
    )
    assert done.err == f"note: north: transfers.csv: {note}\n"
    assert isthmus("party", "check", "north").out == "north: 30 nodes, 60 edges, 1 across its border, 30 labelled\n"
    assert isthmus("run", "--data", "./north", "--rounds", "2", "--hidden", "4").code == 0


def test_new_with_all_its_options(isthmus: Isthmus, tmp_path: Path) -> None:
    tables(tmp_path)
    assert isthmus(*NEW, "--ignore", "memo").err == ""
    more = ("--force", "--directed", "--name", "Nord", "--weight", "memo", "--ignore", "balance", "--like", "other")
    graph_draft().with_settings(labels=["low", "high"], columns={"sector": {"kind": "category"}}).write(
        tmp_path / "other"
    )
    assert isthmus(*NEW, *more).code == 0
    (party,) = PartyFolders(path=str(tmp_path / "north")).load(0).parties
    assert party.name == "Nord"
    assert party.graph.y.tolist() == [0, 1] * 15
    assert party.graph.edge_index.size(1) == 30
    assert party.border.weight.tolist() == [9.0]


def test_new_lists_everything_that_is_wrong_and_writes_nothing(isthmus: Isthmus, tmp_path: Path) -> None:
    tables(tmp_path)
    text = (tmp_path / "accounts.csv").read_text().replace("A3,", "A2,", 1)
    (tmp_path / "accounts.csv").write_text(text)
    done = isthmus(*NEW)
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines() == [
        "north: edges.parquet, rows 3, 4: source or target is not in nodes.parquet: add the node, or name its party "
        "in 'owner'",
        "isthmus: nothing was written: nodes.parquet, row 4: column 'id' repeats an earlier id: make ids unique",
    ]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["accounts.csv", "transfers.csv"]


def test_new_of_molecules(isthmus: Isthmus, tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    (tmp_path / "assays.csv").write_text("structure,toxic\n" + "CCO,1\nCC,0\nc1ccccc1,1\nC,0\n" * 3)
    assert (
        isthmus("party", "new", "lab", "--smiles", "assays.csv", "--molecule", "structure", "--task", "toxic").code == 0
    )
    assert isthmus("party", "check", "lab").out == "lab: 12 graphs, 54 edges, 12 labelled\n"
    assert isthmus("run", "--data", "./lab", "--rounds", "1", "--hidden", "4").code == 0


def test_molecules_that_nobody_has_tested_are_embedded(isthmus: Isthmus, tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    texts = ["CCO", "c1ccccc1", "CCN", "CC(=O)O", "CCCl", "c1ccncc1", "CCCC", "OCCO"]
    for at, lab in enumerate(("north", "south")):
        (tmp_path / f"{lab}.csv").write_text("structure\n" + "\n".join(texts[4 * at :][:4]) + "\n")
        made = ("party", "new", f"labs/{lab}", "--smiles", f"{lab}.csv", "--molecule", "structure")
        assert "or give their number or their names with --classes" in isthmus(*made).err
        assert isthmus(*made, "--classes", "2").code == 0
    run = ("run", "--data", "./labs", "--rounds", "1", "--hidden", "4", "--out", "out")
    assert "or learn without labels: set task.name = 'graph-clustering'" in isthmus(*run).err
    done = isthmus(*run, "--method", "fclg", "--set", "task.name=graph-clustering")
    assert done.code == 0, done.err
    assert (tmp_path / "out" / "weights" / "fclg-0.safetensors").exists()
    assert isthmus("report", "out").code == 0


def test_new_of_a_pattern_makes_all_parties_and_notes_each_thing_once(isthmus: Isthmus, tmp_path: Path) -> None:
    for name in ("east", "west"):
        accounts = [f"{at},{at * 3 % 7 + (name == 'west')},{at % 2 == 0}" for at in range(20)]
        (tmp_path / f"{name}_nodes.csv").write_text("\n".join(["id,balance,fraud", *accounts]) + "\n")
        (tmp_path / f"{name}_edges.csv").write_text("source,target,eur\n" + "0,1,3\n" * 10)
    made = ("party", "new", "all", "--nodes", "*_nodes.csv", "--edges", "*_edges.csv", "--label", "fraud")
    done = isthmus(*made)
    assert (done.code, done.out) == (0, "2 party folders in all\n")
    ids, repeats, left_out = sorted(done.err.splitlines(), key=lambda line: "eur" in line)
    assert ids.startswith(
        "note: 2 parties (all/east and others): nodes.parquet: ids are numbered in order, and the same"
    )
    assert (
        repeats == "note: 2 parties (all/east and others): edges.parquet, 18 rows: repeats an earlier edge: both count"
    )
    assert left_out.endswith("left out: eur (if it is the edges' weight, larger for nearer ends: --weight eur)")
    run = isthmus("run", "--data", "./all", "--rounds", "1", "--hidden", "4", "--method", "fedavg", "--out", "out")
    assert "Note: 2 parties (east and others): nodes.parquet: ids are numbered in order" in run.err
    assert "repeats" not in run.err
    assert "repeats" in isthmus("party", "check", "all").err
    assert "note: ids are numbered in order" in isthmus("advise", "all").err
    assert "fedgl" not in isthmus("advise", "all").out
    done = isthmus(*made, "--ids", "own", "--force", "--weight", "eur")
    assert "running numbers" not in done.err
    assert (tmp_path / "all" / "east" / "party.toml").read_text().count('labels = ["false", "true"]') == 1
    assert "leave out --name" in isthmus(*made, "--name", "x").err


def test_new_names_all_mistakes_at_once(isthmus: Isthmus, tmp_path: Path) -> None:
    tables(tmp_path)
    (tmp_path / "north").mkdir()
    (tmp_path / "north" / "mine.txt").write_text("")
    wrong = [{"account": "acount", "to": "tu"}.get(word, word) for word in NEW]
    done = isthmus(*wrong, "--features", "deg", "--bag", "x=y", "--ignore", "nothing", "--like", "nowhere")
    assert (done.code, done.out) == (2, "")
    for line, due in zip(
        done.err.splitlines(),
        (
            "isthmus: --features deg: the only features computed from edges are: degree",
            "isthmus: --bag x=y: give the width as a number",
            "isthmus: north exists: choose another folder",
            "isthmus: --like nowhere: ",
            "isthmus: accounts.csv has no column 'acount': did you mean 'account'?",
            "isthmus: transfers.csv has no column 'tu': it has from, to, bank, memo",
            "isthmus: --ignore nothing: no table has this column",
        ),
        strict=True,
    ):
        assert line.startswith(due)
    done = isthmus("party", "new", "all", "--nodes", "acc*.csv", "--edges", "*.parquet", "--name", "x")
    assert [line.split(":")[1].strip() for line in done.err.splitlines()] == ["--name", "*.parquet matches no file"]
    done = isthmus("party", "new", "north", "--tables", "accounts.csv", "--ignore", "one", "--ignore", "two")
    assert [line.split(":")[1] for line in done.err.splitlines()][1:] == [" --ignore one", " --ignore two"]


def test_classes_are_a_number_or_names(isthmus: Isthmus, tmp_path: Path) -> None:
    tables(tmp_path)
    assert isthmus(*NEW, "--classes", "low,high,rare").code == 0
    assert 'labels = ["low", "high", "rare"]' in (tmp_path / "north" / "party.toml").read_text()
    assert "labels are texts" in isthmus(*NEW, "--classes", "2", "--force").err


# ---- export


SMALL = ("--rounds", "3", "--hidden", "8", "--method", "fedavg,local,centralized", "--json")


def told(done: Done) -> list[tuple[str, Any]]:
    assert done.code == 0, done.err
    return [(run["method"], run["chosen_round"], run["metrics"]) for run in json.loads(done.out)["runs"]]


@pytest.mark.parametrize(
    "cut",
    [
        ("--data", "banks", "--set", "data.nodes=150"),
        ("--data", "banks", "--set", "data.nodes=150", "--set", "data.overlap=0.2", "--parties", "3"),
        ("--data", "banks", "--set", "data.nodes=150", "--partition", "random", "--set", "partition.edges=broken"),
        ("--data", "banks", "--set", "data.nodes=150", "--partition", "louvain", "--parties", "12"),
        ("--data", "motifs", "--parties", "3"),
    ],
    ids=["natural", "overlapping", "broken", "twelve", "graphs"],
)
@pytest.mark.thinned(3)
def test_a_study_on_exported_folders_gives_what_the_named_data_set_gives(
    isthmus: Isthmus, cut: tuple[str, ...]
) -> None:
    assert isthmus("party", "export", "out", *cut, "--seed", "4").code == 0
    assert isthmus("party", "check", "out").code == 0
    more = ("--seed", "4", "--unlabelled", "idle", *SMALL)
    assert told(isthmus("run", "--data", "out/", *more)) == told(isthmus("run", *cut, *more))


@pytest.mark.real
@pytest.mark.parametrize(
    ("data", "parties", "partition"), [("cora", 5, "louvain"), ("enzymes", 3, "iid"), ("bace", 3, "random")]
)
@pytest.mark.slow
def test_a_study_on_exported_real_data_gives_what_the_named_data_set_gives(
    isthmus: Isthmus, data: str, parties: int, partition: str
) -> None:
    family, folder = {"cora": ("planetoid", "Cora"), "enzymes": ("tu", "ENZYMES"), "bace": ("molnet", "bace")}[data]
    if not (data_root() / family / folder / "raw").is_dir():
        pytest.skip(f"{data} is not in {data_root()}")
    if data == "bace":
        pytest.importorskip("rdkit")
    cut = ("--data", data, "--parties", parties, "--partition", partition)
    assert isthmus("party", "export", "out", *cut, "--seed", 1).code == 0
    more = ("--seed", 1, "--unlabelled", "idle", "--rounds", 2, "--hidden", 8, "--json")
    assert told(isthmus("run", "--data", "out/", *more)) == told(isthmus("run", *cut, *more))


def test_export_says_what_it_wrote_and_the_same_seed_writes_the_same(isthmus: Isthmus, tmp_path: Path) -> None:
    options = ("--data", "banks", "--set", "data.nodes=100", "--parties", "2")
    assert isthmus("party", "export", "a", *options) == Done(0, "2 party folders in a\n", "")
    isthmus("party", "export", "b", *options)
    isthmus("party", "export", "c", *options, "--seed", "1")
    names = sorted(each.relative_to(tmp_path / "a") for each in (tmp_path / "a").rglob("*.*"))
    assert [str(each) for each in names[:3]] == [
        f"party-0/{file}" for file in ("edges.parquet", "nodes.parquet", "party.toml")
    ]
    assert all((tmp_path / "a" / each).read_bytes() == (tmp_path / "b" / each).read_bytes() for each in names)
    assert not all((tmp_path / "a" / each).read_bytes() == (tmp_path / "c" / each).read_bytes() for each in names)


def test_what_is_exported_again_is_the_same(isthmus: Isthmus, tmp_path: Path) -> None:
    isthmus("party", "export", "a", "--set", "data.nodes=100")
    assert isthmus("party", "export", "b", "--data", "./a").code == 0
    one, two = (PartyFolders(path=str(tmp_path / each)).load(0).parties for each in "ab")
    assert_same_parties(two, one)


def test_parties_without_a_training_label_are_exported_too(isthmus: Isthmus) -> None:
    assert isthmus("party", "export", "a", "--set", "data.nodes=100", "--set", "data.train=0.0").code == 0


@pytest.mark.parametrize(
    ("arguments", "due"),
    [
        (("--data", "bnks"), "isthmus: unknown data set 'bnks': did you mean 'banks'?"),
        (("--set", "rounds=3"), "isthmus: --set rounds: an export has only options data.… and partition.…"),
        (("--set", "data.nodes=0"), "isthmus: data 'banks': option 'nodes' is 0: "),
        (("--partition", "random", "--parties", "5000"), "isthmus: data set 'banks': 1200 nodes are too few for 5000"),
    ],
)  # fmt: skip
def test_what_cannot_be_exported_is_one_line_and_leaves_nothing(
    isthmus: Isthmus, tmp_path: Path, arguments: tuple[str, ...], due: str
) -> None:
    done = isthmus("party", "export", "deep/out", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(due)
    assert len(done.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_export_does_not_overwrite_unless_told(isthmus: Isthmus, tmp_path: Path) -> None:
    small = ("--set", "data.nodes=60")
    isthmus("party", "export", "out", *small, "--parties", "2")
    done = isthmus("party", "export", "out", *small, "--parties", "3")
    assert done.code == 2
    assert "out exists: choose another folder" in done.err
    assert isthmus("party", "export", "out", *small, "--parties", "3", "--force").code == 0
    assert len(list((tmp_path / "out").iterdir())) == 3


# ---- key


def test_key_makes_a_key_that_only_its_owner_reads(isthmus: Isthmus, tmp_path: Path) -> None:
    done = isthmus("party", "key", "keys/common")
    assert done == Done(0, "key in keys/common: give it to every party, never to the server\n", "")
    assert stat.S_IMODE((tmp_path / "keys" / "common").stat().st_mode) == 0o600
    assert len(read_key(tmp_path / "keys" / "common")) == 64
    again = isthmus("party", "key", "keys/common")
    assert (again.code, again.out) == (2, "")
    assert again.err == "isthmus: keys/common exists: choose another file (a key that is overwritten is lost)\n"


# ---- studies take folders


def test_a_study_names_a_folder_in_several_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for draft in two_drafts():
        draft.write(tmp_path / "mine" / draft.settings["name"])
    monkeypatch.chdir(tmp_path)
    for data in (
        {"name": "folder", "path": "mine"},
        {"name": "mine"},
        {"name": "./mine"},
        {"name": str(tmp_path / "mine")},
        {"name": "mine/north", "train": 0.5},
    ):
        found = Study.of({"data": data}).data_set()
        assert isinstance(found, PartyFolders)
        assert Path(found.path).is_dir()


def test_a_name_that_is_a_folder_too_is_refused(isthmus: Isthmus, tmp_path: Path) -> None:
    graph_draft(partner=None).write(tmp_path / "Banks" / "north")
    due = "isthmus: 'Banks' is a data set and a folder here: give ./Banks for the folder, or rename it to use the data "
    for command in ("run", "describe", ("party", "export", "out")):
        words = command if isinstance(command, tuple) else (command,)
        assert isthmus(*words, "--data", "Banks") == Done(2, "", f"{due}set\n")
    assert isthmus("describe", "--data", "./Banks").code == 0
    assert isthmus("describe", "--data", "banks", "--set", "data.nodes=40").code == 0


def test_parties_with_a_key_are_studied(isthmus: Isthmus, tmp_path: Path) -> None:
    """Another order of ids, the same parties: what is learned is the same."""
    assert isthmus("party", "export", "out", "--set", "data.nodes=100").code == 0
    isthmus("party", "key", "key")
    small = ("run", "--data", "out/", *SMALL)
    assert told(isthmus(*small))[:2] == told(isthmus(*small, "--set", "data.key=key"))[:2]


# ---- ledger


def ledger_of(folder: Path) -> PartyLedger:
    ledger = PartyLedger(folder / "kit" / "state" / "ledger.jsonl")
    run = {"study": "s", "run": "r/fedavg-0", "method": "fedavg", "protection": "masks"}
    call = {"action": "train", "verb": "total", "eyes": "server sees the sum"}
    ledger.append("begin", **run)
    ledger.append("answer", **run, **call, sent=1200)
    ledger.append("sum", **run, parties=["a", "b"], states=["x"])
    ledger.append("answer", **run, **call, sent=1200)
    ledger.append("refusal", **run, action="train", verb="ask", why="refused")
    return ledger


def test_ledger_shows_what_a_party_disclosed_and_that_its_chain_is_whole(isthmus: Isthmus, tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path)
    done = isthmus("party", "ledger", "kit", "--head", f"5:{ledger.hash}")
    assert done.code == 0
    assert done.out.splitlines() == [
        "r/fedavg-0 (fedavg): train, total: 2 answers, 2,400 bytes: server sees the sum, protection masks",
        "r/fedavg-0 (fedavg): train, ask: refused 1 times",
        "helped to open 1 sums",
        f"5 lines, none changed, removed or moved; head 5:{ledger.hash}",
    ]
    found = json.loads(isthmus("party", "ledger", "kit", "--json").out)
    assert (found["entries"], found["head"], len(found["lines"])) == (5, ledger.hash, 5)


def test_ledger_names_what_was_done_to_it(isthmus: Isthmus, tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path)
    whole = ledger.path.read_bytes()
    assert "5 has another hash than the head" in isthmus("party", "ledger", "kit", "--head", f"5:{'0' * 64}").err
    assert "its end is cut off, or rewritten" in isthmus("party", "ledger", "kit", "--head", f"9:{'0' * 64}").err
    assert "give LINES:HASH" in isthmus("party", "ledger", "kit", "--head", "x").err
    ledger.path.write_bytes(whole + b"torn")
    assert "the last line is torn" in isthmus("party", "ledger", "kit").err
    ledger.path.write_bytes(whole.replace(b"1200", b"0012", 1))
    done = isthmus("party", "ledger", "kit")
    assert done.code == 2
    assert done.err.startswith("isthmus: kit/state/ledger.jsonl: line 2 was changed")
    assert len(done.err.splitlines()) == 1
    assert "no ledger in other" in isthmus("party", "ledger", "other").err


def test_both_ends_of_an_edge_are_not_one_column(isthmus: Isthmus, tmp_path: Path) -> None:
    tables(tmp_path)
    words = list(NEW)
    words[words.index("--target") + 1] = words[words.index("--source") + 1]
    assert "--source and --target are both" in isthmus(*words).err
