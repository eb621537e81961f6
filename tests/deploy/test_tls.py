"""Messages over TLS: what is sent arrives, every wait ends, and without the key nobody gets in."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import struct
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Queue
from threading import Event, Thread
from typing import Any

import pytest
import torch

from isthmus.deploy import tls
from isthmus.deploy.remote import Message
from isthmus.deploy.tls import TlsPost, listen, new_key
from isthmus.errors import IsthmusError


class Echo:
    """Answers what it gets, after it has been let."""

    def __init__(self) -> None:
        self.go = Event()
        self.go.set()

    def handle(self, message: Message) -> Message:
        self.go.wait(30)
        return message


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "hosts.key"
    new_key(path, 1)
    return path


@pytest.fixture(scope="module")
def other_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "hosts.key"
    new_key(path, 1)
    return path


def host(key: Path, side: Callable[[], Any] = Echo) -> str:
    """A host in a thread of this process; where it listens."""
    places: Queue[str] = Queue()
    Thread(target=listen, args=("127.0.0.1:0", key, side, places.put), daemon=True).start()
    return places.get(timeout=10)


def opened(place: str) -> socket.socket:
    address, _, port = place.rpartition(":")
    return socket.create_connection((address, int(port)), timeout=10)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "GREETING_SECONDS", 0.5)


@pytest.fixture(scope="module")
def echo(key: Path) -> str:
    return host(key)


def test_messages_arrive_as_they_are(key: Path) -> None:
    places = [host(key), host(key)]
    large = torch.randn(3_000_000)
    with TlsPost(places, key) as post:
        assert post.sites == tuple(places)
        for at in range(3):
            said = post.send({place: {"turn": at, "from": place, "w": large, "none": {}} for place in places}, 30)
            for place, reply in said.items():
                assert isinstance(reply, dict)
                assert torch.equal(reply.pop("w"), large)
                assert reply == {"turn": at, "from": place, "none": {}}


def test_the_key_is_for_its_owner_alone_and_is_not_written_over(key: Path) -> None:
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    with pytest.raises(IsthmusError, match="exists: choose another file"):
        new_key(key, 1)


# ---- who gets in


@pytest.mark.parametrize("kind", ["other", "none", "trusts all"])
def test_without_the_key_nobody_gets_in(kind: str, key: Path, other_key: Path) -> None:
    begun: list[Echo] = []

    def side() -> Echo:
        begun.append(Echo())
        return begun[-1]

    place = host(key, side)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if kind == "other":
        with pytest.raises(IsthmusError, match=f"host '{place}' has another key, or this one is no longer good"):
            TlsPost([place], other_key)
    elif kind == "none":
        with pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"), context.wrap_socket(opened(place)) as line:
            line.recv(1)
    else:  # who does not mind whom it talks to is not let in for that
        context.load_cert_chain(other_key)
        with pytest.raises(ssl.SSLError), context.wrap_socket(opened(place)) as line:
            line.recv(1)
    assert not begun
    with TlsPost([place], key) as post:
        assert post.send({place: {"x": 1}}, 5) == {place: {"x": 1}}


def test_a_key_that_has_expired_is_no_longer_good(tmp_path: Path) -> None:
    new_key(tmp_path / "old.key", -1)
    place = host(tmp_path / "old.key")
    with pytest.raises(IsthmusError, match="has another key, or this one is no longer good"):
        TlsPost([place], tmp_path / "old.key")


@pytest.mark.usefixtures("short")
def test_who_says_nothing_keeps_nobody_waiting(key: Path) -> None:
    place = host(key)
    with opened(place) as silent, opened(place) as loud:
        loud.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with TlsPost([place], key) as post:
            assert post.send({place: {"x": 1}}, 5) == {place: {"x": 1}}
        assert silent.recv(1) == b""  # closed, after its time


def test_what_goes_over_the_network_cannot_be_read(key: Path) -> None:
    place = host(key)
    seen = bytearray()
    relay = socket.create_server(("127.0.0.1", 0))

    def forward(source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):  # one side has gone
            while data := source.recv(65536):
                seen.extend(data)
                to.sendall(data)

    def accept() -> None:
        near, _ = relay.accept()
        far = opened(place)
        Thread(target=forward, args=(near, far), daemon=True).start()
        forward(far, near)

    Thread(target=accept, daemon=True).start()
    through = f"127.0.0.1:{relay.getsockname()[1]}"
    with TlsPost([through], key) as post:
        assert post.send({through: {"text": "do not tell" * 10}}, 5)
    assert len(seen) > 1000
    assert b"do not tell" not in seen


# ---- one run at a time


def test_a_host_serves_one_run_after_another(key: Path, echo: str) -> None:
    for _ in range(2):
        with TlsPost([echo], key) as post:
            with pytest.raises(IsthmusError, match=r"is not there: it is at work for another run; is isthmus host"):
                TlsPost([echo], key, coming=0)
            assert post.send({echo: {"x": 1}}, 5) == {echo: {"x": 1}}


def test_who_comes_while_a_host_is_at_work_waits(key: Path, echo: str) -> None:
    first = TlsPost([echo], key)
    Thread(target=lambda: (time.sleep(0.5), first.close()), daemon=True).start()
    with TlsPost([echo], key) as post:
        assert post.send({echo: {"x": 1}}, 5) == {echo: {"x": 1}}


# ---- every wait ends


def test_an_answer_that_is_late_is_not_taken_for_the_next(key: Path) -> None:
    side = Echo()
    place = host(key, lambda: side)
    with TlsPost([place], key) as post:
        side.go.clear()
        assert post.send({place: {"x": 1}}, 0.2) == {place: "no answer within 0.2 s"}
        side.go.set()
        assert post.send({place: {"x": 2}}, 5) == {place: "there is no connection to it any more"}


def test_a_host_that_is_gone_is_said_and_the_others_answer(key: Path, echo: str) -> None:
    class Leaves(Echo):
        def handle(self, message: Message) -> Message:
            raise ConnectionError

    gone = host(key, Leaves)
    with TlsPost([gone, echo], key) as post:
        assert post.send({gone: {"x": 1}, echo: {"x": 2}}, 5) == {gone: "it has ended the connection", echo: {"x": 2}}


def test_a_host_that_does_not_read_is_not_waited_for(key: Path) -> None:
    side = Echo()
    side.go.clear()
    place = host(key, lambda: side)
    with TlsPost([place], key) as post:
        assert post.send({place: {"x": 1}}, 0.1) == {place: "no answer within 0.1 s"}
    with TlsPost([host(key, lambda: side)], key) as post:
        (other,) = post.sites
        post._lines[other].settimeout(5)
        tls._send(post._lines[other], {"x": 1})
        assert post.send({other: {"w": torch.zeros(20_000_000)}}, 0.3) == {other: "no answer within 0.3 s"}
    side.go.set()


def test_a_host_that_is_not_there_is_named(key: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(IsthmusError, match=f"^host '{place}' is not there: connection refused; is isthmus host serve"):
        TlsPost([place], key, coming=0)


@pytest.mark.usefixtures("short")
def test_somebody_else_who_listens_there_is_no_host(key: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(IsthmusError, match=f"^host '{place}' is not there: .*timed out"):
            TlsPost([place], key, coming=0)


@pytest.mark.parametrize("data", [b"garbage", b"", struct.pack("<Q", 2) + b"{}"])
def test_bytes_that_are_no_message_end_the_connection(data: bytes, key: Path) -> None:
    place = host(key)
    with TlsPost([place], key) as post:
        line = post._lines[place]
        line.sendall(len(data).to_bytes(8, "big") + data)
        assert post._answer(place, time.monotonic() + 5, 5) == "it has ended the connection"
    with TlsPost([place], key) as post:
        assert post.send({place: {"x": 1}}, 5) == {place: {"x": 1}}


# ---- what is wrong shows before anything runs


@pytest.mark.parametrize(
    ("hosts", "why"),
    [
        (["here"], "host 'here': give HOST:PORT, such as"),
        ([":8001"], "host ':8001': give HOST:PORT"),
        (["here:http"], "give HOST:PORT"),
        (["here:70000"], "give HOST:PORT"),
        (["a:1", "a:1"], "host 'a:1' is listed twice"),
        ([], "there is no host"),
    ],
)
def test_places_that_are_none_are_refused(hosts: list[str], why: str, key: Path) -> None:
    with pytest.raises(IsthmusError, match=why):
        TlsPost(hosts, key)


def test_a_file_that_is_no_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsthmusError, match=r"cannot read the key .*none.key: No such file or directory; make one with"):
        listen("127.0.0.1:0", tmp_path / "none.key", Echo, lambda place: None)
    (tmp_path / "no.key").write_text("no key")
    with pytest.raises(IsthmusError, match=r"cannot read the key .*no.key: not a key"):
        TlsPost(["127.0.0.1:1"], tmp_path / "no.key")


def test_a_place_that_is_not_of_this_machine_is_refused(key: Path) -> None:
    with pytest.raises(IsthmusError, match=r"^cannot listen on 192\.0\.2\.1:8001: cannot assign"):
        listen("192.0.2.1:8001", key, Echo, lambda place: None)


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp6"), reason="reads what Linux says of sockets")
def test_it_listens_where_it_is_told_and_nowhere_else(key: Path) -> None:
    port = int(host(key).rpartition(":")[2])
    tables = [Path(f"/proc/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6")]
    at = [line.split()[1] for table in tables for line in table if line.split()[3] == "0A"]
    assert [each for each in at if each.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


def test_a_key_of_another_tool_will_do(tmp_path: Path) -> None:
    made = tmp_path / "made.key"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=x"
    try:
        subprocess.run(
            [*command.split(" "), "-keyout", "own", "-out", "cert"], check=True, capture_output=True, cwd=tmp_path
        )
    except FileNotFoundError:
        pytest.skip("there is no openssl here")
    made.write_bytes((tmp_path / "own").read_bytes() + (tmp_path / "cert").read_bytes())
    place = host(made)
    with TlsPost([place], made) as post:
        assert post.send({place: {"x": 1}}, 5) == {place: {"x": 1}}
