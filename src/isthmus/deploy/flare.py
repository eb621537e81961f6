"""Federations over NVIDIA FLARE: start-up kits, processes, jobs. No other module imports FLARE.

FLARE provides certificates, mutual TLS, an object at every site that lives as long as a job, and jobs that an
administrator submits. Our jobs contain only the text of a study: a kit allows FLARE's two collaboration components and
the two classes below to be loaded, nothing else, and every site refuses code that comes with a job (right "byoc").
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import socket
import sys
import tempfile
import time
import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import import_module
from io import StringIO
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Literal

from isthmus import store
from isthmus.errors import IsthmusError, missing_extra

try:
    import nvflare.lighter
    from cryptography.x509 import load_pem_x509_certificate
    from nvflare.apis.fl_component import FLComponent
    from nvflare.apis.fl_constant import FLContextKey
    from nvflare.apis.utils.format_check import name_check
    from nvflare.collab import collab
    from nvflare.collab.api.exceptions import CollabCallError, RunAborted
    from nvflare.fuel.f3.mpm import MainProcessMonitor
    from nvflare.fuel.flare_api.api_spec import JobNotFound, JobNotRunning
    from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
    from nvflare.lighter.entity import Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.signature import SignatureBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner
    from nvflare.lighter.utils import load_yaml
    from nvflare.private.fed import authenticator
    from nvflare.widgets.info_collector import InfoCollector
except ImportError as error:
    raise missing_extra("NVIDIA FLARE", "federation", "a federation") from error

import torch

from isthmus.data.ids import read_key
from isthmus.deploy.coordinator import coordinate
from isthmus.deploy.forks import Forks
from isthmus.deploy.launch import JobState
from isthmus.deploy.logs import ENGINE_LOG, log_config
from isthmus.deploy.member import APPROVALS, Member
from isthmus.deploy.remote import Message, Post
from isthmus.methods.base import Method
from isthmus.nn.encoders import Encoder
from isthmus.protect.sealing import Keyring, generate_keyrings, public_key
from isthmus.study.config import Study
from isthmus.study.loop import RunResult
from isthmus.study.run import Watcher
from isthmus.tasks.base import Task
from isthmus.version import VERSION

log = logging.getLogger(__name__)

FORMAT = 1
"""Format number of a kit. Raise it when kits of other versions can no longer be used, such as when a class moves."""
KIT = "kit.json"
"""The file in a kit that says whose kit it is."""
SEAL = "seal.key"
"""The file in a party's kit with its private key to seal messages with."""
DATA = "data.json"
"""The file in a party's kit that says where its data are."""
LOCK = "in-use"
"""The file in a kit that a process locks while it runs with the kit."""
OUTCOME = "outcome.isthmus"
"""The file that a job leaves: results, or why there are none."""
ADMIN = "admin@isthmus.local"
ORGANISATION = "isthmus"
LOADED = (
    "nvflare.collab.runtime.controller.CollabController",
    "nvflare.collab.runtime.executor.CollabExecutor",
    "isthmus.deploy.flare.CoordinatorJob",
    "isthmus.deploy.flare.PartyJob",
)
"""The only classes that a job may load."""
PRELOADED = (
    "grpc.experimental",
    "nvflare.app_common.executors.client_api_executor",
    "nvflare.app_opt.pt.decomposers",
    "nvflare.fuel.f3.drivers.aio_grpc_driver",
    "nvflare.fuel.f3.drivers.aio_http_driver",
    "nvflare.fuel.f3.drivers.aio_tcp_driver",
    "nvflare.fuel.f3.drivers.file_driver",
    "nvflare.fuel.f3.drivers.grpc_driver",
    "pyarrow.parquet",
)
"""What a job loads late, beside methods, tasks and encoders; loaded before jobs are forked."""
START_SECONDS = 300
"""How long a party's process may take to start."""
START_ASK_SECONDS = 0.2
"""How often a party's job asks for a task of FLARE's while the job starts."""
ASK_SECONDS = 5.0
"""How often it asks later; there is none."""
CONNECT_SECONDS = 20.0
"""How long a server may take to answer a new connection."""
END_SECONDS = 15.0
"""How long a job may take to end."""
SEEN_SECONDS = 30.0
"""A party that was seen within this time is connected; it reports every few seconds."""
TRIES = 3
"""How often a command is sent to a server before the server counts as unreachable."""
RIGHTS = ("submit_job", "manage_job", "download_job", "view")
"""What the administrator of a federation may do."""
NO_RIGHTS = ("byoc", "shell_commands", "operate", "configure_job_log", "clone_job")
"""What nobody may do: bring code, run commands on other machines, change what they log."""
RUN = re.compile(r"[0-9a-f]{32}")
"""Names of runs, which become names of folders."""

