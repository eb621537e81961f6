"""Lists of what is registered: what is read from the source is what the classes say, and PyTorch stays unloaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from command_line import Isthmus
from isthmus import options
from isthmus.cli.listing import (
    AUDITS,
    DATA_SETS,
    ENCODERS,
    METHODS,
    PARTITIONS,
    TASKS,
    Kind,
    complete,
    print_protocols,
    read_summaries,
    summaries,
)
from isthmus.cli.main import app
from isthmus.errors import IsthmusError
from isthmus.methods.base import Method
from isthmus.study.protocol import known_protocols, protocol_text

KINDS = (METHODS, DATA_SETS, PARTITIONS, TASKS, ENCODERS, AUDITS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.command)
def test_the_source_has_the_summaries_of_the_classes(kind: Kind) -> None:
    built_in = {
        name: each.describe()["summary"]
        for name, each in kind.load().known().items()
        if each.__module__.startswith("isthmus.")
    }
    assert list(read_summaries(kind).items()) == list(built_in.items())


def test_a_method_of_the_users_own_is_listed() -> None:
    class Mine(Method):
        """My method."""

        name = "listed-mine"

    assert summaries(METHODS)["listed-mine"] == "My method."
    Mine.name = ""  # takes it off the registry again
    options._by_name.cache_clear()


def test_lists_and_help_import_no_torch() -> None:
    code = f"""
import json, sys
from isthmus.cli.main import main
for words in {[*([each.command] for each in KINDS), ["protocols"], ["--help"], ["--version"], ["run", "--help"]]}:
    sys.argv = ["isthmus", *words]
    try:
        main()
    except SystemExit as end:
        assert end.code == 0
print(json.dumps(sorted({{name.split(".")[0] for name in sys.modules}})))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert "fedavg" in done.stdout
    assert {"torch", "torch_geometric", "numpy"}.isdisjoint(json.loads(done.stdout.splitlines()[-1]))


def test_protocols_are_listed_printed_and_given_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_protocols(None, as_json=False)
    assert {line.split("  ")[0] for line in capsys.readouterr().out.splitlines()} >= {"fed-pub", "openfgl", "gcfl"}
    print_protocols("Fed-Pub", as_json=False)
    assert capsys.readouterr().out == protocol_text("fed-pub")
    print_protocols(None, as_json=True)
    listed = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in listed] == list(known_protocols())
    print_protocols("gcfl", as_json=True)
    assert json.loads(capsys.readouterr().out) == [each for each in listed if each["name"] == "gcfl"]
    with pytest.raises(IsthmusError, match=r"unknown protocol 'gfcl': did you mean 'gcfl'"):
        print_protocols("gfcl", as_json=True)


def test_a_shell_completes_names() -> None:
    assert complete(DATA_SETS)("CO") == ["coauthor-cs", "coauthor-physics", "cora"]
    assert complete(METHODS)("nothing") == []


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("run --metric acc", ["accuracy"]),
        ("run --select-by ro", ["roc_auc"]),
        ("tune --metric rm", ["rmse"]),
        ("bench mine.py --protocol openf", ["openfgl"]),
        ("protocols openf", ["openfgl"]),
        ("run --encoder gcn", ["gcn"]),
        ("audits memb", ["membership"]),
        ("audit --by memb", ["membership"]),
        ("audit --method fedavg", ["fedavg"]),
        ("audit --data cora", ["cora"]),
        ("predict run --method fedavg", ["fedavg"]),
        ("papers show --fol", ["--folder"]),
    ],
)
def test_a_shell_completes_flags_and_their_values(words: str, names: list[str]) -> None:
    environment = {
        "_ISTHMUS_COMPLETE": "complete_bash", "COMP_WORDS": f"isthmus {words}", "COMP_CWORD": str(len(words.split()))
    }  # fmt: skip
    done = CliRunner().invoke(app, prog_name="isthmus", env=environment)
    assert [line for line in done.output.splitlines() if line] == names


def test_classes_of_a_file_of_ones_own_are_listed(
    isthmus: Isthmus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    text = "from isthmus.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n    name = 'own-in-a-list'\n"
    text += "    share: int = 5\n"
    (tmp_path / "own_in_a_list.py").write_text(text)
    done = isthmus("methods", "own-in-a-list", "--import", "own_in_a_list.py")
    assert (done.code, done.err) == (0, "")
    assert "share" in done.out
