"""The package imports fast, imports no optional dependency by itself, and lists its public names."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import isthmus

SOURCE = Path(isthmus.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
EXTRAS = {"pymetis", "rdkit", "nvflare", "cryptography", "tenseal"}
ALLOWED = {
    "nvflare": ["deploy/admin.py", "deploy/commands.py", "deploy/flare.py", "deploy/kits.py"],
    "cryptography": [
        "deploy/door.py",
        "deploy/flare.py",
        "deploy/kits.py",
        "dossier/signing.py",
        "protect/sealing.py",
        "protect/masks.py",
    ],
    "tenseal": ["protect/ckks.py"],
}
"""Files that may import an optional dependency at the top."""


def in_new_process(code: str) -> Any:
    """Run code in a new interpreter and return the JSON that it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return json.loads(done.stdout)


def test_import_loads_no_heavy_package() -> None:
    code = "import sys, json, isthmus; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    modules = in_new_process(code)
    assert EXTRAS.isdisjoint(modules)
    assert {"torch", "torch_geometric", "pydantic", "pyarrow"}.isdisjoint(modules)


def test_reading_results_loads_no_heavy_package() -> None:
    code = (
        "import sys, json, isthmus.report.compare, isthmus.report.report, isthmus.saved, isthmus.cli.comparing;"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    assert {"torch", "torch_geometric"}.isdisjoint(in_new_process(code))


def test_using_the_package_imports_no_extra() -> None:
    code = (
        "import sys, json, isthmus; isthmus.run; from isthmus.methods.base import Method; Method.known();"
        "import isthmus.cli.main, isthmus.study.run, isthmus.progress.terminal;"
        "import isthmus.deploy.preview, isthmus.deploy.coordinator;"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    modules = in_new_process(code)
    assert "torch" in modules
    assert EXTRAS.isdisjoint(modules)


@pytest.mark.parametrize("name", isthmus.__all__)
def test_public_name_resolves(name: str) -> None:
    assert getattr(isthmus, name) is not None
    assert name in dir(isthmus)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'fedavg'"):
        _ = isthmus.fedavg


def test_package_ships_its_types() -> None:
    assert (SOURCE / "py.typed").is_file()


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_source_prints_nothing_and_imports_no_extra_at_the_top(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    assert not [call.lineno for call in calls if call.func.id == "print"], "print: use typer.echo or a console"
    here = file.relative_to(SOURCE).as_posix()
    early = {name for name in imported(tree.body) if name in EXTRAS and here not in ALLOWED.get(name, [])}
    assert not early, f"{here} imports {early} when it is imported: import it where it is used"


def imported(statements: list[ast.stmt]) -> Iterator[str]:
    """Top-level packages that these statements import when the module is imported."""
    for each in statements:
        if isinstance(each, ast.Import):
            yield from (alias.name.split(".")[0] for alias in each.names)
        elif isinstance(each, ast.ImportFrom) and each.module and not each.level:
            yield each.module.split(".")[0]
        elif isinstance(each, ast.If):
            yield from () if "TYPE_CHECKING" in ast.unparse(each.test) else imported(each.body)
        elif isinstance(each, ast.Try | ast.With | ast.ClassDef):
            yield from imported(each.body)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: isthmus.load_model(3), "load_model: folder is 3: give a path"),
        (lambda: isthmus.load_results(3), "load_results: folder is 3: give a path"),
        (lambda: isthmus.load_graph(None), "load_graph: folder is None: give a path"),
        (lambda: isthmus.compare(["a", "b"]), "compare: folder is ['a', 'b']: give a path"),
        (lambda: isthmus.write_report(3), "report: folder is 3: give a path"),
        (lambda: isthmus.run_study("study.toml"), "run_study: study is 'study.toml': give a Study"),
        (lambda: isthmus.tune("study.toml", "runs/x"), r"give a Study, such as isthmus.Study.of({...})"),
        (lambda: isthmus.export_model("runs/x", "x.pt"), "export_model: model is 'runs/x': give what"),
        (lambda: isthmus.check_method("fedavg"), "check_method: method is 'fedavg': give a Method"),
        (lambda: isthmus.Method.named(3), "method is 3: give its name"),
    ],
)
def test_arguments_of_wrong_types_are_refused_in_one_line(call, text):
    with pytest.raises(isthmus.IsthmusError) as raised:
        call()

    assert text in str(raised.value)
