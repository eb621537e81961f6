"""Federations over NVIDIA FLARE: the processes of a server and of a party, and what runs in a job.

FLARE provides certificates, mutual TLS, an object at every site that lives as long as a job, and jobs that an
administrator submits. Our jobs contain only the text of a study: a kit allows FLARE's two collaboration components and
the two classes below to be loaded, nothing else, and every site refuses code that comes with a job (right "byoc").
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import redirect_stdout
from datetime import UTC, datetime
from importlib import import_module
from io import StringIO
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from uuid import uuid4

from isthmus import store
from isthmus.errors import IsthmusError, missing_extra

try:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509 import load_pem_x509_certificate
    from nvflare.apis.fl_component import FLComponent
    from nvflare.apis.fl_constant import FLContextKey
    from nvflare.collab import collab
    from nvflare.collab.api.exceptions import CollabCallError
    from nvflare.fuel.f3.mpm import MainProcessMonitor
except ImportError as error:
    raise missing_extra("NVIDIA FLARE", "federation", "a federation") from error

import torch

from isthmus.data.ids import read_hashing
from isthmus.deploy import door
from isthmus.deploy.admin import LOADED, look_sooner
from isthmus.deploy.coordinator import Outcome, coordinate
from isthmus.deploy.forks import Forks
from isthmus.deploy.job_progress import JobProgress
from isthmus.deploy.kits import COPY_AGAIN, ORGANISATION, Kit, write_json
from isthmus.deploy.logs import ENGINE_LOG, log_config
from isthmus.deploy.member import Member
from isthmus.deploy.party_side import Message
from isthmus.deploy.records import EVERY_SECONDS, Records
from isthmus.deploy.remote import Post
from isthmus.deploy.requests import guard_commands, guard_requests
from isthmus.methods.base import Method
from isthmus.nn.encoders import Encoder
from isthmus.study.config import Study
from isthmus.tasks.base import Task

log = logging.getLogger(__name__)

DATA = "data.json"
"""The file in a party's kit that says where its data are."""
LOCK = "in-use"
"""The file in a kit that a process locks while it runs with the kit."""
STATES = "state"
"""The folder in the server's kit with what it keeps of each study."""
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
ASK_SECONDS = 5.0
"""How often a party's job asks for a task of FLARE's once the job has started; there is none."""
OUTCOME_SECONDS = 30
"""How long FLARE holds a finished job running for parties that do not report its end."""
RIGHTS = ("submit_job", "manage_job", "download_job", "view")
"""What the administrator of a federation may do."""
NO_RIGHTS = ("byoc", "shell_commands", "operate", "configure_job_log", "clone_job")
"""What nobody may do: bring code, run commands on other machines, change what they log."""


# ---- processes


def serve(folder: Path, *, bind: str | None = None, ready: Callable[[], None] = lambda: None) -> None:
    """Run the server of a federation until it is stopped.

    Arguments:
        bind: address of this machine to listen on; by default, the address that the kit's host name resolves to.
        ready: called when all checks are done, just before the server starts.
    """
    kit = Kit.read(folder, "server")
    _check_kit(kit, "server")
    _fork_jobs("nvflare.private.fed.app.server.runner_process", LOADED[0])
    with store.lock(kit.folder / LOCK, str(kit.folder)):
        address = _listening_address(kit, bind)
        _write_local_files(kit)
        _listen_only_at(address)
        os.environ["NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT"] = str(OUTCOME_SECONDS)
        from nvflare.private.fed.app.server import server_train
        from nvflare.private.fed.server import job_runner

        from isthmus.deploy import commands

        guard = door.Door(kit)
        door.guard_connections(guard)
        guard_requests()
        guard_commands()
        commands.offer(guard, Records(kit.folder / STATES))
        look_sooner(job_runner, 0.25)  # whether there is a job to start, or one has ended

        ready()
        settings = ["secure_train=true", f"org={ORGANISATION}"]
        _run_flare(server_train.main, kit, fed_server="fed_server.json", set=settings)


