"""Messages between machines of one owner, over mutual TLS with the standard library alone.

All machines have the same key file: a private key and its certificate, which both sides present and the only one that
they trust. Whoever has the file is let in, and nobody else. Messages are bytes of `store.pack`; reading them runs no
code.
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

GREETING_SECONDS = 10.0
"""Seconds that a client of a host has to present its key."""
CONNECT_SECONDS = 30.0
"""Seconds that a host may take to start, or to finish another run."""
IDLE_SECONDS, PROBE_SECONDS, PROBES = 60, 10, 6
"""TCP keep-alive: seconds of silence before the first probe, seconds between probes, and probes until a loss."""
BUSY = "it is at work for another run"


class Side(Protocol):
    """Answers messages while a connection lasts."""

    def handle(self, message: Message) -> Message: ...


# ---- the key


def new_key(path: Path, days: int) -> None:
    """Write a key for the machines of one owner, whose certificate is valid for so many days."""
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


# ---- the side that runs a study


class TlsPost(Post):
    """One connection to each host, kept until it is closed.

    Every host has its message before the first reply is read, so all of them work at the same time.

    Arguments:
        hosts: where they listen, HOST:PORT.
        key: file.
        coming: seconds that hosts may take to start, or to finish another run.
    """

    def __init__(self, hosts: Sequence[str], key: Path, *, coming: float = CONNECT_SECONDS) -> None:
        for host in hosts:
            _address(host)
            if hosts.count(host) > 1:
                raise IsthmusError(f"host '{host}' is listed twice")
        if not hosts:
            raise IsthmusError("there is no host: name at least one as HOST:PORT")
        self.sites = tuple(hosts)
        self._lines: dict[str, ssl.SSLSocket] = {}
        context, until = _context(key, ssl.PROTOCOL_TLS_CLIENT), time.monotonic() + coming
        try:
            for host in hosts:
                self._lines[host] = _connect_in_time(host, context, until)
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
                _send(self._line(host), message, until)
            except OSError as error:
                lost[host] = self._drop(host, error, seconds)
        return {host: lost[host] if host in lost else self._answer(host, until, seconds) for host in messages}

    def _answer(self, host: str, until: float, seconds: float) -> Message | str:
        try:
            return _receive(self._line(host), until)
        except OSError as error:
            return self._drop(host, error, seconds)

    def _line(self, host: str) -> ssl.SSLSocket:
        if host not in self._lines:
            raise ConnectionError("there is no connection to it any more")
        return self._lines[host]

    def _drop(self, host: str, error: OSError, seconds: float) -> str:
        """Close the connection, so that a late answer is not taken for the next one; return why the host is lost."""
        if host in self._lines:
            self._lines.pop(host).close()
        return f"no answer within {seconds:g} s" if isinstance(error, TimeoutError) else _reason(error)


def _connect_in_time(host: str, context: ssl.SSLContext, until: float) -> ssl.SSLSocket:
    """Connect to a host, again and again until it has started and is free."""
    while True:
        try:
            return _connect(host, context)
        except ssl.SSLCertVerificationError as error:  # it must present the same certificate as ours
            why = error.verify_message
            raise IsthmusError(f"host '{host}' has another key, or this one is no longer good: {why}") from error
        except OSError as error:
            if time.monotonic() > until:
                raise IsthmusError(
                    f"host '{host}' is not there: {_reason(error)}; is isthmus host serve running there?"
                ) from error
        time.sleep(0.2)


def _connect(host: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    plain = socket.create_connection(_address(host), timeout=GREETING_SECONDS)
    _set_options(plain)
    line = context.wrap_socket(plain)
    try:
        greeting = _receive(line, time.monotonic() + GREETING_SECONDS)  # the host accepts our key only now
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
        place: ADDRESS:PORT to listen on; port 0 picks a free one.
        side: makes what answers the messages of one run.
        told: told where it listens.
    """
    context, busy = _context(key, ssl.PROTOCOL_TLS_SERVER), Lock()
    address, port = _address(place)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listener = socket.create_server((address, port), family=family)
    except OSError as error:
        raise IsthmusError(f"cannot listen on {place}: {_reason(error)}; give an address of this machine") from error
    with listener:
        told(f"{place.rpartition(':')[0]}:{listener.getsockname()[1]}")
        while True:
            plain, _ = listener.accept()
            # in a thread, so that a silent client without a key blocks nobody else
            Thread(target=_serve_connection, args=(plain, context, busy, side), daemon=True).start()


def _serve_connection(plain: socket.socket, context: ssl.SSLContext, busy: Lock, side: Callable[[], Side]) -> None:
    with suppress(OSError), plain:
        who = plain.getpeername()[0]
        try:
            plain.settimeout(GREETING_SECONDS)
            _set_options(plain)
            line = context.wrap_socket(plain, server_side=True)
        except OSError as error:
            log.warning("%s is not let in: %s", who, _reason(error))
            return
        with line:
            if not busy.acquire(blocking=False):
                _send(line, {"wrong": BUSY})
                return
            try:
                _send(line, {})
                _serve(line, side())
            finally:
                busy.release()


def _serve(line: ssl.SSLSocket, side: Side) -> None:
    """Answer messages until the other side closes the connection, which ends the run."""
    while True:
        _send(line, side.handle(_receive(line)))


# ---- messages: eight bytes with the length, then the message


def _send(line: ssl.SSLSocket, message: Message, until: float | None = None) -> None:
    data = store.pack(message)
    for part in (len(data).to_bytes(8, "big"), data):
        rest = memoryview(part)
        while rest:
            line.settimeout(_seconds_left(until))
            rest = rest[line.send(rest) :]


def _receive(line: ssl.SSLSocket, until: float | None = None) -> Message:
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
        line.settimeout(_seconds_left(until))
        came = line.recv_into(rest)
        if not came:
            raise ConnectionError("it has ended the connection")
        rest = rest[came:]
    return data


def _seconds_left(until: float | None) -> float | None:
    """Return the seconds left; without a limit, only a lost machine ends the wait."""
    if until is None:
        return None
    if (left := until - time.monotonic()) <= 0:
        raise TimeoutError
    return left


def _set_options(plain: socket.socket) -> None:
    """Notice lost machines, and send small messages without delay."""
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", IDLE_SECONDS), ("TCP_KEEPINTVL", PROBE_SECONDS), ("TCP_KEEPCNT", PROBES)):
        if hasattr(socket, name):  # not on every system
            plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _address(text: str) -> tuple[str, int]:
    address, _, port = text.rpartition(":")
    if not address or not port.isdigit() or int(port) > 65535:
        raise IsthmusError(f"host '{text}': give HOST:PORT, such as 10.0.0.7:8001")
    return address.strip("[]"), int(port)


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error or type(error).__name__).lower()