Role = Literal["server", "party", "admin"]


@dataclass(frozen=True)
class Kit:
    """A start-up kit: whose it is, and of which federation.

    Arguments:
        seals: the public key of each party, to seal messages for it.
    """

    federation: str
    role: Role
    name: str
    host: str
    port: int
    parties: tuple[str, ...]
    seals: Mapping[str, str]
    folder: Path

    @classmethod
    def read(cls, folder: Path, role: Role) -> Kit:
        """Read the kit in a folder, and check its format and role."""
        remedy = "make new kits for all parties with isthmus federation new"
        try:
            content = store.read_json(folder / KIT, within=folder)
            store.check_format(folder / KIT, content, FORMAT, remedy)
            for key in ("format", "isthmus"):
                content.pop(key)
            kit = cls(**{**content, "parties": tuple(content["parties"]), "folder": folder.resolve()})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise IsthmusError(f"{folder} is no start-up kit: {remedy}") from error
        if kit.role != role:
            raise IsthmusError(f"{folder} is the kit of the federation's {kit.role}: give the kit of its {role}")
        return kit

    @property
    def state(self) -> Path:
        """Where a party keeps what a restart needs, its models, and the studies that it approved."""
        return self.folder / "state"

    @property
    def studies(self) -> Path:
        return self.state / APPROVALS

    def ring(self) -> Keyring:
        """Return the party's own key and the public keys of all parties."""
        path = self.folder / SEAL
        try:
            own = bytes.fromhex(store.read_text(path, within=self.folder).strip())
            publics = {party: bytes.fromhex(public) for party, public in self.seals.items()}
            if public_key(own) != publics[self.name]:
                raise ValueError("not this party's key")
        except (OSError, ValueError, KeyError) as error:
            raise IsthmusError(f"{path} is not the key of this kit: copy the kit again from whoever made it") from error
        return Keyring(self.name, own, publics)


# ---- kits


def make_kits(name: str, parties: Sequence[str], host: str, port: int, out: Path, *, days: int = 360) -> list[Kit]:
    """Make start-up kits for the server, every party and the administrator, a folder each.

    The key that signs their certificates is deleted, so nobody can add a kit to this federation later.
    """
    _check_names(parties, host)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise IsthmusError(f"{out} is not empty: choose another folder for the kits")
    existed = out.exists()
    try:
        with tempfile.TemporaryDirectory() as temporary:
            provisioned = _provision(name, parties, host, port, Path(temporary), days)
            rings = generate_keyrings(tuple(parties))
            seals = {party: ring.public_keys[party].hex() for party, ring in rings.items()}
            owners: list[tuple[Role, str, str]] = [("server", "server", host), ("admin", "admin", ADMIN)]
            owners += [("party", party, party) for party in parties]
            kits = []
            for role, owner, flare_name in owners:
                kit = Kit(name, role, owner, host, port, tuple(parties), seals, out / owner)
                _finish_kit(kit, provisioned / flare_name, rings.get(owner) if role == "party" else None)
                kits.append(kit)
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        if existed:
            out.mkdir()
        raise
    return kits


