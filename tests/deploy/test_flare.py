"""Federations of real processes over NVIDIA FLARE: a server, three parties, an administrator."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import tomllib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.federated_studies import NEED_PROTECTION, STUDIES, in_one_process, study_of
from tests.deploy.real import Federation, free_port, isthmus, parties_in, redirect, rows_of, until, written
from tests.docs.test_blocks import blocks, commands
from tests.federation.by_hand import at_folders
from tests.federation.equal import check_equal

from isthmus.data.datasets.ledgers import write as write_ledgers
from isthmus.study.config import Study

pytest.importorskip("nvflare")
ROUNDS = 120
"""Enough for a test to meddle with a run."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
BANKS = Study.of({"data": {"name": "banks", "nodes": 300}, "unlabelled": "idle"})


# ---- the way through it


def test_the_page_is_followed_word_by_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that differs is the port, which must be free."""
    monkeypatch.chdir(tmp_path)
    page = blocks("docs/federation.md")
    for block in page:
        if block.title:
            Path(block.title).write_text(block.text)
    words = [line.split()[1:] for block in page if block.language == "console" for line in commands(block, all=True)]
    assert [each[1] for each in words if each[0] == "federation"] == [
        "preview", "new", "serve", "join", "join", "join", "approve", "approve", "approve", "run", "status"
    ]  # fmt: skip
    here = Federation.__new__(Federation)
    here.base, here.kits, here.processes = tmp_path, tmp_path / "kits", {}
    try:
        for each in words:
            if each[:2] in (["federation", "serve"], ["federation", "join"]):
                here.begin(Path(each[2]).name, each[1:])
                continue
            done = isthmus(*each, seconds=300)
            assert done.returncode == 0, done.stderr
            if each[1] == "preview":
                proposed = done.stdout.splitlines()[-1].split()[1]
            if each[1] == "approve":
                assert done.stdout.splitlines()[0] == f"study {proposed}"
            if each[1] == "preview":
                assert "sum (masks)" in done.stdout
            if each[1] == "status":
                assert [f"party-{at}: connected" for at in range(3)] == done.stdout.splitlines()[:3]
        assert listening(here) == {"127.0.0.1"}
    finally:
        here.close()
    study = Study.of({"unlabelled": "idle", "data": {"name": "folder", "path": "data"}, "methods": [
        {"name": "fedavg", "rounds": 30, "local": {"lr": 0.01}}
    ]})  # fmt: skip
    check_equal(tmp_path / "runs" / "fraud", study, "masks")
    said = {(row["verb"], row["action"]) for row in rows_of(tmp_path / "runs" / "fraud", "set-up")}
    assert said == {("ask", "introduce"), ("ask", "encode")}
    assert (tmp_path / "runs" / "fraud" / "report.html").exists()


def listening(federation: Federation) -> set[str]:
    """Addresses that the federation's processes listen on."""
    inodes = set()
    for name in federation.processes:
        for pid in (federation.processes[name].pid, *federation.job_of(name)):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                target = os.readlink(link) if link.exists() else ""
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            parts = line.split()
            if parts[3] == "0A" and parts[9] in inodes:
                raw = bytes.fromhex(parts[1].split(":")[0][-8:])[::-1]  # of a mapped address the last four bytes
                found.add(".".join(map(str, raw)))
    return found


# ---- one federation for what leaves it as it was


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    base = tmp_path_factory.mktemp("federation")
    at_folders(BANKS, base / "data")
    made = Federation(base, written(base / "any.toml"), parties_in(base / "data"))
    made.start()
    yield made
    made.close()


EQUAL: Mapping[str, tuple[str, ...]] = {
    "fedavg": ("fedavg", "moon", "fedcog-gcn", "fedgcn", "fedgc", "fedgl"),
    "fedper": ("fedper", "adafgl", "fedtad", "fedrep", "ditto", "fedproto", "fgssl", "gcfl", "gcfl-plus", "o-pfgl"),
    "fedbn": ("fedbn",),
    "fedcog": ("fedcog",),
    "fedpub": ("fedpub", "fedaux", "fedgta"),
    "fedstar": ("fedstar",),
    "fgcl": ("fgcl",),
    "fclg": ("fclg",),
}
"""By a study that lends data and model, the methods that run on them in one job, with options of their own studies."""


