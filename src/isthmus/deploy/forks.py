"""Processes that start within milliseconds: forks of a process that has already loaded what they need.

A process that is started anew loads torch and everything else again, which takes seconds of CPU time. Instead a process
is forked off early, while it has no threads, no connections and no data; it only waits and forks when it is asked to.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Any, NoReturn

NAME = "isthmus-job"
"""What a forked process is called in a list of processes."""

Main = Callable[[Sequence[str]], int]
"""What a forked process does with its words; returns its exit code."""


class Fork:
    """A forked process."""

    def __init__(self) -> None:
        self.pid = 0
        self.code: int | None = None
        self.started, self.ended = Event(), Event()

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        return self.code

    def wait(self) -> None:
        """Wait until the process has ended."""
        self.ended.wait()

    def terminate(self) -> None:
        """Kill the process and all that it has started."""
        if self.code is None:
            with suppress(ProcessLookupError):  # it may just have ended
                os.killpg(self.pid, signal.SIGKILL)


class Forks:
    """Starts processes as forks.

    Create it before this process starts a thread, opens a connection or reads data: forks begin with what is in memory
    at that moment.

    Arguments:
        main: what a forked process does.
        load: what is done once before anything is forked, such as imports; this process does not wait for it.
    """

    def __init__(self, main: Main, load: Callable[[], None] = lambda: None) -> None:
        self._lock, self._waiting = Lock(), list[Fork]()
        self._running: dict[int, Fork] = {}
        here, there = socket.socketpair()
        if not os.fork():
            here.close()
            _wait_for_requests(there, main, load)
        there.close()
        self._socket = here
        self._reader: Thread | None = None

    def start(self, words: Sequence[str], environment: Mapping[str, str]) -> Fork:
        """Start a process with these words and this environment."""
        fork = Fork()
        with self._lock:
            if self._reader is None:
                self._reader = Thread(target=self._read_reports, daemon=True)
                self._reader.start()
            self._waiting.append(fork)
            self._socket.sendall(_line({"words": list(words), "environment": dict(environment)}))
        fork.started.wait()
        if not fork.pid:
            raise OSError("the process that starts others has ended")
        return fork

    def _read_reports(self) -> None:
        """Take reports of started and ended processes, until there are no more."""
        with self._socket.makefile("rb") as reports:
            for report in map(json.loads, reports):
                with self._lock:
                    if "code" in report:
                        fork = self._running.pop(report["pid"])
                        fork.code = report["code"]
                        fork.ended.set()
                    else:
                        fork = self._waiting.pop(0)
                        fork.pid = report["pid"]
                        self._running[fork.pid] = fork
                        fork.started.set()
        with self._lock:
            for fork in (*self._waiting, *self._running.values()):
                fork.code = -signal.SIGKILL
                fork.started.set()
                fork.ended.set()


def _wait_for_requests(link: socket.socket, main: Main, load: Callable[[], None]) -> NoReturn:
    """Fork when asked to, report what has ended, and exit when the process that asks is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes of a terminal
    try:
        load()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    gc.collect()
    gc.freeze()  # a collection would write to memory that all forks share
    selector = selectors.DefaultSelector()
    selector.register(link, selectors.EVENT_READ)
    requests = link.makefile("rb", buffering=0)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not link:
                selector.unregister(key.fileobj)
                os.close(key.fd)
                _, status = os.waitpid(key.data, 0)
                _report(link, {"pid": key.data, "code": os.waitstatus_to_exitcode(status)})
                continue
            try:
                line = requests.readline()
            except OSError:  # the process that asks was killed
                line = b""
            if not line:
                os._exit(0)
            own_session, when_own = os.pipe()
            pid = os.fork()
            if not pid:
                selector.close()
                requests.close()
                link.close()
                os.setsid()
                os.close(when_own)
                os.close(own_session)
                _become(main, json.loads(line))
            os.close(when_own)
            os.read(own_session, 1)  # waits until the fork leads a group of its own, which its owner may kill
            os.close(own_session)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
            _report(link, {"pid": pid})


def _report(link: socket.socket, report: Mapping[str, Any]) -> None:
    try:
        link.sendall(_line(report))
    except OSError:  # nobody is there to hear it
        os._exit(0)


def _become(main: Main, request: Mapping[str, Any]) -> NoReturn:
    """Do what a fork is for, and exit without waiting for threads."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(request["environment"])
        with open("/proc/self/comm", "w") as name:
            name.write(NAME)
        code = main(request["words"])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
