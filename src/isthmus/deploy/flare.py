"""NVIDIA FLARE under a federation: start-up kits, the processes, the jobs. The only module that imports it.

FLARE brings certificates, mutual TLS, live objects at every site and a way for an administrator to submit a job. A job
here is nothing but the text of a study: FLARE's two collaboration components and the two classes below are all that a
kit allows to be loaded, and code that comes with a job is refused by every site (its right "byoc" is nobody's).
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import socket
import tempfile
import time
import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
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
    from nvflare.widgets.info_collector import InfoCollector
except ImportError as error:
    raise missing_extra("NVIDIA FLARE", "federation", "a federation") from error

from isthmus.data.ids import read_key
from isthmus.deploy.coordinator import coordinate
from isthmus.deploy.launch import State
from isthmus.deploy.member import Member
from isthmus.deploy.remote import Message, Post
from isthmus.methods.base import Method
from isthmus.protect.sealing import Keyring, generate_keyrings, public_key
from isthmus.study.config import Study
from isthmus.study.loop import RunResult
from isthmus.study.run import Watcher

log = logging.getLogger(__name__)

KIT = "kit.json"
"""The file in a kit that says whose it is."""
SEAL = "seal.key"
"""The file in a party's kit with its key to seal with, private."""
HELD = "held.json"
"""The file in a party's kit that says where its data are."""
HOLDER = "in-use"
"""The file in a kit that a process holds as long as it runs with it."""
OUTCOME = "outcome.isthmus"
"""The file that a job leaves: results, or why there are none."""
ADMIN = "admin@isthmus.local"
ORGANISATION = "isthmus"
LOADED = (
    "nvflare.collab.runtime.controller.CollabController",
    "nvflare.collab.runtime.executor.CollabExecutor",
    "isthmus.deploy.flare.Coordinator",
    "isthmus.deploy.flare.PartyJob",
)
"""All that a job may have loaded."""
BEGINNING = 300
"""Seconds that a party's process may take to begin."""
CONNECTING = 20.0
"""Seconds that a server may take to answer somebody who comes to it."""
ENDING = 15.0
"""Seconds that a job may take to end."""
HEARD = 30.0
"""Seconds since a party was heard of for the last time until it is asked whether it is there: it says so every few."""
AGAIN = 3
"""Times that a server is asked before it is said not to answer."""
RIGHTS = ("submit_job", "manage_job", "download_job", "view")
"""What the administrator of a federation may do."""
NO_RIGHTS = ("byoc", "shell_commands", "operate", "configure_job_log", "clone_job")
"""What nobody may do: bring code, run commands on other machines, change what they log."""
RUN = re.compile(r"[0-9a-f]{32}")
"""Names of runs: they become those of folders."""

Role = Literal["server", "party", "admin"]


@dataclass(frozen=True)
class Kit:
    """Whose a kit is, and of which federation.

    Arguments:
        seals: by party its public key, to seal messages for it.
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
        """The kit in a folder, if it is for this role."""
        try:
            said = json.loads((folder / KIT).read_text(encoding="utf-8"))
            kit = cls(**{**said, "parties": tuple(said["parties"]), "folder": folder.resolve()})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise IsthmusError(f"{folder} is no start-up kit: make kits with isthmus federation new") from error
        if kit.role != role:
            raise IsthmusError(f"{folder} is the kit of the federation's {kit.role}, here belongs that of its {role}")
        return kit

    def ring(self) -> Keyring:
        """The party's own key, and the public ones of all."""
        path = self.folder / SEAL
        try:
            own = bytes.fromhex(path.read_text(encoding="ascii").strip())
            publics = {party: bytes.fromhex(public) for party, public in self.seals.items()}
            if public_key(own) != publics[self.name]:
                raise ValueError("another party's key")
        except (OSError, ValueError, KeyError) as error:
            raise IsthmusError(f"{path} is not the key that this kit came with: ask for the kit again") from error
        return Keyring(self.name, own, publics)


# ---- kits


