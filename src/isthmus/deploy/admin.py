"""The administrator's side of a federation: starts studies, follows them, fetches results, revokes kits.

It loads neither torch nor a method, so that a command answers at once.
"""

from __future__ import annotations

import json
import socket
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Literal, NamedTuple

from isthmus.deploy.kits import ADMIN, Kit, captured_output, write_json
from isthmus.deploy.logs import printable
from isthmus.deploy.requests import guard_requests
from isthmus.errors import IsthmusError, missing_extra
from isthmus.federation.ledger import PartyStanding, read_standings

try:
    from nvflare.fuel.f3.streaming.download_service import Consumer, download_object
    from nvflare.fuel.flare_api.api_spec import JobNotFound, JobNotRunning
    from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
    from nvflare.fuel.hci.client.file_transfer import FileTransferModule
    from nvflare.private.fed import authenticator
except ImportError as error:
    raise missing_extra("NVIDIA FLARE", "federation", "a federation") from error

JobState = Literal["running", "done", "lost"]
"""State of a study's job; a lost job has ended without an outcome."""

LOADED = (
    "nvflare.collab.runtime.controller.CollabController",
    "nvflare.collab.runtime.executor.CollabExecutor",
    "isthmus.deploy.flare.CoordinatorJob",
    "isthmus.deploy.flare.PartyJob",
)
"""The only classes that a job may load."""
START_SECONDS = 300
"""How long a party's process may take to start."""
START_ASK_SECONDS = 0.2
"""How often a party's job asks for a task of FLARE's while the job starts."""
CONNECT_SECONDS = 20.0
"""How long a server may take to answer a new connection."""
END_SECONDS = 15.0
"""How long a job may be listed nowhere while it starts or ends."""
TRIES = 3
"""How often a command is sent to a server before the server counts as unreachable."""


