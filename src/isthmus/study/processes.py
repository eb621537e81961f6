"""Runs jobs in processes with one thread each: the runs of a study, or the cells of a paper's table.

This module imports no torch, so that a new process ignores interrupts before its long imports begin.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection
from multiprocessing.queues import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from isthmus.errors import IsthmusError, format_option, ignore_library_warnings
from isthmus.own_code import keep_place

J = TypeVar("J")
R = TypeVar("R")

Send = Callable[..., None]
"""Tells the process that waits for a job how far the job is. Details must be picklable and below 4 kB: then a process
that is killed leaves no half message, on which the reader would wait for ever."""

PAUSE = 0.1
"""Seconds between two looks at what the processes sent."""


class ProcessKilled(IsthmusError):  # noqa: N818 - reads as what happened
    """A process ended in the middle of its job."""


def count_processes(jobs: int) -> int:
    """Return a number of processes; 0 stands for one per core that this process may use."""
    if jobs < 0:
        raise IsthmusError(f"jobs is {jobs}: give 1 or more, or 0 for one per core")
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return jobs or available or 1


class Pool(Protocol):
    """Does jobs side by side, within a `with`."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def run(
        self, work: Callable[[J, Send], R], jobs: Sequence[J], on_event: Callable[..., None] = ...
    ) -> Iterator[tuple[J, Future[R]]]:
        """Do the work of every job, and yield each job when it has ended, with its result or its error.

        Arguments:
            work: a function of a module; called in another process with the job and a `Send`.
            on_event: called here with the job and the details that the work has sent.
        """


class Processes:
    """Processes that run jobs as long as a `with` lasts. They end with this process, even if it is killed.

    If an exception leaves the `with`, such as an interrupt, they are killed at once: a job must be able to resume.

    Arguments:
        number: of processes.
    """

    def __init__(self, number: int) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process would inherit torch's locked threads
        self._events: SimpleQueue[tuple[int, tuple[Any, ...]]] = context.SimpleQueue()
        self._executor = ProcessPoolExecutor(number, context, _set_up, (self._events,))
        self._others = set(multiprocessing.active_children())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for process in set(multiprocessing.active_children()) - self._others:
                process.terminate()
        self._executor.shutdown(cancel_futures=error is not None)

    def run(
        self, work: Callable[[J, Send], R], jobs: Sequence[J], on_event: Callable[..., None] = lambda *event: None
    ) -> Iterator[tuple[J, Future[R]]]:
        """See `Pool.run`."""
        with _interrupts_blocked():
            left = {self._executor.submit(_work, work, at, job): job for at, job in enumerate(jobs)}
        while left:
            done, _ = wait(left, PAUSE, FIRST_COMPLETED)
            while not self._events.empty():  # all events of the jobs that are done are in the queue
                at, details = self._events.get()
                on_event(jobs[at], *details)
            for each in done:
                if isinstance(each.exception(), BrokenProcessPool):
                    raise ProcessKilled(
                        "a process was killed, perhaps because memory ran out: run fewer jobs side by side; "
                        f"{format_option('resume', True)} continues what was saved"
                    ) from each.exception()
                yield left.pop(each), each


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Start processes that do not hear Ctrl-C: the process that started them ends them, and none shows a traceback."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_events: SimpleQueue[tuple[int, tuple[Any, ...]]]
"""In a process of a pool: what it sends."""


def _set_up(events: SimpleQueue[tuple[int, tuple[Any, ...]]]) -> None:
    """Set up a process of a pool: one thread, which is fastest for small kernels, and an end with its parent."""
    global _events
    _events = events
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    Thread(target=_exit_after, args=(parent.sentinel,), daemon=True).start()
    ignore_library_warnings()
    os.environ["OMP_NUM_THREADS"] = "1"  # libraries read it when they are imported
    import torch

    torch.set_num_threads(1)


def _exit_after(sentinel: Any) -> None:
    connection.wait([sentinel])
    os._exit(1)


def _work(work: Callable[[J, Send], R], at: int, job: J) -> R:
    try:
        return work(job, lambda *details: _events.put((at, details)))
    except Exception as error:
        keep_place(error)
        raise