def take_part(
    folder: Path,
    data: Path,
    key: Path | None = None,
    *,
    ready: Callable[[], None] = lambda: None,
    refused: Callable[[str], None] = lambda why: None,
) -> None:
    """Run a party of a federation, with its own party folder, until it is stopped.

    Arguments:
        ready: called when all checks are done, just before the party connects.
        refused: called with the reason when the server does not let this kit in.
    """
    kit = Kit.read(folder, "party")
    _check_kit(kit, "client")
    os.environ[door.PROCESS] = uuid4().hex  # the processes of jobs inherit it
    _fork_jobs("nvflare.private.fed.app.client.worker_process", LOADED[1])
    hashing = read_hashing(key)
    # two processes with one kit would keep pushing each other out of the federation
    with store.lock(kit.folder / LOCK, str(kit.folder)):
        member = Member(data, kit.state, kit.name, hashing, kit.ring())  # checks the folder
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
        guard_requests()
        door.knock(refused)
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
        look_sooner(fed_server, 0.5)  # whether the run is over
        look_sooner(client_app_runner, 0.05)  # whether the party's process can be reached
        ClientRunner._try_run = _fetch_tasks
        guard_requests()
        if door.PROCESS in os.environ:
            door.knock(lambda why: None)
        job = program.parse_arguments()
        folder = str(Path(job.workspace) / job.job_id)
        # the program itself waits for what is pending, so no time of grace is needed
        code = MainProcessMonitor.run(main_func=program.main, run_dir=folder, shutdown_grace_time=0.0, args=job)
        logging.shutdown()
        return int(code or 0)

    process_launcher.spawn_process = Forks(run_job, load).start


def _fetch_tasks(runner: Any) -> None:
    """Do what the server has for a party until the run ends; FLARE's own loop sees the end only after a pause."""
    Thread(target=runner._send_job_heartbeat, daemon=True).start()
    while not runner.run_abort_signal.triggered:
        with runner.engine.new_context() as context:
            pause, _ = runner.fetch_and_run_one_task(context)
        until = time.monotonic() + pause
        while time.monotonic() < until and not runner.run_abort_signal.triggered:
            time.sleep(0.05)


def _check_kit(kit: Kit, name: str) -> None:
    """Refuse a kit with which FLARE would fail without a reason, or the other end would hang up.

    Arguments:
        name: of the files with its certificate and key.
    """
    if any(map(str.isspace, str(kit.folder))):  # FLARE starts a job by a command that it splits at spaces
        raise IsthmusError(f"{kit.folder}: NVIDIA FLARE cannot run jobs in a path with spaces: move the kit")
    startup = kit.folder / "startup"
    for part in (f"startup/fed_{name}.json", "local/resources.json.default", "local/log_config.json.default"):
        _read_part(kit.folder / part, json.loads)
    path = startup / f"{name}.crt"
    certificate = _read_part(path, load_pem_x509_certificate)
    key = _read_part(startup / f"{name}.key", lambda data: load_pem_private_key(data, None))
    if key.public_key() != certificate.public_key():
        raise IsthmusError(f"{startup / name}.key is not the key of {path.name}: {COPY_AGAIN}")
    now, begin, end = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if end < now:
        raise IsthmusError(f"{path} expired on {end:%Y-%m-%d}: ask for a new kit, isthmus federation renew")
    if begin > now:
        raise IsthmusError(
            f"{path} is valid from {begin:%Y-%m-%d %H:%M} UTC, and it is {now:%Y-%m-%d %H:%M} UTC by the clock of this "
            "machine: set the clock"
        )


def _read_part(path: Path, parse: Callable[[bytes], Any]) -> Any:
    """What a file of a kit says."""
    try:
        return parse(store.read(path))
    except (OSError, ValueError, TypeError) as error:
        raise IsthmusError(f"{path} is missing or damaged: {COPY_AGAIN}") from error


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
    write_json(local / "authorization.json", {"format_version": "1.0", "permissions": {"project_admin": rights}})
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
    write_json(local / "resources.json", resources)
    inside = {"host": "127.0.0.1", "listen_host": "127.0.0.1", "connection_security": "clear"}
    write_json(local / "comm_config.json", {"internal": {"scheme": "tcp", "resources": inside}})
    logs = json.loads((local / "log_config.json.default").read_text(encoding="utf-8"))
    write_json(local / "log_config.json", log_config(logs, kit.folder))