class Standing(NamedTuple):
    """How far a study is.

    Attributes:
        lines: a line for each run so far.
        why: why it stopped, or was lost.
        parties: how each party stands.
    """

    state: JobState
    lines: list[dict[str, Any]]
    why: str = ""
    parties: Mapping[str, PartyStanding] = MappingProxyType({})


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
            look_sooner(authenticator, 0.02)  # whether the connection is up
            FileTransferModule.pull_folder = _refuse_download
            guard_requests()
            with captured_output():
                self.session = new_secure_session(ADMIN, str(self.kit.folder), timeout=CONNECT_SECONDS)
        except Exception as error:  # FLARE's errors have no common class
            raise IsthmusError(
                f"the server at {server} refuses this kit: use the newest one that was made with the server's, and "
                "have it renewed with isthmus federation renew if it has expired"
            ) from error
        self._announce_roster()
        return self

    def __exit__(self, *reason: object) -> None:
        if self.session is not None:
            with captured_output():
                self.session.close()

    @property
    def parties(self) -> tuple[str, ...]:
        return self.kit.parties

    def look(self) -> dict[str, Any]:
        """Return who is connected, the jobs there are, and the records of the studies, newest first, fit to print."""
        return dict(_printable(self._command("isthmus_look")))

    def missing(self) -> list[str]:
        """Return the parties that are not connected."""
        there = self.look()["parties"]
        return [party for party in self.parties if not there.get(party)]

    def submit(self, study: Mapping[str, Any], name: str) -> str:
        """Start a study and return the id of its job."""
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "study"
            write_job(folder, study, name, self.parties, self.kit.roster_text())
            return str(self._ask("submit_job", str(folder), tries=1))  # a second try could start a second job

    def follow(self, name: str, job: str) -> Standing:
        """Return how far a study is, by the server's own record; FLARE may call a finished job running, or failed."""
        seen = self.look()
        record = next((each for each in seen["studies"] if each["name"] == name and each["job"] == job), None)
        lines = [] if record is None else list(record["lines"])
        parties = {} if record is None else read_standings(record.get("parties"))
        if record is not None and record["state"] != "running":
            return Standing("lost" if record["state"] == "lost" else "done", lines, record["why"], parties)
        if self.is_lost(job, seen["jobs"]):
            return Standing("lost", lines, "the job or its server was stopped", parties)
        return Standing("running", lines, "", parties)

    def is_lost(self, job: str, listed: Collection[str]) -> bool:
        """Return whether a job without an outcome has been listed nowhere for longer than it may be."""
        if job in listed:
            self.unlisted.pop(job, None)
            return False
        return time.monotonic() - self.unlisted.setdefault(job, time.monotonic()) >= END_SECONDS

    def outcome(self, name: str) -> dict[str, Any]:
        """Download and return the outcome of a study that has ended."""
        from isthmus import store
        from isthmus.deploy.records import OUTCOME

        meta = self._result("isthmus_fetch", name).get("meta", {})
        with tempfile.TemporaryDirectory(dir=self.kit.folder) as folder:
            file = Path(folder) / OUTCOME
            try:
                known = dict(meta.get("files") or ())
                if OUTCOME not in known:
                    raise IsthmusError(
                        f"the server has no results of study {name}: read its log, or run the study again with --force"
                    )
                self._download(file, str(meta["source_fqcn"]), str(known[OUTCOME]), store.free_memory())
            except (TypeError, ValueError, KeyError) as error:
                raise IsthmusError(
                    f"the server's results of study {name} cannot be downloaded ({error}): run the same version of "
                    "isthmus everywhere"
                ) from error
            outcome: dict[str, Any] = store.load(file)
            return outcome

    def _download(self, file: Path, source: str, reference: str, limit: int | None) -> None:
        """Write what a reference at the server stands for to a file; raise a ValueError if it does not arrive."""
        assert self.session is not None
        api = self.session.api
        with captured_output(), file.open("wb") as written:
            receiver = _Receiver(written, limit)
            download_object(
                source, reference, api.file_download_progress_timeout, api.cell, receiver,
                abort_signal=api.session_abort_signal,
            )  # fmt: skip
        if receiver.why:
            raise ValueError(receiver.why)

    def clear(self, name: str) -> None:
        """Tell the server that the results of a study have arrived, so that it may delete them."""
        self._command("isthmus_clear", name)

    def revoke(self, name: str) -> None:
        """Have the server refuse the present kit of a party, or of the administrator, from now on."""
        if not self._command("isthmus_revoke", ADMIN if name == "admin" else name)["done"]:
            raise IsthmusError(f"'{name}' is not in this federation: it has {', '.join(self.parties)}")

    def stop(self, job: str) -> None:
        """Stop a running job."""
        self._ask("abort_job", job)

    def _announce_roster(self) -> None:
        """Give the server the roster of this kit if it is newer; parties get it with the next study."""
        if self.kit.roster().number > int(self.look()["roster"]):
            why = self._command("isthmus_roster", props={"text": self.kit.roster_text()})["why"]
            if why:
                raise IsthmusError(f"the server does not take the roster of this kit: {why}")

    def _command(self, *words: str, props: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return what the server answers to a command of ours."""
        for told in self._result(*words, props=props).get("data", []):
            if told.get("type") == "dict":
                return dict(told["data"])
        raise IsthmusError(f"the server does not know '{words[0]}': run the same version of isthmus everywhere")

    def _result(self, *words: str, props: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return dict(self._ask("_do_command", " ".join(words), enforce_meta=False, props=props))

    def _ask(self, command: str, *words: Any, tries: int = TRIES, **options: Any) -> Any:
        """Return what the server answers to a command of FLARE's session."""
        assert self.session is not None
        for left in reversed(range(tries)):
            try:
                with captured_output():
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


class _Receiver(Consumer):
    """Takes a file that the server sends.

    Arguments:
        file: what to write it to.
        limit: the most bytes that it may have, if there is a limit.
    """

    def __init__(self, file: BinaryIO, limit: int | None) -> None:
        super().__init__()
        self.file, self.limit, self.why = file, limit, ""

    def consume(self, ref_id: str, state: dict[str, Any], data: bytes) -> dict[str, Any]:
        if self.limit is not None and self.file.tell() + len(data) > self.limit:
            raise ValueError(f"more than the {self.limit / 2**30:.1f} GiB of memory that are free")
        self.file.write(data)
        return state

    def download_completed(self, ref_id: str) -> None:
        pass

    def download_failed(self, ref_id: str, reason: str) -> None:
        self.why = " ".join(reason.split())[:200]


def _printable(content: Any) -> Any:
    """Return what a server said with all its texts fit to print."""
    if isinstance(content, dict):
        return {printable(key): _printable(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_printable(each) for each in content]
    return printable(content) if isinstance(content, str) else content


def _refuse_download(*_: Any) -> dict[str, Any]:
    """Take the place of FLARE's own download, which writes and unpacks files wherever the server says."""
    return {"data": []}


def write_job(folder: Path, study: Mapping[str, Any], name: str, parties: Sequence[str], roster: str) -> None:
    """Write the folder of a job that FLARE takes.

    Arguments:
        roster: the text of the newest roster, for the parties.
    """
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    meta = {
        "name": ", ".join(str(each["name"]) for each in study["methods"]),
        "resource_spec": {},
        "min_clients": 1,  # FLARE would end a job that loses a party; ours continues while its quorum is met
        "deploy_map": {"app": ["@ALL"]},
    }
    write_json(folder / "meta.json", meta)
    coordinator = {"study": json.dumps(study), "name": name, "parties": list(parties)}
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
        "components": [{"id": "_client", "path": LOADED[3], "args": {"roster": roster}}],
    }
    write_json(config / "config_fed_server.json", server)
    write_json(config / "config_fed_client.json", client)


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


def look_sooner(module: Any, seconds: float) -> None:
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