def _check_names(parties: Sequence[str], host: str) -> None:
    for party in parties:
        if name_check(party, "client")[0] or party in ("server", "admin", host):
            raise IsthmusError(f"party '{party}': use letters, digits, '-' and '_', and not the name of a role or host")
    if len(set(parties)) < len(parties) or not parties:
        raise IsthmusError("no party, or one twice: name every party of the federation once, --parties bank-a,bank-b")
    if name_check(host, "host_name")[0] or host.replace(".", "").isdigit():
        raise IsthmusError(f"server '{host}' is not a host name, which its certificate needs: give --server HOST:PORT")


def _provision(name: str, parties: Sequence[str], host: str, port: int, folder: Path, days: int) -> Path:
    project = Project(name, "a federation", props={"api_version": 3})
    project.set_server(host, ORGANISATION, {"fed_learn_port": port, "admin_port": port})
    for party in parties:
        project.add_client(party, ORGANISATION, {})
    project.add_admin(ADMIN, ORGANISATION, {"role": "project_admin"})
    builders = [WorkspaceBuilder(), StaticFileBuilder(scheme="grpc"), CertBuilder(days), SignatureBuilder()]
    provisioner = Provisioner(str(folder), builders)
    templates = Path(nvflare.lighter.__file__).parent / "templates" / "master_template.yml"
    provisioner.add_template(load_yaml(str(templates)))
    with _captured_output() as output:
        context = provisioner.provision(project)
    if context.get("build_error") or "current_prod_dir" not in context:
        raise IsthmusError(f"cannot make the kits: {' '.join(output.getvalue().split())[-300:]}")
    return Path(context["current_prod_dir"])


def _finish_kit(kit: Kit, provisioned: Path, ring: Keyring | None) -> None:
    """Turn the folder that FLARE has provisioned into a kit."""
    folder = kit.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(provisioned, folder)
    for script in folder.glob("startup/*.sh"):  # kits are started with isthmus
        script.unlink()
    for each in ("readme.txt", "startup/readme.txt", "startup/system_info.ipynb"):
        (folder / each).unlink(missing_ok=True)
    content = {key: value for key, value in asdict(kit).items() if key != "folder"}
    store.write_json(folder / KIT, {"format": FORMAT, "isthmus": VERSION, **content})
    if ring is not None:
        store.write(folder / SEAL, ring.private_key.hex(), private=True)
    for key in folder.rglob("*.key"):
        key.chmod(0o600)
    folder.chmod(0o700)


# ---- processes


def serve(folder: Path, *, bind: str | None = None, ready: Callable[[], None] = lambda: None) -> None:
    """Run the server of a federation until it is stopped.

    Arguments:
        bind: address of this machine to listen on; by default, the address that the kit's host name resolves to.
        ready: called when all checks are done, just before the server starts.
    """
    kit = Kit.read(folder, "server")
    _fork_jobs("nvflare.private.fed.app.server.runner_process", LOADED[0])
    with store.lock(kit.folder / LOCK, str(kit.folder)):
        address = _listening_address(kit, bind)
        _write_local_files(kit)
        _listen_only_at(address)
        from nvflare.private.fed.app.server import server_train
        from nvflare.private.fed.server import job_runner

        _look_sooner(job_runner, 0.25)  # whether there is a job to start, or one has ended

        ready()
        settings = ["secure_train=true", f"org={ORGANISATION}"]
        _run_flare(server_train.main, kit, fed_server="fed_server.json", set=settings)