def make_kits(name: str, parties: Sequence[str], host: str, port: int, out: Path, *, days: int = 360) -> list[Kit]:
    """Start-up kits in folders of their own: for the server, every party, and the administrator.

    The key that signs their certificates is thrown away: nobody can make a further kit of this federation.
    """
    _check_names(parties, host)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise IsthmusError(f"{out} is not empty: choose another folder for the kits")
    there_before = out.exists()
    try:
        with tempfile.TemporaryDirectory() as aside:
            made = _provisioned(name, parties, host, port, Path(aside), days)
            rings = generate_keyrings(tuple(parties))
            seals = {party: ring.public_keys[party].hex() for party, ring in rings.items()}
            whose: list[tuple[Role, str, str]] = [("server", "server", host), ("admin", "admin", ADMIN)]
            whose += [("party", party, party) for party in parties]
            kits = []
            for role, each, place in whose:
                kit = Kit(name, role, each, host, port, tuple(parties), seals, out / each)
                _settle_kit(kit, made / place, rings.get(each) if role == "party" else None)
                kits.append(kit)
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        if there_before:
            out.mkdir()
        raise
    return kits


def _check_names(parties: Sequence[str], host: str) -> None:
    for party in parties:
        if name_check(party, "client")[0] or party in ("server", "admin", host):
            raise IsthmusError(f"party '{party}': in a federation a name is letters, digits, '-' and '_', and no role")
    if len(set(parties)) < len(parties) or not parties:
        raise IsthmusError("name every party of the federation once: --parties bank-a,bank-b,bank-c")
    if name_check(host, "host_name")[0] or host.replace(".", "").isdigit():
        raise IsthmusError(
            f"server '{host}' is no name of a host, which its certificate needs: give --server HOST:PORT"
        )


def _provisioned(name: str, parties: Sequence[str], host: str, port: int, aside: Path, days: int) -> Path:
    project = Project(name, "a federation", props={"api_version": 3})
    project.set_server(host, ORGANISATION, {"fed_learn_port": port, "admin_port": port})
    for party in parties:
        project.add_client(party, ORGANISATION, {})
    project.add_admin(ADMIN, ORGANISATION, {"role": "project_admin"})
    builders = [WorkspaceBuilder(), StaticFileBuilder(scheme="grpc"), CertBuilder(days), SignatureBuilder()]
    provisioner = Provisioner(str(aside), builders)
    templates = Path(nvflare.lighter.__file__).parent / "templates" / "master_template.yml"
    provisioner.add_template(load_yaml(str(templates)))
    with _quiet() as said:
        context = provisioner.provision(project)
    if context.get("build_error") or "current_prod_dir" not in context:
        raise IsthmusError(f"cannot make the kits: {' '.join(said.getvalue().split())[-300:]}")
    return Path(context["current_prod_dir"])


def _settle_kit(kit: Kit, made: Path, ring: Keyring | None) -> None:
    """Make a kit of the folder that FLARE has made."""
    folder = kit.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(made, folder)
    for script in folder.glob("startup/*.sh"):  # FLARE's own way to start; isthmus is ours
        script.unlink()
    for each in ("readme.txt", "startup/readme.txt", "startup/system_info.ipynb"):
        (folder / each).unlink(missing_ok=True)
    said = {key: value for key, value in asdict(kit).items() if key != "folder"}
    store.write(folder / KIT, json.dumps(said, indent=1))
    if ring is not None:
        store.write(folder / SEAL, ring.private_key.hex(), private=True)
    for key in folder.rglob("*.key"):
        key.chmod(0o600)
    folder.chmod(0o700)


# ---- processes


def serve(folder: Path, *, bind: str | None = None, ready: Callable[[], None] = lambda: None) -> None:
    """Run the server of a federation until it is stopped.

    Arguments:
        bind: address to listen on, of those that this machine has; without, the one that the kit's host name means.
        ready: called when all that can be checked beforehand is right.
    """
    kit = Kit.read(folder, "server")
    with store.lock(kit.folder / HOLDER, str(kit.folder)):
        address = _address(kit, bind)
        _settle(kit)
        _bind(address)
        from nvflare.private.fed.app.server import server_train

        ready()
        _engine(server_train.main, kit, fed_server="fed_server.json", set=["secure_train=true", f"org={ORGANISATION}"])


