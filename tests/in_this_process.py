"""Jobs done in this process: a process takes seconds to start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Self


class InThisProcess:
    """Stands in for `isthmus.study.processes.Processes`."""

    def __init__(self, number: int) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...

    def run(
        self,
        work: Callable[..., Any],
        jobs: Sequence[Any],
        on_event: Callable[..., None] = lambda *event: None,
    ) -> Iterator[tuple[Any, Future[Any]]]:
        for job in jobs:
            done: Future[Any] = Future()
            try:
                done.set_result(work(job, partial(on_event, job)))
            except Exception as error:
                done.set_exception(error)
            yield job, done