def take_part(folder: Path, data: Path, key: Path | None = None, *, ready: Callable[[], None] = lambda: None) -> None:
    """Run a party of a federation, with its own party folder, until it is stopped.

    Arguments:
        ready: called when all checks are done, just before the party connects.
    """
    kit = Kit.read(folder, "party")
    _fork_jobs("nvflare.private.fed.app.client.worker_process", LOADED[1])
    _check_dates(kit.folder / "startup" / "client.crt")
    shared = None if key is None else read_key(key)
    # two processes with one kit would keep pushing each other out of the federation
    with store.lock(kit.folder / LOCK, str(kit.folder)):
        member = Member(data, kit.state, kit.name, shared, kit.ring())  # checks the folder
        member.ledger.load()
        if member.limits.min_contributors > len(kit.parties):
            raise IsthmusError(
                f"{data}: limits.min_contributors is {member.limits.min_contributors}, more than this federation has "
                f"parties ({len(kit.parties)}): no total would ever be answered"
            )
        _write_local_files(kit)
        paths = {"data": str(data.resolve()), "key": None if key is None else str(key.resolve())}
        store.write(kit.folder / DATA, json.dumps(paths), private=True)
        from nvflare.private.fed.app.client import client_train
        from nvflare.private.fed.client import client_executor

        # FLARE ends a job for everybody when one party's process has died; our coordinator notices and continues
        client_executor.get_return_code = lambda *process: 0
        ready()
        settings = ["secure_train=true", f"uid={kit.name}", f"org={ORGANISATION}"]
        _run_flare(client_train.main, kit, fed_client="fed_client.json", local_rank=0, set=settings)


def _fork_jobs(module: str, loaded: str) -> None:
    """Have the processes of jobs forked from one that has loaded everything; FLARE would start each of them anew.

    Arguments:
        module: FLARE's program of a job's process.
        loaded: the class of FLARE's that such a process loads.
    """
    if sys.platform != "linux":
        return
    from nvflare.app_common.job_launcher import process_launcher
    from nvflare.private.fed.client import client_app_runner
    from nvflare.private.fed.client.client_runner import ClientRunner
    from nvflare.private.fed.server import fed_server

    def load() -> None:
        for name in (module, loaded.rpartition(".")[0], *PRELOADED):
            import_module(name)
        for kind in (Method, Task, Encoder):
            kind.known()  # loads them all

    def run_job(words: Sequence[str]) -> int:
        program = import_module(module)
        sys.argv = [module, *words[words.index(module) + 1 :]]
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # torch was loaded before this was set
        _look_sooner(fed_server, 0.5)  # whether the run is over
        _look_sooner(client_app_runner, 0.05)  # whether the party's process can be reached
        ClientRunner._try_run = _fetch_tasks
        job = program.parse_arguments()
        folder = str(Path(job.workspace) / job.job_id)
        # the program itself waits for what is pending, so no time of grace is needed
        code = MainProcessMonitor.run(main_func=program.main, run_dir=folder, shutdown_grace_time=0.0, args=job)
        logging.shutdown()
        return int(code or 0)

    process_launcher.spawn_process = Forks(run_job, load).start


def _look_sooner(module: Any, seconds: float) -> None:
    """Shorten the pauses of a module of FLARE's, which sleeps for a fixed time wherever it waits for something."""
    module.time = _ImpatientTime(seconds)


class _ImpatientTime:
    """The module `time`, but nothing sleeps longer than so many seconds at once."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, self.seconds))


def _fetch_tasks(runner: Any) -> None:
    """Do what the server has for a party until the run ends; FLARE's own loop sees the end only after a pause."""
    Thread(target=runner._send_job_heartbeat, daemon=True).start()
    while not runner.run_abort_signal.triggered:
        with runner.engine.new_context() as context:
            pause, _ = runner.fetch_and_run_one_task(context)
        until = time.monotonic() + pause
        while time.monotonic() < until and not runner.run_abort_signal.triggered:
            time.sleep(0.05)


def _check_dates(path: Path) -> None:
    """Raise an error if a certificate has expired; the server would hang up without a reason."""
    try:
        certificate = load_pem_x509_certificate(store.read(path))
    except (OSError, ValueError) as error:
        raise IsthmusError(f"{path} is not a certificate: copy the kit again from whoever made it") from error
    if (until := certificate.not_valid_after_utc) < datetime.now(UTC):
        raise IsthmusError(f"{path} expired on {until:%Y-%m-%d}: make new kits with isthmus federation new")