def take_part(folder: Path, data: Path, key: Path | None = None, *, ready: Callable[[], None] = lambda: None) -> None:
    """Run a party of a federation, with its own party folder, until it is stopped.

    Arguments:
        ready: called when all that can be checked beforehand is right.
    """
    kit = Kit.read(folder, "party")
    _check_dates(kit.folder / "startup" / "client.crt")
    shared = None if key is None else read_key(key)
    # two processes of one kit would push each other out of the federation again and again
    with store.lock(kit.folder / HOLDER, str(kit.folder)):
        member = Member(data, kit.folder / "state", kit.name, shared, kit.ring())  # what is wrong there shows at once
        if member.limits.min_contributors > len(kit.parties):
            raise IsthmusError(
                f"{data}: limits.min_contributors is {member.limits.min_contributors}, more than this federation has "
                f"parties ({len(kit.parties)}): no total would ever be answered"
            )
        _settle(kit)
        held = {"data": str(data.resolve()), "key": None if key is None else str(key.resolve())}
        store.write(kit.folder / HELD, json.dumps(held), private=True)
        from nvflare.private.fed.app.client import client_train
        from nvflare.private.fed.client import client_executor

        # told that a job's process has died, FLARE would end the job for all; the coordinator finds out and goes on
        client_executor.get_return_code = lambda *process: 0
        ready()
        settings = ["secure_train=true", f"uid={kit.name}", f"org={ORGANISATION}"]
        _engine(client_train.main, kit, fed_client="fed_client.json", local_rank=0, set=settings)


def _check_dates(path: Path) -> None:
    """An error for a certificate that lets nobody in any more: the server only hangs up on it."""
    try:
        certificate = load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise IsthmusError(f"{path} is no certificate: ask for the kit again") from error
    if (until := certificate.not_valid_after_utc) < datetime.now(UTC):
        raise IsthmusError(f"{path}: its certificate expired on {until:%Y-%m-%d}: ask for new kits")


def _engine(main: Any, kit: Kit, **arguments: Any) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    settings = [*arguments.pop("set"), "config_folder="]
    with redirect_stdout(StringIO()):
        code = MainProcessMonitor.run(
            main_func=main,
            run_dir=str(kit.folder),
            args=Namespace(workspace=str(kit.folder), set=settings, **arguments),
        )
    if code:
        raise IsthmusError(f"{kit.name} has stopped with an error: {kit.folder / 'log.txt'} says more")


def _address(kit: Kit, bind: str | None) -> str:
    host = bind or kit.host
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        raise IsthmusError(f"nothing is known of the host '{host}': give an address to listen on, --bind") from error
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server itself, just after another one
        try:
            probe.bind((found, kit.port))
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            remedy = "stop what listens there" if taken else "give an address of this machine, --bind"
            reason = error.strerror or error
            raise IsthmusError(f"cannot listen on {found}:{kit.port}: {reason}; {remedy}") from error
    return str(found)


def _await_listener(host: str, port: int) -> None:
    """Wait until somebody listens there: FLARE tries again after ever longer pauses where nobody does at first."""
    until = time.monotonic() + CONNECTING
    while True:
        try:
            socket.create_connection((host, port), timeout=CONNECTING).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def _bind(address: str) -> None:
    """Have FLARE listen there alone: it would listen on every address of the machine, loopback apart.

    Processes of one machine speak over a port of their own, which `_settle` leaves on loopback.
    """
    from nvflare.private.fed.server import fed_server

    if not hasattr(fed_server, "_is_loopback_host") or not hasattr(fed_server, "_normalize_loopback_host"):
        raise IsthmusError("this version of NVIDIA FLARE is not known to listen where it is told to: use 2.9")
    fed_server._is_loopback_host = lambda host: True
    fed_server._normalize_loopback_host = lambda host: address


