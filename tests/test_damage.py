"""Whatever byte of a file that Isthmus wrote is damaged: its reader says so in one line, or reads what was written."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import isthmus
from isthmus import result_files
from isthmus.errors import IsthmusError
from isthmus.report.loading import read_folder
from isthmus.result_files import AuditRecord

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


@pytest.mark.parametrize("file", KITS)
def test_damaged_file_of_a_kit_is_one_line(kits: Path, file: str) -> None:
    assert check(kits, file, renew if file.startswith("authority") else read_kits) > 0