def _run_flare(main: Any, kit: Kit, **arguments: Any) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    settings = [*arguments.pop("set"), "config_folder="]
    with redirect_stdout(StringIO()):
        code = MainProcessMonitor.run(
            main_func=main,
            run_dir=str(kit.folder),
            args=Namespace(workspace=str(kit.folder), set=settings, **arguments),
        )
    if code:
        raise IsthmusError(f"{kit.name} stopped with an error: read {kit.folder / ENGINE_LOG}")


def _listening_address(kit: Kit, bind: str | None) -> str:
    host = bind or kit.host
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        raise IsthmusError(f"cannot resolve the host '{host}': give an address to listen on with --bind") from error
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server that has just stopped is no obstacle
        try:
            probe.bind((found, kit.port))
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            remedy = "stop the process that listens there" if taken else "give an address of this machine with --bind"
            reason = error.strerror or error
            raise IsthmusError(f"cannot listen on {found}:{kit.port}: {reason}; {remedy}") from error
    return str(found)


def _await_listener(host: str, port: int) -> None:
    """Wait until the server listens. FLARE itself would retry after longer and longer pauses."""
    until = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def _listen_only_at(address: str) -> None:
    """Make FLARE listen on this address only; it would listen on all addresses of the machine.

    The processes of one machine talk over another port, which `_write_local_files` keeps on loopback.
    """
    from nvflare.private.fed.server import fed_server

    if not hasattr(fed_server, "_is_loopback_host") or not hasattr(fed_server, "_normalize_loopback_host"):
        raise IsthmusError("this version of NVIDIA FLARE cannot be bound to one address: install nvflare 2.9")
    fed_server._is_loopback_host = lambda host: True
    fed_server._normalize_loopback_host = lambda host: address


def _write_local_files(kit: Kit) -> None:
    """Write the local configuration: what this machine allows, whatever the kit came with."""
    local = kit.folder / "local"
    rights = dict.fromkeys(RIGHTS, "any") | dict.fromkeys(NO_RIGHTS, "none")
    _write_json(local / "authorization.json", {"format_version": "1.0", "permissions": {"project_admin": rights}})
    resources = json.loads((local / "resources.json.default").read_text(encoding="utf-8"))
    resources |= {"class_allow_list": list(LOADED), "class_list_enforcement_mode": "enforce"}
    unwanted = ("site_log_streamer", "log_receiver")  # logs stay on their machine
    resources["components"] = [each for each in resources["components"] if each["id"] not in unwanted]
    if kit.role == "party":
        resources["allow_log_streaming"] = False
    else:
        storage = kit.folder / "kept"
        resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(storage / "snapshots")
        manager = next(each for each in resources["components"] if each["id"] == "job_manager")
        manager["args"]["uri_root"] = str(storage / "jobs")
    _write_json(local / "resources.json", resources)
    inside = {"host": "127.0.0.1", "listen_host": "127.0.0.1", "connection_security": "clear"}
    _write_json(local / "comm_config.json", {"internal": {"scheme": "tcp", "resources": inside}})
    logs = json.loads((local / "log_config.json.default").read_text(encoding="utf-8"))
    _write_json(local / "log_config.json", log_config(logs))


def _write_json(path: Path, value: Any) -> None:
    store.write(path, json.dumps(value, indent=1))


# ---- what runs in a job


