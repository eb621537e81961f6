"""Every command does what it says; every mistake is one line on standard error, exit code 2, and nothing written."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tests.deploy.real import until

from command_line import RUN, Done, Isthmus
from isthmus import __version__
from isthmus.cli import main as cli
from isthmus.data.partition import Partition
from isthmus.data.pool import DataSet
from isthmus.errors import IsthmusError
from isthmus.methods.base import Method
from isthmus.nn.encoders import Encoder
from isthmus.options import Registered
from isthmus.study.config import Study
from isthmus.study.loop import Run

SMALL = ("--rounds", "3", "--hidden", "8", "--set", "data.nodes=100")


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def study(folder: Path, text: str) -> Path:
    """A study in a file."""
    (folder / "study.toml").write_text(text, encoding="utf-8")
    return folder / "study.toml"


def options_of(folder: Path) -> dict[str, Any]:
    """The study that a result folder says it holds."""
    return dict(json.loads((folder / "results.json").read_text())["study"])


@pytest.mark.parametrize("words", [(), ("run",), ("party", "new"), ("federation", "join")])
def test_h_is_help(isthmus: Isthmus, words: tuple[str, ...]) -> None:
    done = isthmus(*words, "-h")
    assert done.code == 0
    assert done == isthmus(*words, "--help")


# ---- run


@pytest.mark.parametrize(
    ("unit", "data", "encoder"),
    [
        ("item", ("motifs", "graphs=24"), "gin"),
        ("item", ("banks", "nodes=100"), "mlp"),
        ("edge", ("banks", "nodes=100"), "gap"),
    ],
    ids=["graphs", "nodes", "edges"],
)
def test_run_states_what_it_spends_on_a_unit(
    unit: str, data: tuple[str, str], encoder: str, isthmus: Isthmus, tmp_path: Path
) -> None:
    privacy = (f"privacy.unit={unit}", "privacy.epsilon=20", f"data.{data[1]}")
    more = (word for each in privacy for word in ("--set", each))
    done = isthmus(
        "run", "--data", data[0], "--encoder", encoder, "--parties", "3", "--rounds", "2", "--hidden", "8",
        *more, "--out", str(tmp_path / "out"),
    )  # fmt: skip
    assert done.code == 0, done.err
    assert {"item": "one training item of a party", "edge": "one edge of a party's graph"}[unit] in done.out
    runs = json.loads((tmp_path / "out" / "results.json").read_text())["runs"]
    spent = {run["method"]: run["privacy"].get("epsilon") for run in runs}
    assert spent["fedavg"] == pytest.approx(20.0)
    assert options_of(tmp_path / "out")["privacy"]["unit"] == unit


def test_run_prints_a_table_that_fits_80_columns(
    isthmus: Isthmus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isthmus.cli.console.WIDE", 80)  # as a terminal
    done = isthmus("run", *SMALL, "--method", "fedavg,local", "--method", "centralized", "--seeds", "0,1")
    assert done.code == 0
    assert done.runs == [(name, seed, "3") for seed in "01" for name in ("fedavg", "local", "centralized")]
    assert max(map(len, done.out.splitlines())) <= 80
    assert [line.split()[0] for line in done.out.splitlines() if "±" in line] == ["fedavg", "local", "centralized"]
    assert not files(tmp_path)


def test_json_is_all_there_is_on_standard_output(isthmus: Isthmus) -> None:
    done = isthmus("run", *SMALL, "--method", "fedavg", "--method", "local", "--seeds", "0,4", "--json")
    assert done.code == 0
    assert done.runs == [(name, seed, "3") for seed in "04" for name in ("fedavg", "local")]
    found = json.loads(done.out)
    assert set(found) == {"runs", "summary", "cuts"}
    assert [(run["method"], run["seed"]) for run in found["runs"]] == [
        ("fedavg", 0), ("fedavg", 4), ("local", 0), ("local", 4),
    ]  # fmt: skip
    for run in found["runs"]:
        assert set(run) == {"method", "seed", "rounds", "chosen_round", "evaluated", "seconds"} | {
            "metric",
            "select_by",
            "metrics",
            "by_label",
            "over_parties",
            "parties",
            "majority_score",
            "turnout",
        }
        assert run["rounds"] == 3
        assert run["seconds"] > 0
        assert 0 <= run["metrics"]["test_accuracy"] <= 1
    for line in found["summary"]:
        assert set(line) == {"method", "metric", "mean", "std", "seeds", "headline"}
        assert line["seeds"] == 2
    assert [cut["seeds"] for cut in found["cuts"]] == [[0], [4]]
    assert ("local", "test_accuracy") in {(line["method"], line["metric"]) for line in found["summary"]}


def test_out_is_a_folder_that_holds_what_was_printed(isthmus: Isthmus, tmp_path: Path) -> None:
    done = isthmus("run", *SMALL, "--out", "a/b", "--json")
    saved = json.loads((tmp_path / "a" / "b" / "results.json").read_text())
    assert json.loads(done.out) == {part: saved[part] for part in ("runs", "summary", "cuts")}


def test_where_results_are_is_one_line_however_long_and_odd(isthmus: Isthmus) -> None:
    out = "a folder with [brackets] and a name that is longer than the eighty columns of a terminal/x"
    assert f"\nresults in {out}\n" in isthmus("run", *SMALL, "--out", out).out
    assert isthmus("report", out).out == f"report in {out}/report.html\n"


def test_flags_say_what_is_run(isthmus: Isthmus, tmp_path: Path) -> None:
    isthmus(
        "run", "--data", "banks", "--partition", "random", "--parties", 3, "--method", "FedProx", "--encoder", "sage",
        "--hidden", 4, "--rounds", 2, "--seeds", "5,", "--unlabelled", "idle", "--device", "cpu", "--wire",
        "--set", "fedprox.mu=0.5", "--set", "local.lr=0.2", "--set", "data.nodes=90", "--set", "model.layers=1",
        "--set", "data_seed=3", "--out", "out",
    )  # fmt: skip
    found = options_of(tmp_path / "out")
    (method,) = found["methods"]
    assert (found["parties"], found["seeds"], found["data_seed"], found["wire"]) == (3, [5], 3, True)
    assert (found["data"]["name"], found["data"]["nodes"], found["data"]["parties"]) == ("banks", 90, 3)
    assert (found["partition"]["name"], found["unlabelled"]) == ("random", "idle")
    assert (found["model"]["encoder"], found["model"]["hidden"], found["model"]["layers"]) == ("sage", 4, 1)
    assert (method["name"], method["rounds"], method["mu"], method["local"]["lr"]) == ("fedprox", 2, 0.5, 0.2)


def test_flags_go_on_top_of_the_study(isthmus: Isthmus, tmp_path: Path) -> None:
    text = """
    seeds = [1]
    [data]
    name = "banks"
    nodes = 100
    parties = 5
    [training]
    rounds = 50
    [[methods]]
    name = "fedavg"
    rounds = 60
    local = { lr = 0.5, epochs = 2 }
    [[methods]]
    name = "local"
    """
    flags = ("--rounds", 2, "--parties", 3, "--hidden", 4, "--set", "local.lr=0.25", "--set", "training.patience=7")
    isthmus("run", study(tmp_path, text), *flags, "--out", "out")
    found = options_of(tmp_path / "out")
    fedavg, local = found["methods"]
    assert (found["parties"], found["seeds"], found["data"]["nodes"]) == (3, [1], 100)
    assert (fedavg["rounds"], local["rounds"], fedavg["patience"]) == (2, 2, 7)
    assert (fedavg["local"]["lr"], local["local"]["lr"], fedavg["local"]["epochs"]) == (0.25, 0.25, 2)


def test_written_study_runs_again_with_other_rounds(isthmus: Isthmus, tmp_path: Path) -> None:
    first = isthmus("run", *SMALL, "--json", "--out", "first")
    again = isthmus("run", "first/study.toml", "--json")
    assert json.loads(again.out)["summary"] == json.loads(first.out)["summary"]
    assert json.loads(isthmus("run", "first/study.toml", "--rounds", 2, "--json").out)["runs"][0]["rounds"] == 2


def test_force_runs_anew(isthmus: Isthmus, tmp_path: Path) -> None:
    isthmus("run", *SMALL, "--out", "out")
    assert isthmus("run", *SMALL, "--seed", "9", "--out", "out", "--force").code == 0
    assert options_of(tmp_path / "out")["seeds"] == [9]


def test_stopped_run_says_how_to_go_on(isthmus: Isthmus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "go", stop)
        assert isthmus("run", *SMALL) == Done(130, "", "isthmus: stopped\n")
        assert isthmus("run", *SMALL, "--out", "out") == Done(130, "", "isthmus: stopped; continue with --resume\n")
        patch.setattr(Study, "load", stop)  # before anything is written
        assert isthmus("run", *SMALL, "--out", "early") == Done(130, "", "isthmus: stopped\n")
    assert isthmus("run", *SMALL, "--out", "out", "--resume").code == 0
    assert not (tmp_path / "out" / ".state").exists()


# ---- describe


def test_describe_tells_the_cut_of_a_run_without_training(
    isthmus: Isthmus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--parties", 3, "--set", "data.nodes=100", "--partition", "random")
    found = [json.loads(isthmus("run", *flags, *SMALL, "--seed", 4, "--json").out)["cuts"][0]]
    monkeypatch.setattr(Run, "go", lambda self: pytest.fail("describe does not train"))
    done = isthmus("describe", *flags, "--seed", 4, "--json")
    assert (done.code, done.err) == (0, "")
    assert found == [{"seeds": [4], **json.loads(done.out)}]
    assert json.loads(isthmus("describe", *flags, "--json").out) != json.loads(done.out)
    assert not files(tmp_path)


def test_split_gives_every_party_its_shares(isthmus: Isthmus) -> None:
    cut = json.loads(isthmus("describe", "--set", "data.nodes=100", "--split", "0.2,0.4,0.4", "--json").out)
    assert all(abs(each["train"] - 0.2 * each["items"]) <= 2 for each in cut["parties"])
    assert sum(each["val"] + each["test"] + each["train"] for each in cut["parties"]) == 100
    for wrong, due in (("a", "give three shares, such as 0.2,0.4,0.4"), ("0.2,0.8", "partition.*split")):
        done = isthmus("describe", "--split", wrong)
        assert (done.code, done.out) == (2, "")
        assert re.search(due, done.err)
    done = isthmus("describe", "--split", "0.2,0.4,0.4", "--set", "task.name=link-prediction")
    assert "links are held out by task.val and task.test: leave out partition.split" in done.err


def test_describe_prints_a_line_for_each_party(isthmus: Isthmus) -> None:
    done = isthmus("describe", "--set", "data.nodes=100")
    assert (done.code, done.err) == (0, "")
    assert [line.split()[0] for line in done.out.splitlines() if line.startswith(" party-")] == [
        "party-0", "party-1", "party-2", "party-3",
    ]  # fmt: skip
    assert "\n4 parties hold 100 nodes and " in done.out


def test_describe_takes_a_study_with_flags_on_top(isthmus: Isthmus, tmp_path: Path) -> None:
    text = 'seeds = [7, 8]\nparties = 2\n[data]\nname = "banks"\nnodes = 80\n[partition]\nname = "random"\n'
    path = study(tmp_path, text)
    first = json.loads(isthmus("describe", path, "--json").out)
    assert [party["items"] for party in first["parties"]] == [40, 40]
    assert first == json.loads(isthmus("describe", path, "--seed", 7, "--json").out)
    assert first != json.loads(isthmus("describe", path, "--seed", 8, "--json").out)
    five = json.loads(isthmus("describe", path, "--parties", 5, "--set", "partition.edges=broken", "--json").out)
    assert (len(five["parties"]), five["cross"]) == (5, 0)


def test_describe_tells_what_methods_cannot_train_on(isthmus: Isthmus) -> None:
    done = isthmus("describe", "--set", "data.train=0", "--json")
    assert (done.code, {party["train"] for party in json.loads(done.out)["parties"]}) == (0, {0})


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("cora", "there is no study file 'cora': to use the data set of that name, give --data cora"),
        ("--seed -1", "(see isthmus describe --help)"),
        ("--method fedavg", "unknown option '--method'"),
        ("--parties 2000", "1200 nodes are too few for 2000 parties"),
        ("--data bank", "unknown data set 'bank': did you mean 'banks'?"),
        ("--set partition.beta=1", "partition: give 'name' (a text)"),
    ],
)
def test_wrong_flag_of_describe_is_one_line(isthmus: Isthmus, flags: str, text: str) -> None:
    assert_is_one_line(isthmus("describe", *flags.split()), text)


# ---- the other commands


@pytest.mark.slow
def test_demo_trains_and_writes_a_report(isthmus: Isthmus, tmp_path: Path) -> None:
    done = isthmus("demo")
    assert done.code == 0
    assert len(done.runs) == 5 * 3
    assert "runs/demo/report.html" in done.out
    assert "<svg" in (tmp_path / "runs" / "demo" / "report.html").read_text(encoding="utf-8")
    means = {
        line["method"]: line["mean"]
        for line in json.loads((tmp_path / "runs" / "demo" / "results.json").read_text())["summary"]
        if line["metric"] == "test_accuracy"
    }
    assert means["local"] < means["fedavg"] < means["centralized"]
    assert (isthmus("demo").code, isthmus("demo", "--resume").code) == (2, 2)


def test_report_joins_folders(isthmus: Isthmus, tmp_path: Path) -> None:
    for seed in (0, 1):
        isthmus("run", *SMALL, "--seed", seed, "--out", f"run-{seed}")
    for words in ((), ("--party", "*")):
        done = isthmus("report", "run-0", "run-1", *words)
        assert_is_one_line(done, "report: 2 folders share a page: say where to write it with --out")
    done = isthmus("report", "run-0", "run-1", "--out", "page.html")
    assert (done.code, done.out) == (0, "report in page.html\n")
    assert_is_one_line(
        isthmus("report", "run-0", "--out", "run-1"), "run-1 is a folder: name the file, --out run-1/report"
    )
    done = isthmus("report", "run-0", "--party", "party-[01]")
    assert (done.code, done.out) == (0, "page in run-0/parties/party-0.html\npage in run-0/parties/party-1.html\n")
    assert (tmp_path / "page.html").is_file()


LISTS = [("methods", Method), ("datasets", DataSet), ("partitions", Partition), ("encoders", Encoder)]


@pytest.mark.parametrize(("command", "kind"), LISTS)
def test_list_as_json_has_every_option(isthmus: Isthmus, command: str, kind: type[Registered]) -> None:
    done = isthmus(command, "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert [each["name"] for each in found] == list(kind.known())
    for each in found:
        names = {option["name"].split(".")[0] for option in each["options"]}
        assert names == set(kind.named(each["name"]).option_names())


@pytest.mark.parametrize(("command", "kind"), LISTS)
def test_list_for_people_loses_no_word(isthmus: Isthmus, command: str, kind: type[Registered]) -> None:
    words = isthmus(command).out.split()
    for name, each in kind.known().items():
        assert {name, *each.describe()["summary"].split()} <= set(words)
        one = isthmus(command, name).out.split()
        for option in each.describe()["options"]:
            assert {option["name"], *option["help"].split()} <= set(one)


def test_version(isthmus: Isthmus) -> None:
    assert isthmus("--version") == Done(0, f"isthmus {__version__}\n", "")


@pytest.mark.parametrize("arguments", [(), ("--help",), ("run", "--help"), ("demo", "--help")])
def test_help_is_on_standard_output(isthmus: Isthmus, arguments: tuple[str, ...]) -> None:
    done = isthmus(*arguments)
    assert (done.code, done.err) == (0, "")
    assert done.out.lstrip().startswith("Usage: isthmus")


# ---- mistakes

TYPOS = {
    "# nothing yet": "study.toml is empty: name a method in it",
    'dat = {name = "banks"}': "unknown option 'dat': did you mean 'data'?",
    '[data]\nname = "banks"\nnods = 9': "data 'banks': unknown option 'nods': did you mean 'nodes'?",
    "[model]\nhiden = 9": "encoder 'gcn': unknown option 'hiden': did you mean 'hidden'?",
    "[training]\nronds = 9": "training: no method of the study has an option 'ronds': did you mean 'rounds'?",
    "[training.local]\nepoch = 9": "method 'fedavg': unknown option 'local.epoch': did you mean 'local.epochs'?",
    '[[methods]]\nname = "fedprx"': "unknown method 'fedprx': did you mean 'fedprox'?",
    '[methods]\nname = "fedprox"': "option 'methods' is {'name': 'fedprox'}: give a list",
    "[data": "is not TOML: ",
}

MISTAKES = {
    "--method fedavgg": "unknown method 'fedavgg': did you mean 'fedavg'?",
    "--method fedavg,fedavg": "method 'fedavg' is listed twice",
    "--method ,": "there is no method",
    "--data bank": "unknown data set 'bank': did you mean 'banks'?",
    "--partition louvian": "unknown partition 'louvian': did you mean 'louvain'?",
    "--partition given --data motifs": "these data have no owners: use another partition",
    "--encoder gcnn": "unknown encoder 'gcnn': did you mean 'gcn'?",
    "--set local.lrr=1": "method 'fedavg': unknown option 'local.lrr': did you mean 'local.lr'?",
    "--set local.lr=fast": "option 'local.lr' is 'fast': give a number",
    "--set data.nods=9": "data 'banks': unknown option 'nods': did you mean 'nodes'?",
    "--set fedprox.mu=1": "--set fedprox: method 'fedprox' is not in this study",
    "--set rounds": "setting 'rounds': write it as key=value",
    "--set data.nodes=3": "3 nodes are too few for 4 parties",
    "--rounds 0": "option 'rounds' is 0: give at least 1",
    "--set local.momentum=0.9": "momentum = 0.9 has no effect with optimizer = 'adamw': leave it out",
    "--method centralized --set centralized.fraction=0.5": "fraction has no effect here: leave it out",
    "--method centralized --set fraction=0.5": "no method of the study has an option 'fraction': methods that have it",
    "--rounds many": "--rounds is 'many': give a whole number (see isthmus run --help)",
    "--ronds 3": "unknown option '--ronds': did you mean --rounds?",
    "--seeds 0,x": "--seeds is '0,x': give their number, such as 3, or seeds, such as 0,1,2",
    "--seeds ,": "option 'seeds' is []",
    "--seeds -1": "--seeds is '-1', a number of seeds: give at least 1, or a list, --seeds -1,",
    "--seeds 1 --seed 1": "--seeds and --seed exclude each other",
    "--set lr=0.1": "--set lr: no method of the study has an option 'lr': did you mean --set local.lr=0.1?",
    "--set task.class_weight=balanced": "no task has an option 'class_weight': did you mean 'class_weights'?",
    "--set metric=accuracy": "no method of the study has an option 'metric': did you mean --metric accuracy?",
    "--metric auc": "task 'node-classification': option 'metric' is 'auc': did you mean 'roc_auc'?",
    "--seeds 1,1": "a seed is listed twice",
    "--seeds 2 --set seeds=[5]": "seeds is given twice, as 2 and as [5]: leave out one of the two",
    "--set local.lr=nan": "option 'local.lr' is nan: give a finite number",
    "--set data.classes=3 --set task.classes=2": "task.classes is 2, the data have 3: give at least that many",
    "--parties 0": "option 'parties' is 0: give at least 1",
    "--parties -2": "option 'parties' is -2: give at least 1",
    "--parties 2000": "1200 nodes are too few for 2000 parties",
    "--partition random --parties 2000 --set data.parties=4": "1200 nodes are too few for 2000 parties",
    "--set data.train=0": "party 'party-0' has no training label (4 of 4 have none)",
    "--set data.train=0 --unlabelled idle": "no party has a training label",
    "--unlabelled idl": "option 'unlabelled' is 'idl': give 'error' or 'idle'",
    "--device gpu": "unknown device 'gpu'",
    "--jobs -1": "--jobs is '-1': give at least 0",
    "--ray 127.0.0.1:1": "no cluster answers at '127.0.0.1:1': is ray start running there, and is its port open?",
    "--ray nowhere.toml": "cannot read the study nowhere.toml: No such file or directory",
    "--resume": "--resume needs --out: give the folder of the study to continue",
    "--resume --out new": "holds no started study: run it without --resume",
    "cora": "there is no study file 'cora': to use the data set of that name, give --data cora",
    "nowhere": "cannot read the study nowhere: No such file or directory",
    "nowhere.toml": "cannot read the study nowhere.toml: No such file or directory",
    ".": ". is a folder, not a study file: to use the party folders in it, give --data .",
    "--set class_weights=auto": "did you mean --set task.class_weights=auto?",
    "--set task.class_weights=auto": "option 'class_weights' is 'auto': give 'none' or 'balanced', or a list",
    "--set encoder=sage": "did you mean --encoder sage?",
    "--set model=sage": "--set model: it is a table of options: did you mean --encoder sage?",
    "--set taks.metric=accuracy": "did you mean --metric accuracy?",
    "--set fedprx.mu=1": "did you mean --set fedprox.mu=1?",
    "--set mu=1": "no method of the study has an option 'mu': methods that have it: fedprox",
    "--set import=mine.py": "did you mean --import mine.py?",
    "--set aggregate=3": "option 'aggregate' is 3: give the name of an aggregation",
    "--lr 0.1": "unknown option '--lr': did you mean --set local.lr=0.1?",
    "--class-weights=balanced": "did you mean --set task.class_weights=balanced?",
    "--metric prauc": "option 'metric' is 'prauc': did you mean 'average_precision'?",
    "--grid class_weights=none,balanced": "did you mean task.class_weights, which has one value in each study?",
    "--grid local.lr=0.1 --grid local.lr=0.2": "--grid local.lr is given 2 times: put all its values into one",
    "--grid local.lr=0.1,0.2 --set local.lr=0.5": "--set local.lr=0.5 has no effect: the grid varies local.lr",
    "--grid mu=1,2 --method fedprox --set fedprox.mu=3": "--set fedprox.mu=3 has no effect: the grid varies mu",
    "--grid local.lr=0.01..0.1": "a grid lists values, such as 0.01,0.1; isthmus tune searches ranges, --range",
    "--grid fedprox.mu=1,2": "'fedprox.mu': method 'fedprox' is not in this study: add it with --method fedprox",
    "--grid rounds=1,2 --rounds 3": "--rounds 3 has no effect: the grid varies rounds; leave out one of the two",
    "--grid model.hidden=4,8 --hidden 3": "--hidden 3 has no effect: the grid varies model.hidden",
    "--set partition.split=[0.5,0.5]": "option 'split' is [0.5, 0.5]: give three shares: training, validation, test",
    "--set data.nodes=1000000000000000": "out of memory (asked for 7.11 PiB): use less data, a",
    "--out taken": "taken is a file: choose a folder",
    "--out taken/below": "cannot create the folder taken/below",
}  # fmt: skip


def assert_is_one_line(done: Done, text: str) -> None:
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("isthmus: ")
    assert done.err.count("\n") == 1
    assert text in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("flags", MISTAKES)
def test_wrong_flag_is_one_line_and_writes_nothing(isthmus: Isthmus, tmp_path: Path, flags: str) -> None:
    (tmp_path / "taken").write_text("mine")
    more = () if "--out" in flags or flags == "--resume" else ("--out", "out")
    assert_is_one_line(isthmus("run", *flags.split(), *more), MISTAKES[flags])
    assert files(tmp_path) == {"taken"}
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.parametrize("more", [(), ("--rounds", "3", "--set", "patience=3"), ("--parties", "3")])
@pytest.mark.parametrize("text", TYPOS)
def test_wrong_study_is_one_line_and_writes_nothing(
    isthmus: Isthmus, tmp_path: Path, text: str, more: tuple[str, ...]
) -> None:
    path = study(tmp_path, text)
    assert_is_one_line(isthmus("run", path, *more, "--out", "out"), TYPOS[text])
    assert files(tmp_path) == {"study.toml"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("rum",), "No such command 'rum'"),
        (("--verbose",), "unknown option '--verbose'"),
        (("report",), "Missing argument"),
        (("report", "nowhere"), "no study.toml in 'nowhere': name a folder"),
        (("report", "."), "no study.toml in '.': name a folder"),
        (("methods", "fedavgg"), "unknown method 'fedavgg': did you mean 'fedavg'?"),
        (("methods", "fedavg", "local"), "unexpected extra argument"),
    ],
)
def test_wrong_command_is_one_line(isthmus: Isthmus, tmp_path: Path, arguments: tuple[str, ...], text: str) -> None:
    assert_is_one_line(isthmus(*arguments), text)
    assert not files(tmp_path)


@pytest.mark.parametrize("name", ["cora", "enzymes"])
def test_data_that_cannot_be_had_are_one_line(
    isthmus: Isthmus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def unreachable(*_: Any, **__: Any) -> NoReturn:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setenv("ISTHMUS_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    done = isthmus("run", "--data", name, "--out", "out")
    assert_is_one_line(done, f"data set '{name}': no ")
    assert str(tmp_path / "data") in done.err
    assert "the download failed" in done.err
    assert not files(tmp_path)


def full(*_: Any, **__: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disk_is_one_line_and_leaves_nothing(
    isthmus: Isthmus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", full)
    done = isthmus("run", *SMALL, "--out", "out")
    assert_is_one_line(done, "No space left on device; make room or choose another folder")
    assert not list(tmp_path.iterdir())


def test_disk_that_fills_up_on_the_way_is_one_line_and_can_be_resumed(
    isthmus: Isthmus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyarrow import parquet

    with monkeypatch.context() as patch:
        patch.setattr(parquet.ParquetWriter, "write_table", full)
        done = isthmus("run", *SMALL, "--out", "out")
    run, _, mistake = done.err.partition("\n")
    assert RUN.fullmatch(run)
    assert_is_one_line(done._replace(err=mistake), "cannot write out/history.parquet: No space left on device")
    assert isthmus("run", *SMALL, "--out", "out", "--resume").code == 0
    assert "results.json" in files(tmp_path / "out")


@pytest.mark.parametrize("arguments", [("--debug", "run", "--method", "x"), ("run", "--method", "x", "--debug")])
def test_debug_shows_where_it_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["isthmus", *arguments])
    with pytest.raises(IsthmusError, match="unknown method 'x'"):
        cli.main()


# ---- in a process of its own

COMMAND = (sys.executable, "-m", "isthmus")
SAVING = """
from isthmus.cli.main import main
from isthmus.study.run import run_study

