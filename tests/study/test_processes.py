"""Processes do jobs, tell how far they are, and end with whoever started them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.errors import IsthmusError
from isthmus.study.processes import Processes, ProcessKilled, Send, count_processes


def square(number: int, send: Send) -> dict[str, Any]:
    import torch

    os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C sends to every process of a terminal
    for at in range(number):
        send("at", at)
    if number == 4:
        raise IsthmusError("four is refused")
    return {"square": number**2, "pid": os.getpid(), "threads": torch.get_num_threads()}


def die(number: int, send: Send) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sleep(seconds: float, send: Send) -> None:
    send("pid", os.getpid())
    time.sleep(seconds)


@pytest.fixture(scope="module")
def pool() -> Iterator[Processes]:
    with Processes(1) as pool:
        yield pool


def test_results_errors_and_events_come_with_their_jobs(pool: Processes) -> None:
    told: list[tuple[int, str, int]] = []
    ended: dict[int, Any] = {}
    for job, done in pool.run(square, [2, 3, 4], lambda *event: told.append(event)):
        assert [at for number, _, at in told if number == job] == list(range(job)), "all events come before the end"
        ended[job] = done
    assert ended[3].result() == {"square": 9, "pid": ended[2].result()["pid"], "threads": 1}
    assert ended[2].result()["pid"] != os.getpid()
    assert [event for event in told if event[0] == 2] == [(2, "at", 0), (2, "at", 1)]
    with pytest.raises(IsthmusError, match=r"^four is refused$"):
        ended[4].result()


def test_a_killed_process_is_one_line() -> None:
    with Processes(1) as pool, pytest.raises(ProcessKilled, match=r"a process was killed, .*run fewer jobs"):
        list(pool.run(die, [0, 1]))


def test_an_exception_ends_the_processes_at_once() -> None:
    pids: list[int] = []

    def stop(job: float, event: str, pid: int) -> None:
        pids.append(pid)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Processes(1) as pool:
        list(pool.run(sleep, [600.0, 600.0], stop))
    assert len(pids) == 1
    assert not Path(f"/proc/{pids[0]}").exists()


def test_zero_is_one_process_per_core() -> None:
    assert count_processes(3) == 3
    assert count_processes(0) == len(os.sched_getaffinity(0))
    with pytest.raises(IsthmusError, match="jobs is -1: give 1 or more, or 0 for one per core"):
        count_processes(-1)