@pytest.mark.processes
@pytest.mark.parametrize(("name", "total"), [(name, total) for total in ("none", "masks", "ckks") for name in EQUAL])
def test_numbers_and_ledger_are_those_of_the_study(
    name: str, total: str, federation: Federation, tmp_path: Path
) -> None:
    base = study_of(name, rounds=2)
    if total != "none" and name == "fedpub":
        pytest.skip("mixes for one reader are no sums that masks or encryption protect: such a study is refused")
    named = [each for each in EQUAL[name] if total != "none" or each not in NEED_PROTECTION]
    methods = [STUDIES["fedgc by sgd" if each == "fedgc" else each]["methods"][0] for each in named]
    protect = base.protect.model_copy(update={"total": total, "noise": "study"})
    study, toml = put(base.model_copy(update={"methods": methods, "protect": protect}), federation, tmp_path)
    done = federation.run(toml, tmp_path / "out")
    assert done.returncode == 0, done.stderr + federation.log("server")
    check_equal(tmp_path / "out", study, total)
    assert_no_key_at(federation.kits / "server", federation)


@pytest.mark.processes
@pytest.mark.parametrize("name", ["fedgl", "fedcog"])
def test_ids_that_are_matched_obliviously_lead_to_the_same_results(
    name: str, federation: Federation, tmp_path: Path
) -> None:
    study, toml = put(study_of(name, rounds=2, protect={"matching": "oblivious"}), federation, tmp_path)
    done = federation.run(toml, tmp_path / "out")
    assert done.returncode == 0, done.stderr + federation.log("server")
    due = {(at, metric): value for at, metric, value in in_one_process(study).history}
    history = [row for row in rows_of(tmp_path / "out", "history") if row["method"] == name]
    assert {row["round"] for row in history} == {1, 2}
    assert all(row["value"] == pytest.approx(due[row["round"], row["metric"]]) for row in history)
    assert {"match", "match: delivery"} <= {row["action"] for row in rows_of(tmp_path / "out", "set-up")}


PRIVATE: Mapping[str, dict[str, Any]] = {
    "party": {"privacy": {"unit": "party", "epsilon": 50.0}, "protect": {"total": "masks"}},
    "item": {"privacy": {"unit": "item", "epsilon": 8.0}, "model": {"encoder": "mlp", "hidden": 8, "dropout": 0.0}},
    "edge": {"privacy": {"unit": "edge", "epsilon": 8.0}, "model": {"encoder": "gap", "hidden": 8}},
    "node": {
        "privacy": {"unit": "node", "epsilon": 8.0, "neighbours": 200},
        "model": {"encoder": "gap", "hidden": 8, "dropout": 0.0},
    },
    "crossing edges": {
        "methods": [{"name": "fedgcn", "rounds": 2}],
        "privacy": {"unit": "edge", "epsilon": 8.0},
        "protect": {"total": "masks"},
        "model": {"encoder": "gap", "hidden": 8},
    },
}


@pytest.mark.processes
@pytest.mark.parametrize("case", PRIVATE)
def test_a_private_study_spends_what_it_says_and_its_dossiers_are_signed(
    case: str, federation: Federation, tmp_path: Path
) -> None:
    _, toml = put(study_of("fedavg", rounds=2, **PRIVATE[case]), federation, tmp_path)
    out, kits = tmp_path / "out", federation.kits
    done = federation.run(toml, out)
    assert done.returncode == 0, done.stderr + federation.log("server")
    (run,) = json.loads((out / "results.json").read_text())["runs"]
    assert run["privacy"]["of"] == PRIVATE[case]["privacy"]["unit"]
    assert run["privacy"]["epsilon"] == pytest.approx(PRIVATE[case]["privacy"]["epsilon"])
    for words in (
        ("dossier", out, "--kit", kits / "admin"),
        ("dossier", "verify", out, "--kit", kits / "party-0"),
        ("dossier", out, "--kit", kits / "party-1"),
        ("dossier", "verify", out / "dossier-party-1.json", "--kit", kits / "party-1"),
    ):
        done = isthmus(*words)
        assert done.returncode == 0, f"{words}: {done.stderr}"
    (stated,) = json.loads((out / "dossier.json").read_text())["privacy"]
    assert (stated["unit"], stated["epsilon"]) == (run["privacy"]["unit"], pytest.approx(run["privacy"]["epsilon"]))


def put(base: Study, federation: Federation, tmp_path: Path) -> tuple[Study, Path]:
    """A study of the federation's parties, whose data are written anew, and its file."""
    shutil.rmtree(federation.base / "data")
    study = at_folders(base, federation.base / "data")
    return study, written(tmp_path / "s.toml", **study.resolved(), protect=base.protect.model_dump())