def _settle(kit: Kit) -> None:
    """Write down what this machine allows, whatever the kit came with."""
    local = kit.folder / "local"
    rights = dict.fromkeys(RIGHTS, "any") | dict.fromkeys(NO_RIGHTS, "none")
    _write(local / "authorization.json", {"format_version": "1.0", "permissions": {"project_admin": rights}})
    resources = json.loads((local / "resources.json.default").read_text(encoding="utf-8"))
    resources |= {"class_allow_list": list(LOADED), "class_list_enforcement_mode": "enforce"}
    unwanted = ("site_log_streamer", "log_receiver")  # logs stay where they are written
    resources["components"] = [each for each in resources["components"] if each["id"] not in unwanted]
    if kit.role == "party":
        resources["allow_log_streaming"] = False
    else:
        kept = kit.folder / "kept"
        resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(kept / "snapshots")
        manager = next(each for each in resources["components"] if each["id"] == "job_manager")
        manager["args"]["uri_root"] = str(kept / "jobs")
    _write(local / "resources.json", resources)
    inside = {"host": "127.0.0.1", "listen_host": "127.0.0.1", "connection_security": "clear"}
    _write(local / "comm_config.json", {"internal": {"scheme": "tcp", "resources": inside}})
    logs = json.loads((local / "log_config.json.default").read_text(encoding="utf-8"))
    logs["loggers"]["root"]["handlers"] = ["logFileHandler"]
    logs["handlers"] = {"logFileHandler": logs["handlers"]["logFileHandler"]}
    _write(local / "log_config.json", logs)


def _write(path: Path, value: Any) -> None:
    store.write(path, json.dumps(value, indent=1))


# ---- what runs in a job


class FlarePost(Post):
    """Messages by FLARE's collaboration calls, to all parties at once.

    A call to a process that was killed may outlive its own limit, so the limit is kept here; while it hangs, nothing
    more is sent to that party.
    """

    def __init__(self, proxies: Mapping[str, Any]) -> None:
        self.sites = tuple(proxies)
        self.proxies = proxies
        self.hanging: dict[str, Future[Message | str]] = {}

    def send(self, messages: Mapping[str, Message], seconds: float) -> dict[str, Message | str]:
        began = {party: self._begun(party, message, seconds) for party, message in messages.items()}
        wait([each for each in began.values() if each is not None], timeout=seconds)
        found: dict[str, Message | str] = {}
        for party, each in began.items():
            if each is None:
                found[party] = "it cannot be reached"
            elif each.done():
                found[party] = each.result()
            else:
                found[party], self.hanging[party] = f"no answer within {seconds:g} s", each
        return found

    def _begun(self, party: str, message: Message, seconds: float) -> Future[Message | str] | None:
        if party in self.hanging and not self.hanging[party].done():
            return None
        self.hanging.pop(party, None)
        future: Future[Message | str] = Future()
        # a thread that hangs must not keep the process from ending
        Thread(target=self._one, args=(future, party, message, seconds), daemon=True).start()
        return future

    def _one(self, future: Future[Message | str], party: str, message: Message, seconds: float) -> None:
        try:
            future.set_result(self.proxies[party](timeout=seconds).handle(message))
        except CollabCallError as error:
            late = "timed out" in str(error)
            future.set_result(f"no answer within {seconds:g} s" if late else "it cannot be reached")
        except BaseException as error:
            future.set_exception(error)


