"""Whatever byte of a file that Isthmus wrote is damaged: its reader says so in one line, or reads what was written."""

from __future__ import annotations

import copy
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import isthmus
from isthmus import result_files, store
from isthmus.errors import IsthmusError
from isthmus.report.compare import compare, list_runs
from isthmus.report.loading import read_folder
from isthmus.report.report import write_report
from isthmus.result_files import AuditRecord
from isthmus.study.config import Study
from isthmus.study.model_files import write_models
from isthmus.study.run import Watcher, run_study

FLIPS = 6
"""Bytes that are flipped in each file, one at a time."""
RESULTS = [
    "SHA256SUMS", "audits/membership-fedper.json", "graphs/fedper-0/SHA256SUMS", "graphs/fedper-0/edges.parquet",
    "graphs/fedper-0/nodes.safetensors", "history.parquet", "ledger.parquet", "results.json",
    "study.toml", "weights/fedper-0.json", "weights/fedper-0/party-0.safetensors",
]  # fmt: skip
"""Files of the result folder that are read; `weights` has a card for people, too."""
KITS = ["admin/kit.json", "authority/authority.json", "authority/root.key", "authority/rootCA.pem",
        "authority/roster.json", "north/kit.json", "north/roster.json", "north/seal.key", "north/startup/rootCA.pem",
        "server/kit.json"]  # fmt: skip