@pytest.mark.processes
def test_tables_of_banks_are_a_typed_federation(tmp_path: Path) -> None:
    """From three CSV files of each bank to transfers that are classified: the page's study, as in one process."""
    write_ledgers(tmp_path / "exports", parties=3, customers=30, transfers=12, laundering=0.1)
    made = isthmus(
        "party", "new", tmp_path / "data", "--tables", f"{tmp_path}/exports/*", "--label", "transfers.laundering"
    )
    assert made.returncode == 0, made.stderr
    (page,) = (each.text for each in blocks("docs/laundering.md") if each.title == "together.toml")
    told = tomllib.loads(page)
    told["methods"][0]["rounds"] = 2
    whole = {**told, "data": {"name": "folder", "path": str(tmp_path / "data")}}
    study = Study.of({**whole, "unlabelled": "idle", "protect": {"total": "none"}})
    toml = written(tmp_path / "s.toml", **study.resolved(), protect=study.protect.model_dump())
    here = Federation(tmp_path / "federation", toml, parties_in(tmp_path / "data"))
    try:
        here.start()
        done = here.run(toml, tmp_path / "out")
        assert done.returncode == 0, done.stderr + here.log("server")
    finally:
        here.close()
    check_equal(tmp_path / "out", study)


def assert_no_key_at(folder: Path, federation: Federation) -> None:
    """No file there has a key that a party seals with."""
    keys = [bytes.fromhex((federation.kits / party / "seal.key").read_text()) for party in federation.data]
    for file in folder.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            assert not any(key in data or key.hex().encode() in data for key in keys), file


def hostile(job: Path, kind: str, mark: Path) -> Path:
    """A job that brings code which leaves a mark, or one that has another class loaded than those allowed."""
    from isthmus.deploy.admin import write_job

    write_job(job, {"methods": []}, "0" * 32, ["party-0", "party-1", "party-2"], "{}")
    config = job / "app" / "config" / "config_fed_client.json"
    said = json.loads(config.read_text())
    if kind == "code":
        (job / "app" / "custom").mkdir()
        code = f"class Evil:\n    def __init__(self): open({str(mark)!r}, 'w')\n"
        (job / "app" / "custom" / "evil.py").write_text(code)
    path, arguments = ("evil.Evil", {}) if kind == "code" else ("io.FileIO", {"file": str(mark), "mode": "w"})
    said["components"] += [{"id": "evil", "path": path, "args": arguments}]
    config.write_text(json.dumps(said))
    return job


@pytest.mark.processes
def test_code_that_comes_with_a_job_is_refused(federation: Federation, tmp_path: Path) -> None:
    from isthmus.deploy.admin import Admin

    mark = tmp_path / "was-here"
    with Admin(federation.kits / "admin") as admin:
        jobs = [str(admin._ask("submit_job", str(hostile(tmp_path / kind, kind, mark)))) for kind in ("code", "class")]
        until("the end of the jobs", lambda: all(admin.follow("0" * 32, job).state != "running" for job in jobs), 120)
        states = [admin.follow("0" * 32, job).state for job in jobs]
        assert states == ["lost", "lost"]
    assert not mark.exists()


@pytest.mark.processes
def test_the_server_listens_where_it_is_told_to(tmp_path: Path) -> None:
    here = Federation(tmp_path, written(tmp_path / "any.toml"), {"party-0": tmp_path})
    try:
        here.begin("server", ["serve", here.kits / "server", "--bind", "127.0.0.2"])
        until("the listener", lambda: "127.0.0.2" in listening(here), 60)
        assert listening(here) == {"127.0.0.1", "127.0.0.2"}  # within this machine, and for the parties
        again = isthmus("federation", "serve", here.kits / "server")
        assert again.returncode == 2
        assert "is in use by another process: stop that process first" in again.stderr
        here.processes["server"].send_signal(signal.SIGINT)
        assert here.processes.pop("server").wait(timeout=10) == 130
        assert here.log("server").count("isthmus: stopped") == 1
        assert "Traceback" not in (tmp_path / "server.out").read_text()
    finally:
        here.close()


def test_mistakes_show_before_anybody_is_reached(tmp_path: Path) -> None:
    at_folders(BANKS, tmp_path / "data", parties=1)
    here = Federation(tmp_path, written(tmp_path / "any.toml"), {"party-0": tmp_path / "data" / "party-0"})
    join = ("federation", "join", here.kits / "party-0", "--data")
    for words, why in (
        ((*join, tmp_path / "nowhere"), "No such file or directory"),
        (("federation", "status", here.kits / "admin"), "no server at localhost"),
    ):
        said = isthmus(*words)
        assert (said.returncode, said.stdout) == (2, "")
        assert why in said.stderr
    with (tmp_path / "data" / "party-0" / "party.toml").open("a") as file:
        file.write("\n[limits]\nmin_contributors = 2\n")
    said = isthmus(*join, here.data["party-0"])
    assert "limits.min_contributors is 2, more than this federation has parties (1)" in said.stderr


