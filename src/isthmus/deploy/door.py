"""Who may connect to a federation's server: one machine for each kit, and no kit that was replaced or revoked.

TLS has checked by then that a certificate is of this federation. The door looks at it once more in every connection:
the roster must name it, the administrator must not have revoked it, and no other process may be connected with it.
A party hears the reason as the status of its call, and the server keeps it for `isthmus federation status`.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Lock
from typing import Any, NamedTuple
from uuid import uuid4

import grpc
from cryptography.x509 import load_pem_x509_certificate
from cryptography.x509.oid import NameOID

from isthmus import store
from isthmus.deploy.kits import ADMIN, Kit, fingerprint

log = logging.getLogger(__name__)

REVOKED = "revoked.json"
"""The file in the server's kit with the certificates that it refuses."""
PROCESS = "isthmus-process"
"""What a connection calls the process that it is of; those of one `join` have the same value."""
ALIVE = (
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 15_000),
    ("grpc.http2.max_pings_without_data", 0),
)
"""A machine that died without a word counts as connected for so long."""
RETRY_SECONDS = 60.0
"""How long a party tries to connect while another process has its kit; the server may not know that it is dead."""


class Visit(NamedTuple):
    """A connection: whose it is, which process of theirs made it, since when, and the connection itself."""

    name: str
    process: str
    since: float
    call: Any


class Door:
    """Decides who may connect, and knows who is connected.

    Arguments:
        kit: the server's.
    """

    def __init__(self, kit: Kit) -> None:
        self.kit, self.roster = kit, kit.roster()
        self.visits: list[Visit] = []
        self.refused: dict[str, dict[str, str]] = {}
        self._lock = Lock()
        path = kit.folder / REVOKED
        self.revoked: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    @contextmanager
    def visit(self, certificate: bytes, process: str, place: str, call: Any) -> Iterator[None]:
        """Let a connection in for the duration of the `with` block, or end it.

        Arguments:
            certificate: that the connection was made with.
            process: that it is of.
            place: the address that it comes from.
            call: the connection as gRPC has it: `abort` refuses it, `cancel` ends it later.
        """
        name = _subject(certificate)
        with self._lock:
            if not (why := self._objection(name, fingerprint(certificate), process)):
                mine = Visit(name, process, time.time(), call)
                self.visits.append(mine)
        if why:
            self.refused[name] = {"why": why, "place": place, "at": _now()}
            log.warning("refused '%s' from %s: %s", name, place, why)
            taken = why.startswith("another")
            call.abort(grpc.StatusCode.ALREADY_EXISTS if taken else grpc.StatusCode.PERMISSION_DENIED, why)
        try:
            yield
        finally:
            with self._lock:
                self.visits.remove(mine)

    def _objection(self, name: str, mark: str, process: str) -> str:
        """Return why somebody may not connect."""
        if mark in self.revoked:
            return f"the kit of '{name}' was revoked on {self.revoked[mark]}: ask the administrator for a new one"
        known = self.roster.certificates.get(name)
        if known is None:
            return f"'{name}' is not in this federation"
        if known != mark:
            return (
                f"this is not the kit of '{name}' that the server knows: use the newest one; if this is it, have the "
                "administrator copy its roster.json into the administrator's kit and run isthmus federation status"
            )
        if name != ADMIN and any(each.name == name and each.process != process for each in self.visits):
            return (
                f"another process is connected with the kit of '{name}': stop it, or have the administrator revoke "
                "the kit"
            )
        return ""

    def connected(self) -> dict[str, float]:
        """Return who is connected, each with the time since when."""
        with self._lock:
            return {each.name: each.since for each in reversed(self.visits)}

    def revoke(self, name: str) -> bool:
        """Refuse the present kit of somebody from now on; return False if nobody has this name."""
        if name not in self.roster.certificates:
            return False
        self.revoked[self.roster.certificates[name]] = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        store.write(self.kit.folder / REVOKED, json.dumps(self.revoked, indent=1))
        log.warning("the kit of '%s' is revoked", name)
        self._end_calls({name})
        return True

    def adopt(self, text: str) -> bool:
        """Take a newer roster; those whose kits it replaces have to leave."""
        if not self.kit.adopt(text):
            return False
        before, self.roster = self.roster.certificates, self.kit.roster()
        self._end_calls({name for name, mark in self.roster.certificates.items() if before.get(name) != mark})
        log.warning("roster %d of the authority is in force", self.roster.number)
        return True

    def _end_calls(self, names: set[str]) -> None:
        with self._lock:
            calls = [each.call for each in self.visits if each.name in names]
        for call in calls:
            call.cancel()


def guard_connections(door: Door) -> None:
    """Have FLARE ask the door about every connection to the server."""
    from nvflare.fuel.f3.drivers import grpc_driver

    servicer = grpc_driver.Servicer

    class Guarded(servicer):  # type: ignore[misc, valid-type]
        def Stream(self, request_iterator: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
            (certificate,) = context.auth_context().get("x509_pem_cert") or (None,)
            if certificate is None:  # within this machine
                yield from super().Stream(request_iterator, context)
                return
            process = dict(context.invocation_metadata()).get(PROCESS, "")
            with door.visit(certificate, process, context.peer(), context):
                yield from super().Stream(request_iterator, context)

    grpc_driver.Servicer = Guarded
    grpc_driver.GRPC_DEFAULT_OPTIONS = [*grpc_driver.GRPC_DEFAULT_OPTIONS, *ALIVE]


class _Knock(grpc.StreamStreamClientInterceptor):  # type: ignore[misc]
    """Says which process a connection is of, and hears why it is refused."""

    def __init__(self, refused: Callable[[str], None]) -> None:
        self.refused = refused
        self.since: float | None = None

    def intercept_stream_stream(self, continuation: Any, details: Any, request_iterator: Any) -> Any:
        metadata = [*(details.metadata or ()), (PROCESS, os.environ[PROCESS])]
        call = continuation(details._replace(metadata=metadata), request_iterator)
        call.add_done_callback(self._hear)
        return call

    def _hear(self, call: Any) -> None:
        code = call.code()
        if code not in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.ALREADY_EXISTS):
            self.since = None
            return
        self.since = now = time.monotonic() if self.since is None else self.since
        if code == grpc.StatusCode.PERMISSION_DENIED or time.monotonic() - now > RETRY_SECONDS:
            self.refused(call.details())
        else:
            log.warning("not let in, trying again: %s", call.details())


def knock(refused: Callable[[str], None]) -> None:
    """Have FLARE's connections from this process say who they are.

    Arguments:
        refused: called with the reason when the server will not let this kit in.
    """
    from nvflare.fuel.f3.drivers import grpc_driver

    os.environ.setdefault(PROCESS, uuid4().hex)  # the processes of jobs inherit it
    stub, interceptor = grpc_driver.StreamerStub, _Knock(refused)
    grpc_driver.StreamerStub = lambda channel: stub(grpc.intercept_channel(channel, interceptor))


def _subject(certificate: bytes) -> str:
    """Return the name in a certificate."""
    names = load_pem_x509_certificate(certificate).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