class Told(Watcher):
    """Keeps what a run has come to, for whoever asks."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def run_started(self, method: Method, seed: int) -> None:
        self.lines.append({"method": method.name, "seed": seed, "rounds": method.rounds, "at": 0, "metrics": {}})

    def round_done(self, method: Method, seed: int, at: int, metrics: Mapping[str, float]) -> None:
        self.lines[-1] |= {"at": at, "metrics": dict(metrics)}

    def run_done(self, result: RunResult) -> None:
        self.lines[-1]["at"] = self.lines[-1]["rounds"]


class Coordinator(FLComponent):
    """The server's part of a job.

    Arguments:
        study: as JSON.
        run: under which a study that was cut off goes on.
        parties: that take part, in their order.
    """

    def __init__(self, study: str, run: str, parties: list[str]) -> None:
        super().__init__()
        self.study, self.run, self.parties = study, run, parties
        self.told = Told()

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        if event_type == InfoCollector.EVENT_TYPE_GET_STATS:
            collector = fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR)
            collector.set_info("isthmus", {"lines": [dict(line) for line in self.told.lines]})

    @collab.main
    def main(self) -> None:
        workspace = collab.fl_ctx.get_workspace()
        if not RUN.fullmatch(self.run):
            raise IsthmusError("a run's name is 32 hexadecimal digits")
        state = Path(workspace.get_root_dir()) / "state" / self.run
        proxies = {proxy.name: proxy for proxy in collab.clients}
        outcome: dict[str, Any]
        try:
            if missing := [party for party in self.parties if party not in proxies]:
                raise IsthmusError(f"party '{missing[0]}' was gone when the study began")
            post = FlarePost({party: proxies[party] for party in self.parties})
            found = coordinate(Study.of(json.loads(self.study)), post, self.run, state, watcher=self.told)
            outcome = {"runs": [run.dump() for run in found.runs], "ledger": found.ledger.dump()}
        except RunAborted:
            raise
        except IsthmusError as error:
            outcome = {"wrong": str(error)}
        except Exception as error:
            log.exception("the study failed")
            outcome = {"wrong": f"{type(error).__name__}: the log at the coordinator says more"}
        store.save(Path(workspace.get_run_dir(collab.fl_ctx.get_job_id())) / OUTCOME, outcome)
        if "runs" in outcome:
            shutil.rmtree(state, ignore_errors=True)


class PartyJob:
    """A party's part of a job."""

    def __init__(self) -> None:
        self.member: Member | None = None
        self.making = Lock()

    @collab.publish
    def handle(self, message: Message) -> Message:
        """Any message of the coordinator; FLARE lets other parties call too."""
        if collab.caller != "server":
            return {"wrong": "refused: a party answers the server alone"}
        with self.making:
            if self.member is None:
                try:
                    self.member = self._made()
                except Exception:  # what it says quotes this machine
                    log.exception("this party cannot begin")
                    return {"wrong": "it cannot begin (the log at the party says more)", "begun": False}
        return self.member.handle(message)

    def _made(self) -> Member:
        kit = Kit.read(Path(collab.fl_ctx.get_workspace().get_root_dir()), "party")
        held = json.loads((kit.folder / HELD).read_text(encoding="utf-8"))
        key = None if held["key"] is None else read_key(Path(held["key"]))
        return Member(Path(held["data"]), kit.folder / "state", kit.name, key, kit.ring())


# ---- the administrator