@pytest.mark.processes
def test_a_certificate_that_is_not_valid_now_lets_nobody_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nvflare.lighter.impl import cert

    from isthmus.deploy import kits

    at_folders(BANKS, tmp_path / "data")
    generate, now = cert.generate_cert, datetime.now(UTC)
    dates = {
        "party-1": {"not_valid_before": now - timedelta(days=9), "not_valid_after": now - timedelta(days=2)},
        "party-2": {"not_valid_before": now + timedelta(hours=2), "not_valid_after": now + timedelta(days=9)},
    }

    def dated(**told: Any) -> Any:
        return generate(**told | dates.get(told["subject"].name, {}))

    monkeypatch.setattr(cert, "generate_cert", dated)
    here = Federation.__new__(Federation)
    here.base, here.kits, here.processes, here.port = tmp_path, tmp_path / "kits", {}, free_port()
    kits.make_kits("x", ["party-0", "party-1", "party-2"], "localhost", here.port, here.kits)
    for party, why in (
        ("party-1", "client.crt expired on"),
        ("party-2", "by the clock of this machine: set the clock"),
    ):
        said = isthmus("federation", "join", here.kits / party, "--data", tmp_path / "data" / party)
        assert said.returncode == 2
        assert why in said.stderr
    try:  # past that check, the server itself turns them away
        here.serve()
        until("the listener", lambda: reached(here.port), 60)
        assert refusal(here.kits / "party-1" / "startup", here.port)
        assert refusal(here.kits / "party-2" / "startup", here.port)
        assert refusal(here.kits / "party-0" / "startup", here.port) == ""
    finally:
        here.close()


def reached(port: int) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection(("localhost", port), timeout=5).close()
    except OSError:
        return False
    return True


def refusal(startup: Path, port: int) -> str:
    """What a server says to somebody with this certificate; nothing where it lets them in."""
    context = ssl.create_default_context(cafile=startup / "rootCA.pem")
    context.load_cert_chain(startup / "client.crt", startup / "client.key")
    context.set_alpn_protocols(["h2"])
    try:
        bare = socket.create_connection(("localhost", port), timeout=20)
        with context.wrap_socket(bare, server_hostname="localhost") as line:
            # under TLS 1.3 a server says no after the handshake, or only hangs up; to who is let in HTTP/2 speaks first
            return "" if line.recv(1) else "it hung up"
    except OSError as error:
        return str(error)


@pytest.mark.processes
def test_a_party_of_another_federation_does_not_get_in(tmp_path: Path) -> None:
    """Its kit names this server, but its certificate is of another authority."""
    at_folders(BANKS, tmp_path / "data", parties=2)
    one, other = (
        Federation(made, written(made / "any.toml"), parties_in(tmp_path / "data"))
        for made in (tmp_path / "one", tmp_path / "other")
        if made.mkdir() is None
    )
    for kit in ("party-0", "admin"):
        redirect(other.kits / kit, other.port, one.port)
    try:
        one.serve()
        other.join("party-0")
        until("the refusal", lambda: "certificate" in other.log("party-0").lower(), 60)
        assert isthmus("federation", "status", one.kits / "admin").stdout.splitlines()[0] == "party-0: not connected"
        strange = isthmus("federation", "status", other.kits / "admin")
        assert (strange.returncode, strange.stderr.count("\n")) == (2, 1)
        assert "refuses this kit" in strange.stderr
    finally:
        one.close()
        other.close()


@pytest.mark.parametrize(("change", "found"), [({"format": 99}, "format 99"), ({"format": None}, "no format number")])
def test_a_kit_of_another_format_is_refused(tmp_path: Path, change: dict[str, Any], found: str) -> None:
    from isthmus import __version__
    from isthmus.deploy import flare, kits
    from isthmus.deploy.admin import Admin
    from isthmus.errors import IsthmusError

    made = kits.make_kits("x", ["party-0"], "localhost", free_port(), tmp_path / "kits")
    for kit in made:
        assert kits.Kit.read(kit.folder, kit.role) == kit
        file = kit.folder / kits.KIT
        content = json.loads(file.read_text()) | change
        content.pop("sha256")  # another version wrote another one
        file.write_text(json.dumps(content))
    server, admin, party = (kit.folder for kit in made)
    for start in (
        lambda: flare.serve(server),
        lambda: flare.take_part(party, tmp_path / "data"),
        lambda: Admin(admin),
    ):
        with pytest.raises(IsthmusError) as error:
            start()
        text = str(error.value)
        assert f"it has {found}, and isthmus {__version__} reads format {kits.FORMAT}" in text
        assert "make new kits for all parties with isthmus federation new" in text
        assert "\n" not in text


def test_the_classes_that_a_kit_allows_exist() -> None:
    from importlib import import_module

    from isthmus.deploy.admin import LOADED

    for path in LOADED:
        module, _, name = path.rpartition(".")
        assert isinstance(getattr(import_module(module), name), type)