"""Files of kits that Isthmus reads; FLARE reads the others."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damage") / "results"
    isthmus.run("fedper", model="mlp", rounds=1, out=folder)
    graph = {"x": torch.eye(3), "y": torch.tensor([0, 1, 1]), "edge_index": torch.tensor([[0, 2], [1, 0]])}
    place = result_files.graph_folder(folder, "fedper", 0)
    result_files.write_graph(place, {**graph, "edge_weight": torch.tensor([0.5, 2.0])})
    empty: dict[str, Any] = {"corner": "", "columns": [], "sections": [], "notes": [], "protections": [{"auc": 0.5}]}
    study = (folder / "study.toml").read_text()
    audit = AuditRecord(study=study, audit={"name": "membership"}, method="fedper", seed=0, **empty)
    result_files.write_audit(folder, audit)
    return folder


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("nvflare")
    from isthmus.deploy.kits import make_kits

    folder = tmp_path_factory.mktemp("damage") / "kits"
    make_kits("fed", ["north", "south"], "localhost", 8002, folder)
    return folder


def read_results(folder: Path) -> Any:
    found = read_folder(folder)
    model = isthmus.load_model(folder, party="party-0")
    weights = {name: value.tolist() for name, value in model.weights.items()}
    graph = isthmus.load_graph(folder / "graphs" / "fedper-0").to_dict()
    tables = [found.history, found.ledger, found.set_up, found.coordinates]
    rest = replace(found, history=None, ledger=None, set_up=None, coordinates=None)
    return rest, [each.to_pylist() for each in tables], weights, {name: str(value) for name, value in graph.items()}


def read_kits(folder: Path) -> Any:
    from isthmus.deploy.kits import Kit

    roles = (("admin", "admin"), ("north", "party"), ("server", "server"))
    kits = [Kit.read(folder / name, role) for name, role in roles]  # type: ignore[arg-type]
    return [(kit, kit.roster()) for kit in kits], kits[1].ring()


def renew(folder: Path) -> Any:
    """A new kit has new keys, so it is compared by what it says of the federation."""
    from isthmus.deploy.kits import renew_kit

    try:
        kit = renew_kit(folder / "authority", "south", folder / "new")
        return replace(kit, folder=folder), kit.roster().seals["north"], kit.ring().name
    finally:
        shutil.rmtree(folder / "new", ignore_errors=True)


def check(folder: Path, file: str, read: Callable[[Path], Any]) -> int:
    """Flip bytes of a file one at a time, and count how often its reader complains."""
    path, draw, right = folder / file, random.Random(file), read(folder)
    data, said = path.read_bytes(), list[str]()
    try:
        for at in draw.sample(range(len(data)), FLIPS):
            path.write_bytes(data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :])
            try:
                found = read(folder)
            except IsthmusError as error:
                said.append(str(error))
            else:
                assert found == right, f"byte {at} of {len(data)}"
    finally:
        path.write_bytes(data)
    # a roster is not signed by what a damaged certificate says
    names = (path.name, str(path.parent), *(["roster.json"] if path.name == "rootCA.pem" else []))
    assert all("\n" not in each and any(name in each for name in names) for each in said), said
    return len(said)


@pytest.mark.parametrize("file", RESULTS)
def test_damaged_file_of_results_is_one_line(results: Path, file: str) -> None:
    complaints = check(results, file, read_results)
    assert complaints == FLIPS or (file == "SHA256SUMS" and complaints > 0)  # it names files that nobody reads here


def test_no_file_of_results_is_left_out(results: Path) -> None:
    found = {path.relative_to(results).as_posix() for path in results.rglob("*") if path.is_file()}
    alike = {f"weights/fedper-0/party-{at}.safetensors" for at in (1, 2, 3)}
    assert found == {*RESULTS, *alike, "weights/fedper-0.md", "weights/fedper-0.safetensors"}


@pytest.mark.parametrize(
    "file", ["roster.json", "seal.key", "startup/rootCA.pem", "state/ledger.head", "state/ledger.jsonl"]
)
def test_a_pipe_in_a_kit_is_one_line(kits: Path, file: str, tmp_path: Path) -> None:
    from isthmus.deploy.kits import Kit
    from isthmus.deploy.party_ledger import PartyLedger, read_ledger

    folder = Path(shutil.copytree(kits / "north", tmp_path / "north"))
    ledger = PartyLedger(folder / "state" / "ledger.jsonl")
    ledger.append("begin")
    (folder / file).unlink()
    os.mkfifo(folder / file)
    readers: list[Callable[[], Any]] = [lambda: Kit.read(folder, "party").ring()]
    if "ledger" in file:
        readers = [lambda: read_ledger(ledger.path), lambda: PartyLedger(ledger.path).append("begin")]
    for read in readers:
        with pytest.raises(IsthmusError) as raised:
            read()
        assert "\n" not in str(raised.value)


def put(value: Any, *at: Any) -> Callable[[Any], None]:
    """A change of parsed JSON: another value at a path, or none."""

    def change(content: Any) -> None:
        *path, last = at
        for key in path:
            content = content[key]
        if value is None:
            del content[last]
        else:
            content[last] = value

    return change


MODEL = "weights/fedper-0.json"
WRONG: list[tuple[str, Callable[[Any], None]]] = [
    ("results.json", put([], "study")),
    ("results.json", put(3, "study", "task")),
    ("results.json", put("many", "runs", 0, "rounds")),
    ("results.json", put([1], "runs", 0, "metrics")),
    ("results.json", put(None, "runs")),
    ("results.json", put([{}], "summary")),
    ("results.json", put({"releases": [3]}, "runs", 0, "privacy")),
    ("results.json", put([], "cuts", 0, "seeds")),
    ("audits/membership-fedper.json", put(3, "columns")),
    (MODEL, put("many", "features")),
    (MODEL, put(10**12, "features")),
    (MODEL, put(1 << 20, "model", "hidden")),
    (MODEL, put(10**9, "model", "layers")),
    (MODEL, put([3], "method")),
    (MODEL, put([3], "labels")),
    (MODEL, put({"party-0": 3}, "groups")),
    (MODEL, put({"classes": {}}, "task")),
    (MODEL, put({"fedper-0/party-0.safetensors": "0"}, "sums")),
]
"""Content that no version wrote: other types, missing keys, sizes that no memory has."""
READ_BY_COMPARE = 6
"""Of these, the first that a comparison reads, too."""


@pytest.mark.parametrize("at", range(len(WRONG)))
def test_wrong_content_with_right_checksums_is_one_line(results: Path, at: int, tmp_path: Path) -> None:
    file, change = WRONG[at]
    folder = Path(shutil.copytree(results, tmp_path / "results"))
    content = store.read_json(folder / file)
    change(content)
    store.write_json(folder / file, content)
    store.write_sums(folder, [line.partition("  ")[2] for line in (folder / store.SUMS).read_text().splitlines()])
    readers: list[Callable[[], Any]] = [lambda: write_report([folder])]
    if at < READ_BY_COMPARE:
        readers.append(lambda: compare(folder))
    if file == MODEL:
        readers = [lambda: isthmus.load_model(folder, party="party-0")]
    for read in readers:
        with pytest.raises(IsthmusError) as raised:
            read()
        assert "\n" not in str(raised.value)
    assert list_runs(folder)


def test_weights_of_another_shape_are_one_line(results: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(results, tmp_path / "results"))
    path = folder / "weights" / "fedper-0" / "party-0.safetensors"
    save_file({name: value[..., :1].contiguous() for name, value in load_file(path).items()}, path)
    (folder / store.SUMS).unlink()
    put({}, "sums")(content := store.read_json(folder / MODEL))
    store.write_json(folder / MODEL, content)
    with pytest.raises(IsthmusError, match="has another shape than the model"):
        isthmus.load_model(folder, party="party-0")


STOPPED: list[Callable[[Any], None]] = [
    put("high", "metrics"),
    put([[1]], "history"),
    put([{"round": 1}], "ledger"),
    put(None, "ledger"),
    put({"shared": 1}, "models"),
    put({"x": "y"}, "graph"),
    put({"1": torch.zeros(2)}, "coordinates"),
    put({"model": 1}, "description"),
]
"""Changes of a finished run in the state of a study that was stopped."""


def test_a_run_with_wrong_content_is_one_line_when_its_study_is_resumed(tmp_path: Path) -> None:
    study = Study.of({"data": {"name": "banks", "nodes": 60}, "methods": [{"name": "local", "rounds": 1}]})
    run = tmp_path / "out" / ".state" / "local-0.run"

    class Stop(Watcher):
        def run_done(self, result: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path / "out", watcher=Stop())
    right = store.load(run)
    for change in STOPPED:
        change(content := copy.deepcopy(right))
        store.save(run, content)
        with pytest.raises(
            IsthmusError, match=r"cannot use .*\.state.*: its content is not what isthmus writes"
        ) as raised:
            run_study(study, tmp_path / "out", resume=True)
        assert "\n" not in str(raised.value)
    store.save(run, right)
    assert run_study(study, tmp_path / "out", resume=True).runs


def test_a_party_s_own_model_has_a_checksum(tmp_path: Path) -> None:
    results = isthmus.run("fedper", model="mlp", rounds=1)
    (run,) = results.runs
    weights = {"shared": {**run.weights, **run.models["parties"]["party-0"]}}
    write_models(tmp_path / "state" / "weights", "fedper-0", weights, run.description, private=True)
    isthmus.load_model(tmp_path)
    for path in sorted((tmp_path / "state" / "weights").iterdir()):
        data = path.read_bytes()
        path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
        with pytest.raises(IsthmusError, match=f"cannot read .*{path.name}: "):
            isthmus.load_model(tmp_path)
        path.write_bytes(data)


@pytest.mark.parametrize("file", KITS)
def test_damaged_file_of_a_kit_is_one_line(kits: Path, file: str) -> None:
    assert check(kits, file, renew if file.startswith("authority") else read_kits) > 0