class FlarePost(Post):
    """Sends messages with FLARE's collaboration calls, to all parties at once.

    A call to a killed process may hang longer than its own time limit, so the limit is enforced here. While a call
    hangs, nothing more is sent to that party.
    """

    def __init__(self, proxies: Mapping[str, Any]) -> None:
        self.sites = tuple(proxies)
        self.proxies = proxies
        self.hanging: dict[str, Future[Message | str]] = {}

    def send(self, messages: Mapping[str, Message], seconds: float) -> dict[str, Message | str]:
        calls = {party: self._start_call(party, message, seconds) for party, message in messages.items()}
        wait([call for call in calls.values() if call is not None], timeout=seconds)
        replies: dict[str, Message | str] = {}
        for party, call in calls.items():
            if call is None:
                replies[party] = "it cannot be reached"
            elif call.done():
                replies[party] = call.result()
            else:
                replies[party], self.hanging[party] = f"no answer within {seconds:g} s", call
        return replies

    def _start_call(self, party: str, message: Message, seconds: float) -> Future[Message | str] | None:
        if party in self.hanging and not self.hanging[party].done():
            return None
        self.hanging.pop(party, None)
        future: Future[Message | str] = Future()
        # a hanging thread must not keep the process alive
        Thread(target=self._call, args=(future, party, message, seconds), daemon=True).start()
        return future

    def _call(self, future: Future[Message | str], party: str, message: Message, seconds: float) -> None:
        try:
            future.set_result(self.proxies[party](timeout=seconds).handle(message))
        except CollabCallError as error:
            late = "timed out" in str(error)
            future.set_result(f"no answer within {seconds:g} s" if late else "it cannot be reached")
        except BaseException as error:
            future.set_exception(error)


class JobProgress(Watcher):
    """Records how far each run is, for the administrator."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def run_started(self, method: Method, seed: int) -> None:
        self.lines.append({"method": method.name, "seed": seed, "rounds": method.rounds, "at": 0, "metrics": {}})

    def round_done(self, method: Method, seed: int, at: int, metrics: Mapping[str, float]) -> None:
        self.lines[-1] |= {"at": at, "metrics": dict(metrics)}

    def run_done(self, result: RunResult) -> None:
        self.lines[-1]["at"] = self.lines[-1]["rounds"]


class CoordinatorJob(FLComponent):
    """The server's part of a job.

    Arguments:
        study: as JSON.
        run: name under which an interrupted study is resumed.
        parties: the parties that take part, in order.
    """

    def __init__(self, study: str, run: str, parties: list[str]) -> None:
        super().__init__()
        self.study, self.run, self.parties = study, run, parties
        self.progress = JobProgress()

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        if event_type == InfoCollector.EVENT_TYPE_GET_STATS:
            collector = fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR)
            collector.set_info("isthmus", {"lines": [dict(line) for line in self.progress.lines]})

    @collab.main
    def main(self) -> None:
        # parties have done all of FLARE's tasks, so they need not ask for more many times a second
        collab.fl_ctx.get_prop(FLContextKey.RUNNER).config.task_request_interval = ASK_SECONDS
        workspace = collab.fl_ctx.get_workspace()
        if not RUN.fullmatch(self.run):
            raise IsthmusError(f"run '{self.run}': a run's name has 32 hexadecimal digits")
        state = Path(workspace.get_root_dir()) / "state" / self.run
        proxies = {proxy.name: proxy for proxy in collab.clients}
        outcome: dict[str, Any]
        try:
            if missing := [party for party in self.parties if party not in proxies]:
                raise IsthmusError(f"party '{missing[0]}' has left: start it again with isthmus federation join")
            post = FlarePost({party: proxies[party] for party in self.parties})
            log.info("a study began, run %s, with %s", self.run, ", ".join(self.parties))
            done = coordinate(Study.of_federation(json.loads(self.study)), post, self.run, state, watcher=self.progress)
            outcome = {"runs": [run.dump() for run in done.runs], "ledger": done.ledger.dump()}
        except RunAborted:
            raise
        except IsthmusError as error:
            outcome = {"wrong": str(error)}
        except Exception as error:
            log.exception("the study failed")
            outcome = {"wrong": f"{type(error).__name__}: read the log at the server"}
        file = Path(workspace.get_run_dir(collab.fl_ctx.get_job_id())) / OUTCOME
        store.save(file, outcome)
        log.info("the study ended: %s; outcome in %s", outcome.get("wrong", "finished"), file)
        if "runs" in outcome:
            shutil.rmtree(state, ignore_errors=True)


class PartyJob:
    """A party's part of a job."""

    def __init__(self) -> None:
        self.member: Member | None = None
        self.lock = Lock()

    @collab.publish
    def handle(self, message: Message) -> Message:
        """Answer a message of the coordinator; FLARE lets other parties call too, these are refused."""
        if collab.caller != "server":
            return {"wrong": "refused: a party answers only the server"}
        with self.lock:
            if self.member is None:
                try:
                    self.member = self._create_member()
                    log.info("party '%s' takes part in a study", self.member.name)
                except Exception:  # its text may name folders of this machine
                    log.exception("this party cannot start")
                    return {"wrong": "it cannot start (read the log at the party)", "begun": False}
        return self.member.handle(message)

    def _create_member(self) -> Member:
        kit = Kit.read(Path(collab.fl_ctx.get_workspace().get_root_dir()), "party")
        paths = store.read_json(kit.folder / DATA, within=kit.folder)
        key = None if paths["key"] is None else read_key(Path(paths["key"]))
        return Member(Path(paths["data"]), kit.state, kit.name, key, kit.ring())


