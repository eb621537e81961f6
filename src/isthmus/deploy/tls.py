"""Messages between machines of one owner, over mutual TLS with the standard library alone.

One key file is on all machines: a private key, and the certificate for it that both sides show and that both trust,
and nothing else. So who has the file is in, whoever has not is out, and there is no more to it. A message is bytes of
`store.pack`: reading it runs no code.
"""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock, Thread
from typing import Protocol, Self

from safetensors import SafetensorError

from isthmus import store
from isthmus.deploy.remote import Message, Post
from isthmus.errors import IsthmusError, missing_extra

log = logging.getLogger(__name__)

GREETING = 10.0
"""Seconds that whoever comes to a host has to show its key."""
COMING = 30.0
"""Seconds that a host may take to be there, and to be free."""
SILENT, PROBE, PROBES = 60, 10, 6
"""A machine that has been silent for so many seconds is probed every so often; after so many it is held for lost."""
BUSY = "it is at work for another run"


class Side(Protocol):
    """What answers messages while a connection lasts."""

    def handle(self, message: Message) -> Message: ...


# ---- the key


def new_key(path: Path, days: int) -> None:
    """Write a key for the machines of one owner, which the certificate in it makes good for so many days."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise missing_extra("cryptography", "federation", "a key for hosts") from error
    if path.exists():
        raise IsthmusError(f"{path} exists: choose another file")
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "isthmus hosts")])
    begin = datetime.now(UTC) - timedelta(days=1)  # clocks of several machines
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=days + 1))
        .sign(private, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    own = private.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    store.write(path, own + certificate.public_bytes(pem), private=True)


def _context(key: Path, side: int) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the key is that of all machines, whatever they are called
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(key)
        context.load_verify_locations(key)
    except OSError as error:
        reason = "not a key" if isinstance(error, ssl.SSLError) else error.strerror
        raise IsthmusError(f"cannot read the key {key}: {reason}; make one with isthmus host key") from error
    return context


# ---- who runs a study


class TlsPost(Post):
    """One connection to each host, kept until it is closed.

    Every host has its message before the first reply is read, so all of them work at the same time.

    Arguments:
        hosts: where they listen, HOST:PORT.
        key: file.
        coming: seconds that hosts may take to be there, and to be free.
    """

    def __init__(self, hosts: Sequence[str], key: Path, *, coming: float = COMING) -> None:
        for host in hosts:
            _place(host)
            if hosts.count(host) > 1:
                raise IsthmusError(f"host '{host}' is listed twice")
        if not hosts:
            raise IsthmusError("there is no host: name at least one as HOST:PORT")
        self.sites = tuple(hosts)
        self._lines: dict[str, ssl.SSLSocket] = {}
        context, until = _context(key, ssl.PROTOCOL_TLS_CLIENT), time.monotonic() + coming
        try:
            for host in hosts:
                self._lines[host] = _reached(host, context, until)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
        self._lines = {}

    def send(self, messages: Mapping[str, Message], seconds: float) -> dict[str, Message | str]:
        until = time.monotonic() + seconds
        lost: dict[str, Message | str] = {}
        for host, message in messages.items():
            try:
                _push(self._line(host), message, until)
            except OSError as error:
                lost[host] = self._lose(host, error, seconds)
        return {host: lost[host] if host in lost else self._answer(host, until, seconds) for host in messages}

    def _answer(self, host: str, until: float, seconds: float) -> Message | str:
        try:
            return _pull(self._line(host), until)
        except OSError as error:
            return self._lose(host, error, seconds)

    def _line(self, host: str) -> ssl.SSLSocket:
        if host not in self._lines:
            raise ConnectionError("there is no connection to it any more")
        return self._lines[host]

    def _lose(self, host: str, error: OSError, seconds: float) -> str:
        """Why it is lost; an answer that comes too late must not be taken for the next one's."""
        if host in self._lines:
            self._lines.pop(host).close()
        return f"no answer within {seconds:g} s" if isinstance(error, TimeoutError) else _reason(error)


def _reached(host: str, context: ssl.SSLContext, until: float) -> ssl.SSLSocket:
    """A connection to a host, which may still be starting, or about to be done with another run."""
    while True:
        try:
            return _connected(host, context)
        except ssl.SSLCertVerificationError as error:  # it is our own certificate that it must show
            why = error.verify_message
            raise IsthmusError(f"host '{host}' has another key, or this one is no longer good: {why}") from error
        except OSError as error:
            if time.monotonic() > until:
                raise IsthmusError(
                    f"host '{host}' is not there: {_reason(error)}; is isthmus host serve running there?"
                ) from error
        time.sleep(0.2)