class Admin:
    """Whoever starts studies and fetches their results.

    Arguments:
        folder: the administrator's kit.
    """

    def __init__(self, folder: Path) -> None:
        self.kit = Kit.read(folder, "admin")
        self.session: Session | None = None
        self.unlisted: dict[str, float] = {}

    def __enter__(self) -> Admin:
        where = f"{self.kit.host}:{self.kit.port}"
        try:
            _await_listener(self.kit.host, self.kit.port)
        except OSError as error:
            raise IsthmusError(f"nobody listens at {where}: is isthmus federation serve running there?") from error
        try:
            with _quiet():
                self.session = new_secure_session(ADMIN, str(self.kit.folder), timeout=CONNECTING)
        except Exception as error:  # what FLARE raises has no common kind
            raise IsthmusError(
                f"who listens at {where} does not let this kit in: is it the server of this federation, "
                "and has the kit not expired?"
            ) from error
        return self

    def __exit__(self, *reason: object) -> None:
        if self.session is not None:
            with _quiet():
                self.session.close()

    @property
    def parties(self) -> tuple[str, ...]:
        return self.kit.parties

    def present(self) -> list[str]:
        """The parties that are there.

        FLARE keeps who is gone on its list for ten minutes. Who was heard of just now is there, and so is who is heard
        of within a few seconds: clocks of two machines may differ.
        """
        before, until = self._heard(), time.monotonic() + HEARD / 2
        now = time.time()
        there = {party for party, at in before.items() if abs(now - at) < HEARD}
        while len(there) < len(before) and time.monotonic() < until:
            time.sleep(1.0)
            there |= {party for party, at in self._heard().items() if at != before.get(party)}
        return [party for party in self.parties if party in there]

    def _heard(self) -> dict[str, float]:
        """By party on FLARE's list the time that it was last heard of."""
        return {each.name: float(each.last_connect_time) for each in self._said("get_system_info").client_info}

    def jobs(self) -> list[dict[str, Any]]:
        """What has been run, the newest first."""
        return [dict(each) for each in self._said("list_jobs", reverse=True)]

    def missing(self) -> list[str]:
        """Parties that are not there."""
        here = self.present()
        return [party for party in self.parties if party not in here]

    def submit(self, study: Mapping[str, Any], run: str) -> str:
        """Start a study; its job's id."""
        with tempfile.TemporaryDirectory() as aside:
            folder = Path(aside) / "study"
            _write_job(folder, study, run, self.parties)
            return str(self._said("submit_job", str(folder), tries=1))  # a second one would be a second job

    def progress(self, job: str) -> list[dict[str, Any]]:
        """A line for every run so far."""
        try:
            return next(_lines(self._said("show_stats", job, "server")), [])
        except (JobNotFound, JobNotRunning):  # it has not begun, or has just ended
            return []

    def state(self, job: str) -> State:
        """How the job stands; a job that ran when the server was killed is lost, whatever FLARE has written down."""
        try:
            said = str(self._said("get_job_meta", job).get("status", ""))
        except JobNotFound:  # of another federation, or taken away
            return "lost"
        if said == "FINISHED:COMPLETED":
            return "done"
        if said.startswith("FINISHED"):
            return "lost"
        running = [each.job_id for each in self._said("get_system_info").job_info]
        if said != "RUNNING" or job in running:
            self.unlisted.pop(job, None)
            return "under way"
        since = self.unlisted.setdefault(job, time.monotonic())  # for a moment also one that is about to end
        return "lost" if time.monotonic() - since > ENDING else "under way"

    def stop(self, job: str) -> None:
        """End a job that is running."""
        self._said("abort_job", job)

    def outcome(self, job: str) -> dict[str, Any]:
        """What a job that has ended left."""
        with tempfile.TemporaryDirectory() as aside:
            place = Path(str(self._said("download_job_result", job, aside)))
            for archive in place.rglob("*.zip"):
                with zipfile.ZipFile(archive) as packed:
                    packed.extractall(archive.parent)
            found = next(place.rglob(OUTCOME), None)
            if found is None:
                raise IsthmusError("it was stopped, and left no result: the log at the server says more")
            outcome: dict[str, Any] = store.load(found)
            return outcome

    def _said(self, command: str, *words: Any, tries: int = AGAIN, **options: Any) -> Any:
        """What the server answers a command of FLARE's session."""
        assert self.session is not None
        for left in reversed(range(tries)):
            try:
                with _quiet():
                    return getattr(self.session, command)(*words, **options)
            except (JobNotFound, JobNotRunning):
                raise
            except Exception as error:  # what FLARE raises has no common kind
                if not left:
                    raise IsthmusError(
                        f"the server at {self.kit.host}:{self.kit.port} does not answer: when it is back, "
                        "isthmus federation run --resume goes on"
                    ) from error
                time.sleep(1.0)
        raise AssertionError  # the last try returns or raises


def _write_job(folder: Path, study: Mapping[str, Any], run: str, parties: Sequence[str]) -> None:
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    names = [str(each["name"]) for each in study["methods"]]
    meta = {
        "name": ", ".join(names),
        "resource_spec": {},
        "min_clients": 1,  # FLARE would end a job whose party is lost; ours goes on while its method can
        "deploy_map": {"app": ["@ALL"]},
    }
    _write(folder / "meta.json", meta)
    coordinator = {"study": json.dumps(study), "run": run, "parties": list(parties)}
    controller = {"server_obj_id": "_server", "sync_task_timeout": BEGINNING}
    server = {
        "format_version": 2,
        "workflows": [{"id": "controller", "path": LOADED[0], "args": controller}],
        "components": [{"id": "_server", "path": LOADED[2], "args": coordinator}],
    }
    client = {
        "format_version": 2,
        "executors": [{"tasks": ["*"], "executor": {"path": LOADED[1], "args": {"client_obj_id": "_client"}}}],
        "components": [{"id": "_client", "path": LOADED[3], "args": {}}],
    }
    _write(config / "config_fed_server.json", server)
    _write(config / "config_fed_client.json", client)


def _lines(found: Any) -> Iterator[list[dict[str, Any]]]:
    """Our lines, wherever FLARE puts them."""
    if isinstance(found, Mapping):
        if isinstance(lines := found.get("lines"), list):
            yield lines
        for inner in found.values():
            yield from _lines(inner)


@contextmanager
def _quiet() -> Iterator[StringIO]:
    """FLARE's tools print; what they say is for whoever looks into an error."""
    said = StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        yield said