# ---- the administrator


class Admin:
    """Starts studies and fetches their results.

    Arguments:
        folder: the administrator's kit.
    """

    def __init__(self, folder: Path) -> None:
        self.kit = Kit.read(folder, "admin")
        self.session: Session | None = None
        self.unlisted: dict[str, float] = {}

    def __enter__(self) -> Admin:
        server = f"{self.kit.host}:{self.kit.port}"
        try:
            _await_listener(self.kit.host, self.kit.port)
        except OSError as error:
            raise IsthmusError(f"no server at {server}: start it there with isthmus federation serve") from error
        try:
            _look_sooner(authenticator, 0.05)  # whether the connection is up
            with _captured_output():
                self.session = new_secure_session(ADMIN, str(self.kit.folder), timeout=CONNECT_SECONDS)
        except Exception as error:  # FLARE's errors have no common class
            raise IsthmusError(
                f"the server at {server} refuses this kit: use the kit that was made with the server's, and make "
                "new kits with isthmus federation new if it has expired"
            ) from error
        return self

    def __exit__(self, *reason: object) -> None:
        if self.session is not None:
            with _captured_output():
                self.session.close()

    @property
    def parties(self) -> tuple[str, ...]:
        return self.kit.parties

    def connected(self) -> list[str]:
        """Return the parties that are connected.

        FLARE lists a party for ten minutes after it has left. A party is connected if it was seen just now, or if it is
        seen again within a few seconds: the clocks of two machines may differ.
        """
        before, until = self._last_seen(), time.monotonic() + SEEN_SECONDS / 2
        now = time.time()
        connected = {party for party, at in before.items() if abs(now - at) < SEEN_SECONDS}
        while len(connected) < len(before) and time.monotonic() < until:
            time.sleep(1.0)
            connected |= {party for party, at in self._last_seen().items() if at != before.get(party)}
        return [party for party in self.parties if party in connected]

    def _last_seen(self) -> dict[str, float]:
        """When each party on FLARE's list was last seen."""
        return {each.name: float(each.last_connect_time) for each in self._ask("get_system_info").client_info}

    def jobs(self) -> list[dict[str, Any]]:
        """Return all jobs, newest first."""
        return [dict(each) for each in self._ask("list_jobs", reverse=True)]

    def missing(self) -> list[str]:
        """Return the parties that are not connected."""
        connected = self.connected()
        return [party for party in self.parties if party not in connected]

    def submit(self, study: Mapping[str, Any], run: str) -> str:
        """Start a study and return the id of its job."""
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "study"
            _write_job(folder, study, run, self.parties)
            return str(self._ask("submit_job", str(folder), tries=1))  # a second try could start a second job

    def progress(self, job: str) -> list[dict[str, Any]]:
        """Return a line for every run so far."""
        try:
            return next(_find_lines(self._ask("show_stats", job, "server")), [])
        except (JobNotFound, JobNotRunning):  # it has not started, or has just ended
            return []

    def state(self, job: str) -> JobState:
        """Return the state of a job; a job whose server was killed is lost, although FLARE still calls it running."""
        try:
            status = str(self._ask("get_job_meta", job).get("status", ""))
        except JobNotFound:  # it was deleted, or another federation ran it
            return "lost"
        if status == "FINISHED:COMPLETED":
            return "done"
        if status.startswith("FINISHED"):
            return "lost"
        running = [each.job_id for each in self._ask("get_system_info").job_info]
        if status != "RUNNING" or job in running:
            self.unlisted.pop(job, None)
            return "running"
        since = self.unlisted.setdefault(job, time.monotonic())  # a job that is about to end is unlisted for a moment
        return "lost" if time.monotonic() - since > END_SECONDS else "running"

    def stop(self, job: str) -> None:
        """Stop a running job."""
        self._ask("abort_job", job)

    def outcome(self, job: str) -> dict[str, Any]:
        """Download and return the outcome of a job that has ended."""
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(str(self._ask("download_job_result", job, temporary)))
            for archive in folder.rglob("*.zip"):
                with zipfile.ZipFile(archive) as packed:
                    packed.extractall(archive.parent)
            file = next(folder.rglob(OUTCOME), None)
            if file is None:
                raise IsthmusError(f"job {job} left no result: read the log at the server")
            outcome: dict[str, Any] = store.load(file)
            return outcome

    def _ask(self, command: str, *words: Any, tries: int = TRIES, **options: Any) -> Any:
        """Return what the server answers to a command of FLARE's session."""
        assert self.session is not None
        for left in reversed(range(tries)):
            try:
                with _captured_output():
                    return getattr(self.session, command)(*words, **options)
            except (JobNotFound, JobNotRunning):
                raise
            except Exception as error:  # FLARE's errors have no common class
                if not left:
                    raise IsthmusError(
                        f"the server at {self.kit.host}:{self.kit.port} does not answer: start it again, then "
                        "continue with isthmus federation run --resume"
                    ) from error
                time.sleep(1.0)
        raise AssertionError  # the last try has returned or raised