def _connected(host: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    plain = socket.create_connection(_place(host), timeout=GREETING)
    _tend(plain)
    line = context.wrap_socket(plain)
    try:
        greeting = _pull(line, time.monotonic() + GREETING)  # whether it knows our key shows here at the earliest
        if greeting.get("wrong"):
            raise ConnectionError(greeting["wrong"])
    except BaseException:
        line.close()
        raise
    return line


# ---- a host


def listen(place: str, key: Path, side: Callable[[], Side], told: Callable[[str], None]) -> None:
    """Serve one run after another until the process is stopped.

    Arguments:
        place: ADDRESS:PORT to listen on, nowhere else; with port 0 one that is free.
        side: makes what answers the messages of one run.
        told: told where it listens.
    """
    context, at_work = _context(key, ssl.PROTOCOL_TLS_SERVER), Lock()
    address, port = _place(place)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listener = socket.create_server((address, port), family=family)
    except OSError as error:
        raise IsthmusError(f"cannot listen on {place}: {_reason(error)}; give an address of this machine") from error
    with listener:
        told(f"{place.rpartition(':')[0]}:{listener.getsockname()[1]}")
        while True:
            plain, _ = listener.accept()
            # in a thread: one who comes without a key, and says nothing, must not keep the others waiting
            Thread(target=_served, args=(plain, context, at_work, side), daemon=True).start()


def _served(plain: socket.socket, context: ssl.SSLContext, at_work: Lock, side: Callable[[], Side]) -> None:
    with suppress(OSError), plain:
        who = plain.getpeername()[0]
        try:
            plain.settimeout(GREETING)
            _tend(plain)
            line = context.wrap_socket(plain, server_side=True)
        except OSError as error:
            log.warning("%s is not let in: %s", who, _reason(error))
            return
        with line:
            if not at_work.acquire(blocking=False):
                _push(line, {"wrong": BUSY})
                return
            try:
                _push(line, {})
                _serve(line, side())
            finally:
                at_work.release()


def _serve(line: ssl.SSLSocket, side: Side) -> None:
    """Answer until the other side closes the connection, which is how a run ends."""
    while True:
        _push(line, side.handle(_pull(line)))


# ---- messages: their length in eight bytes, then they


def _push(line: ssl.SSLSocket, message: Message, until: float | None = None) -> None:
    data = store.pack(message)
    for part in (len(data).to_bytes(8, "big"), data):
        rest = memoryview(part)
        while rest:
            line.settimeout(_left(until))
            rest = rest[line.send(rest) :]


def _pull(line: ssl.SSLSocket, until: float | None = None) -> Message:
    data = _read(line, int.from_bytes(_read(line, 8, until), "big"), until)
    try:
        message: Message = store.unpack(bytes(data))
    except (SafetensorError, KeyError, ValueError) as error:
        raise ConnectionError("what it says is no message") from error
    return message


def _read(line: ssl.SSLSocket, count: int, until: float | None) -> bytearray:
    data = bytearray(count)
    rest = memoryview(data)
    while rest:
        line.settimeout(_left(until))
        came = line.recv_into(rest)
        if not came:
            raise ConnectionError("it has ended the connection")
        rest = rest[came:]
    return data


def _left(until: float | None) -> float | None:
    """Seconds that are left; without a limit none is set, and only a machine that is gone ends the wait."""
    if until is None:
        return None
    if (left := until - time.monotonic()) <= 0:
        raise TimeoutError
    return left


def _tend(plain: socket.socket) -> None:
    """Find out about a machine that is gone, and send small messages at once."""
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", SILENT), ("TCP_KEEPINTVL", PROBE), ("TCP_KEEPCNT", PROBES)):
        if hasattr(socket, name):  # not on every system
            plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _place(text: str) -> tuple[str, int]:
    address, _, port = text.rpartition(":")
    if not address or not port.isdigit() or int(port) > 65535:
        raise IsthmusError(f"host '{text}': give HOST:PORT, such as 10.0.0.7:8001")
    return address.strip("[]"), int(port)


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error or type(error).__name__).lower()
