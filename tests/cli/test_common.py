"""How flags, `--set` and a study file become one study."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import Isthmus
from isthmus.cli.common import read_study
from isthmus.errors import IsthmusError

FILE = """
seeds = [4]

[data]
name = "banks"
parties = 5

[training]
rounds = 9

[[methods]]
name = "fedprox"
mu = 0.5
rounds = 7

[[methods]]
name = "local"
"""
NOTHING: dict[str, Any] = {"parties": None}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(FILE)
    return path


def test_without_a_file_it_is_the_default_study() -> None:
    study = read_study(None, [], **NOTHING)
    assert (study.data, [each.name for each in study.method_list()]) == ({"name": "banks"}, ["fedavg"])


def test_flags_override_the_file(file: Path) -> None:
    study = read_study(file, [], parties=2, method=["fedavg,local", "fedgl"], seeds="1,2", hidden=8, rounds=3)
    assert [each.name for each in study.method_list()] == ["fedavg", "local", "fedgl"]
    assert {each.rounds for each in study.method_list()} == {3}
    assert (study.parties, study.seeds, study.model["hidden"]) == (2, [1, 2], 8)
    assert "parties" not in study.data  # the flag replaces the data set's own option


def test_rounds_override_a_methods_own_table(file: Path) -> None:
    assert [each.rounds for each in read_study(file, [], **NOTHING).method_list()] == [7, 9]
    assert [each.rounds for each in read_study(file, [], parties=None, rounds=2).method_list()] == [2, 2]


def test_assignments_reach_tables_methods_and_all_methods(file: Path) -> None:
    study = read_study(file, ["data.nodes=60", "fedprox.mu=2.0", "local.lr=0.5", "training.patience=3"], **NOTHING)
    fedprox, local = study.method_list()
    assert study.data["nodes"] == 60
    assert fedprox.model_dump()["mu"] == 2.0
    assert {each.model_dump()["local"]["lr"] for each in (fedprox, local)} == {0.5}  # an option, not the method 'local'
    assert {each.patience for each in (fedprox, local)} == {3}


@pytest.mark.parametrize(
    ("assignments", "flags", "says"),
    [
        (["fedgl.rounds=3"], {}, "--set fedgl: method 'fedgl' is not in this study: add it with --method fedgl"),
        ([], {"seeds": "a"}, "--seeds is 'a': give their number, such as 3, or seeds, such as 0,1,2"),
        (["nothing.at=1"], {}, "no method of the study has an option 'nothing.at': known: aggregate"),
    ],
)
def test_mistakes_say_what_to_give(file: Path, assignments: list[str], flags: dict[str, Any], says: str) -> None:
    with pytest.raises(IsthmusError) as error:
        read_study(file, assignments, **NOTHING, **flags)
    assert says in str(error.value)


def test_files_of_ones_own_are_imported_before_names_are_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    text = "from isthmus.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n    name = '{}'\n    share: float = 0.5\n"
    for name in ("own_by_flag", "own_by_file"):
        (tmp_path / f"{name}.py").write_text(text.format(name.replace("_", "-")))
    path = tmp_path / "own.toml"
    path.write_text(f"import = ['{tmp_path / 'own_by_file.py'}']\n")
    names = "own-by-flag,own-by-file"
    given = {"imports": [tmp_path / "own_by_flag.py"], "method": [names], "parties": None}
    study = read_study(path, ["own-by-flag.share=0.25"], **given)
    assert [each.model_dump()["share"] for each in study.method_list()] == [0.25, 0.5]
    assert [Path(each).stem for each in study.resolved()["import"]] == ["own_by_file", "own_by_flag"]


def test_data_of_ones_own_are_exported_and_attacked(isthmus: Isthmus, tmp_path: Path) -> None:
    lines = ("class Own(Banks):", "    name = 'own-banks'", "    nodes: int = 90")
    code = "\n".join(("from isthmus.data.datasets.banks import Banks", *lines))
    (tmp_path / "own_data.py").write_text(code)
    given = ("--import", "own_data.py", "--data", "own-banks", "--parties", "3")
    assert isthmus("party", "export", "out", *given).code == 0
    attack = isthmus("audit", "--by", "reconstruction", *given, "--json")
    assert (attack.code, json.loads(attack.out)["data"]["name"]) == (0, "own-banks")
    del sys.modules["own_data"]


def test_an_option_of_one_method_goes_before_one_for_all_in_any_order(file: Path) -> None:
    given = {**NOTHING, "method": ["fedprox,fedavg"]}
    for order in (["fedprox.local.lr=0.5", "local.lr=0.1"], ["local.lr=0.1", "fedprox.local.lr=0.5"]):
        methods = read_study(file, order, **given).method_list()
        assert [each.model_dump()["local"]["lr"] for each in methods] == [0.5, 0.1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--encoder gcn --set model.encoder=sage", "model.encoder is given twice, as gcn and as sage"),
        ("--rounds 2 --set rounds=4", "rounds is given twice, as 2 and as 4"),
        ("--metric macro_f1 --set task.metric=accuracy", "task.metric is given twice"),
        ("--set local.lr=0.1 --set local.lr=0.2", "local.lr is given twice, as 0.1 and as 0.2"),
    ],
)
def test_one_option_has_one_value(words: str, says: str, isthmus: Isthmus) -> None:
    done = isthmus("run", *words.split())
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert f"{says}" in done.err
    assert "leave out one of the two" in done.err