def _write_job(folder: Path, study: Mapping[str, Any], run: str, parties: Sequence[str]) -> None:
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    names = [str(each["name"]) for each in study["methods"]]
    meta = {
        "name": ", ".join(names),
        "resource_spec": {},
        "min_clients": 1,  # FLARE would end a job that loses a party; ours continues while its quorum is met
        "deploy_map": {"app": ["@ALL"]},
    }
    _write_json(folder / "meta.json", meta)
    coordinator = {"study": json.dumps(study), "run": run, "parties": list(parties)}
    controller = {"server_obj_id": "_server", "sync_task_timeout": START_SECONDS}
    server = {
        "format_version": 2,
        "server": {"task_request_interval": START_ASK_SECONDS},
        "workflows": [{"id": "controller", "path": LOADED[0], "args": controller}],
        "components": [{"id": "_server", "path": LOADED[2], "args": coordinator}],
    }
    client = {
        "format_version": 2,
        "executors": [{"tasks": ["*"], "executor": {"path": LOADED[1], "args": {"client_obj_id": "_client"}}}],
        "components": [{"id": "_client", "path": LOADED[3], "args": {}}],
    }
    _write_json(config / "config_fed_server.json", server)
    _write_json(config / "config_fed_client.json", client)


def _find_lines(found: Any) -> Iterator[list[dict[str, Any]]]:
    """Find our lines in what FLARE returns."""
    if isinstance(found, Mapping):
        if isinstance(lines := found.get("lines"), list):
            yield lines
        for inner in found.values():
            yield from _find_lines(inner)


@contextmanager
def _captured_output() -> Iterator[StringIO]:
    """Capture what FLARE's tools print; it is only of use when something fails."""
    output = StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        yield output