# ---- what runs in a job


class FlarePost(Post):
    """Sends messages with FLARE's collaboration calls, to all parties at once.

    A call to a killed process may hang longer than its own time limit, so the limit is enforced here. While a call
    hangs, nothing more is sent to that party.

    Arguments:
        proxies: FLARE's, by party.
        progress: gets to know who is asked and who replies.
        is_stopped: whether the administrator has stopped the job; FLARE then gives calls up that may seem late.
    """

    def __init__(
        self, proxies: Mapping[str, Any], progress: JobProgress, is_stopped: Callable[[], bool] = lambda: False
    ) -> None:
        self.sites = tuple(proxies)
        self.proxies, self.progress, self.is_stopped = proxies, progress, is_stopped
        self.hanging: dict[str, Future[Message | str]] = {}

    def send(self, messages: Mapping[str, Message], seconds: float) -> dict[str, Message | str]:
        self.progress.asked(messages)
        calls = {party: self._start_call(party, message, seconds) for party, message in messages.items()}
        pending, until = {call for call in calls.values() if call is not None}, time.monotonic() + seconds
        while pending and (left := until - time.monotonic()) > 0:
            pending = wait(pending, timeout=min(left, EVERY_SECONDS)).not_done
            if pending:
                self.progress.waiting()
        if self.is_stopped():
            raise IsthmusError("stopped with isthmus federation stop")
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
        began = time.monotonic()
        try:
            reply = self.proxies[party](timeout=seconds).handle(message)
            self.progress.replied(party, time.monotonic() - began)
            future.set_result(reply)
        except CollabCallError as error:
            late = "timed out" in str(error)
            future.set_result(f"no answer within {seconds:g} s" if late else "it cannot be reached")
        except BaseException as error:
            future.set_exception(error)


class CoordinatorJob(FLComponent):
    """The server's part of a job.

    Arguments:
        study: as JSON.
        name: under which an interrupted study is resumed.
        parties: the parties that take part, in order.
    """

    def __init__(self, study: str, name: str, parties: list[str]) -> None:
        super().__init__()
        self.study, self.study_name, self.parties = study, name, parties

    @collab.main
    def main(self) -> None:
        # parties have done all of FLARE's tasks, so they need not ask for more many times a second
        collab.fl_ctx.get_prop(FLContextKey.RUNNER).config.task_request_interval = ASK_SECONDS
        records = Records(Path(collab.fl_ctx.get_workspace().get_root_dir()) / STATES)
        proxies = {proxy.name: proxy for proxy in collab.clients}
        study = Study.of_federation(json.loads(self.study))
        methods = [method.name for method in study.method_list()]
        record = records.start(self.study_name, collab.fl_ctx.get_job_id(), methods)
        progress = JobProgress(records, record, study, self.parties)
        done, why = Outcome(), ""
        try:
            if missing := [party for party in self.parties if party not in proxies]:
                raise IsthmusError(f"party '{missing[0]}' has left: start it again with isthmus federation join")
            post = FlarePost({party: proxies[party] for party in self.parties}, progress, collab.context.is_aborted)
            log.info("a study began, %s, with %s", self.study_name, ", ".join(self.parties))
            coordinate(
                study, post, self.study_name, records.place(self.study_name),
                watcher=progress, outcome=done, begun=progress.begun,
            )  # fmt: skip
        except IsthmusError as error:
            why = str(error)
        except Exception as error:
            log.exception("the study failed")
            why = f"{type(error).__name__}: read the log at the server"
        finally:
            progress.update()
            records.end(record, {**done.dump(), "wrong": why}, why)
            log.info("the study ended: %s", why or "finished")


class PartyJob:
    """A party's part of a job.

    Arguments:
        roster: the text of the newest roster that the administrator has.
    """

    def __init__(self, roster: str) -> None:
        self.roster = roster
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
        if kit.adopt(self.roster):
            log.warning("roster %d of the authority is in force", kit.roster().number)
        paths = store.read_json(kit.folder / DATA, within=kit.folder)
        return Member(Path(paths["data"]), kit.state, kit.name, read_hashing(paths["key"]), kit.ring())
