"""Users' code is found by its name, told apart by its source, and never taken for something that is built in."""

from __future__ import annotations

import hashlib
import importlib
import logging
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_geometric.nn import GraphSAGE

from isthmus import own_code
from isthmus.data.pool import DataSet
from isthmus.errors import IsthmusError
from isthmus.methods.base import Method
from isthmus.methods.fedavg import FedAvg
from isthmus.nn.encoders import Encoder
from isthmus.options import Registered
from isthmus.study.config import Study

ENCODER = """
from isthmus.nn.encoders import Gcn

class Third(Gcn):
    name = "{name}"
"""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the modules and the folders that a test imports from."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        del sys.modules[name]
    own_code.load_entry_points.cache_clear()
    own_code._packages.cache_clear()


def installed(folder: Path, name: str, code: str, points: str) -> None:
    """Install a package with one module of its name."""
    folder.joinpath(f"{name}.py").write_text(code)
    info = folder / f"{name}-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(points)
    (info / "top_level.txt").write_text(f"{name}\n")
    (info / "RECORD").write_text(f"{name}.py,,\n{name}-1.2.dist-info/RECORD,,\n")
    sys.path.append(str(folder))
    importlib.invalidate_caches()
    own_code.load_entry_points.cache_clear()
    own_code._packages.cache_clear()


def test_a_file_is_imported_as_the_module_of_its_name(tmp_path: Path) -> None:
    file = tmp_path / "own_first.py"
    file.write_text("class Wide:\n    class Inner: ...\n")
    own_code.import_files([file, str(file)])
    assert own_code.object_at("own_first:Wide") is sys.modules["own_first"].Wide
    assert own_code.reference_of(own_code.object_at("own_first:Wide.Inner")) == "own_first:Wide.Inner"


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("own-one.py", "", "give a Python file whose name is that of a module"),
        ("own_one.txt", "", "give a Python file whose name is that of a module"),
        ("json.py", "", "another module is called 'json': rename the file"),
        ("own_two.py", "import own_missing", "its code needs the module 'own_missing'"),
        ("own_three.py", "1 / 0", "its code fails: ZeroDivisionError: division by zero"),
        ("own_four.py", "class Wide(:", "its code fails: SyntaxError"),
        ("own_five.py", "raise SystemExit(3)", "its code fails: SystemExit: 3"),
    ],
)
def test_a_file_that_cannot_be_imported_is_an_error(tmp_path: Path, name: str, code: str, text: str) -> None:
    (tmp_path / name).write_text(code)
    with pytest.raises(IsthmusError, match=f"^import '.*{name}': {text}") as caught:
        own_code.import_files([tmp_path / name])
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(IsthmusError, match="there is no such file in "):
        own_code.import_files([tmp_path / "nowhere.py"])
    with pytest.raises(IsthmusError, match="there is no module 'own_nowhere': install its package, or name its file"):
        own_code.object_at("own_nowhere:Wide")
    with pytest.raises(IsthmusError, match=r"there is no module 'json\.own': "):
        own_code.object_at("json.own:Wide")
    with pytest.raises(IsthmusError, match="module 'json' has no 'Wide'"):
        own_code.object_at("json:Wide")


def test_another_process_finds_only_what_a_module_names() -> None:
    def inner() -> None: ...

    assert own_code.can_be_found(GraphSAGE)
    assert not own_code.can_be_found(inner)
    assert not own_code.can_be_found(lambda: None)
    assert not own_code.can_be_found(GraphSAGE(3, 4, 1))


def test_an_error_carries_its_place_to_another_process() -> None:
    def fail() -> float:
        return 1 / 0

    with pytest.raises(ZeroDivisionError) as raised:
        fail()
    place = own_code.where_raised(raised.value)
    assert place.startswith("test_own_code.py:")
    own_code.keep_place(raised.value)
    arrived = pickle.loads(pickle.dumps(raised.value))
    assert arrived.__traceback__ is None
    assert own_code.where_raised(arrived) == place


def test_compiled_code_of_a_library_is_not_a_users_own() -> None:
    def fails_in(file: str) -> str:
        with pytest.raises(ZeroDivisionError) as raised:
            eval(compile("1 / 0", file, "eval"))
        raised.value.__traceback__ = raised.value.__traceback__.tb_next  # without this test
        return own_code.where_raised(raised.value)

    assert fails_in("numpy/random/_common.pyx") == ""
    assert fails_in("mine.py") == "mine.py:1"


def test_the_source_hash_is_that_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "own_hashed.py"
    file.write_bytes(b"class Wide: ...\r\n")
    own_code.import_files([file])
    due = hashlib.sha256(b"class Wide: ...\n").hexdigest()
    wide = own_code.object_at("own_hashed:Wide")
    assert own_code.identify([wide, FedAvg]) == {"own_hashed:Wide": {"source": due, "package": ""}}
    assert own_code.source_hash(wide()) == due
    assert own_code.source_hash(len) == ""


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (Encoder, "isthmus.nn.encoders:Gcn"),
        (Method, "isthmus.methods.fedavg:FedAvg"),
        (DataSet, "isthmus.data.datasets.banks:Banks"),
    ],
)
def test_a_package_brings_its_own_by_entry_points(tmp_path: Path, kind: type[Registered], base: str) -> None:
    module, name = base.split(":")
    code = f"from {module} import {name}\n\nclass Third({name}):\n    name = 'third'\n"
    installed(tmp_path, "own_pack", code, f"[{kind.entry_points}]\nthird = own_pack:Third\n")
    assert own_code.identify([kind.named("third")])["own_pack:Third"]["package"] == "own_pack 1.2"


def test_a_federation_takes_what_an_installed_package_brings(tmp_path: Path) -> None:
    study = {"model": {"encoder": "fourth"}, "methods": [{"name": "fedavg"}]}
    with pytest.raises(IsthmusError, match="unknown encoder 'fourth'"):
        Study.of_federation(study)
    installed(tmp_path, "own_late", ENCODER.format(name="fourth"), "[isthmus.encoders]\nfourth = own_late:Third\n")
    assert Study.of_federation(study).encoder().name == "fourth"


def test_a_package_that_fails_is_named_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    installed(tmp_path, "own_broken", "1 / 0", "[isthmus.methods]\nthird = own_broken:Third\n")
    with caplog.at_level(logging.WARNING):
        assert "fedavg" in Method.known()
    assert "own_broken: entry point 'third' of isthmus.methods cannot be loaded (ZeroDivisionError" in caplog.text