run_study.__kwdefaults__["save_every"] = 0.0
main()
"""
"""The command line, with a checkpoint after every round."""


@pytest.mark.slow
def test_process_prints_json_on_standard_output_and_its_runs_on_standard_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "run", *SMALL, "--json"], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0
    assert Done(0, done.stdout, done.stderr).runs == [("fedavg", "0", "3")]
    assert json.loads(done.stdout)["runs"][0]["method"] == "fedavg"


@pytest.mark.slow
def test_killed_process_goes_on_to_the_same_bits(isthmus: Isthmus, tmp_path: Path) -> None:
    flags = ("run", *SMALL, "--rounds", "200", "--method", "fedavg", "--out")
    process = subprocess.Popen([sys.executable, "-c", SAVING, *flags, "out"], cwd=tmp_path, stdout=subprocess.DEVNULL)
    checkpoint = tmp_path / "out" / ".state" / "fedavg-0.checkpoint"
    try:
        for _ in range(6000):
            if checkpoint.exists() or process.poll() is not None:
                break
            time.sleep(0.01)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    assert files(tmp_path / "out") >= {".state/study", ".state/fedavg-0.checkpoint"}
    assert isthmus(*flags, "out", "--resume").code == 0
    assert isthmus(*flags, "whole").code == 0
    out, whole = tmp_path / "out", tmp_path / "whole"
    assert files(out) == files(whole)
    for name in files(whole) - {"results.json", "SHA256SUMS"}:
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    found = [json.loads((folder / "results.json").read_text()) for folder in (out, whole)]
    for each in found:
        each.pop("created")
        each["runs"][0].pop("seconds")
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("by", ["terminal", "service manager"])
def test_an_interrupt_ends_all_jobs_and_leaves_a_study_to_resume(by: str, isthmus: Isthmus, tmp_path: Path) -> None:
    flags = ("run", *SMALL, "--rounds", "150", "--method", "fedavg,local", "--out", "out")
    words = [sys.executable, "-c", SAVING, *flags, "--jobs", "2"]
    process = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    state = tmp_path / "out" / ".state"
    until("a checkpoint", lambda: any(state.glob("*.checkpoint")) or process.poll() is not None, 120)
    own = [int(each) for each in children.read_text().split()]
    if by == "terminal":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.terminate()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "isthmus: stopped; continue with --resume\n")
    assert len(own) >= 2
    until("the end of its processes", lambda: not any(Path(f"/proc/{each}").exists() for each in own), 30)
    assert isthmus(*flags, "--resume").code == 0
    assert {"results.json", "weights/fedavg-0.safetensors"} <= files(tmp_path / "out")


def test_the_package_runs_as_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "isthmus", "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.lstrip().startswith("Usage: isthmus")
