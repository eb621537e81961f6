"""A study's report while it runs, on a page that this machine alone can open."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from types import TracebackType
from typing import Any, Self

from isthmus.errors import IsthmusError
from isthmus.federation.ledger import Ledger
from isthmus.methods.base import Method
from isthmus.study.config import Study
from isthmus.study.engine import RunResult
from isthmus.study.report import write_report
from isthmus.study.results import Results, ordered
from isthmus.study.run import Watcher

HOST = "127.0.0.1"
EVERY = 5
"""Seconds after which the page is looked at again."""
_WAITING = "<!DOCTYPE html><html lang=en><title>Isthmus</title><p>No round has been evaluated yet."


class LivePage(Watcher):
    """Serves the report of what there is so far, as long as the `with` lasts.

    Runs that are under way have their curves; their ledger and what they spent are told when they have ended.

    Arguments:
        port: 0 takes one that is free.
    """

    def __init__(self, study: Study, port: int = 0) -> None:
        self.study = study
        self._lock = Lock()
        self._done: list[RunResult] = []
        self._going: dict[tuple[str, int], RunResult] = {}
        self._page, self._told = _WAITING, -1
        self._news = 0
        try:
            self._server = ThreadingHTTPServer((HOST, port), self._handler())
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise IsthmusError(f"cannot serve at {HOST}:{port}: {reason}; choose another --port") from error

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self._server.server_port}/"

    def __enter__(self) -> Self:
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def round_done(self, method: Method, seed: int, at: int, metrics: Mapping[str, float]) -> None:
        with self._lock:
            run = self._going.setdefault(
                (method.name, seed), RunResult(method.name, seed, at, at, 0.0, {}, [], Ledger())
            )
            run.history += [(at, name, value) for name, value in metrics.items()]
            run.rounds = run.chosen_round = at
            run.metrics = dict(metrics)
            self._news += 1

    def run_done(self, result: RunResult) -> None:
        with self._lock:
            self._going.pop((result.method, result.seed), None)
            self._done.append(_without_weights(result))
            self._news += 1

    def page(self) -> str:
        """The report of what there is now, made anew only where there is news."""
        with self._lock:
            if self._told != self._news and (self._done or self._going):
                self._page, self._told = self._written(), self._news
            return self._page

    def _written(self) -> str:
        names = [method.name for method in self.study.method_list()]
        runs = ordered([*self._done, *self._going.values()], names)
        going = [f"{run.method}, seed {run.seed}, round {run.rounds}" for run in self._going.values()]
        with tempfile.TemporaryDirectory() as aside:
            folder = Path(aside) / "so far"
            Results(self.study.resolved(), runs).save(folder)
            page = write_report([folder]).read_text(encoding="utf-8")
        due = len(names) * len(self.study.seeds)
        told = f"Under way: {'; '.join(going)}. " if going else ""
        note = f"<p class=caution>{escape(told)}{len(self._done)} of {due} runs have ended.</p>"
        return page.replace("<nav ", f"{note}<nav ", 1)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        live = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.headers.get("Host", "").rpartition(":")[0] not in (HOST, "localhost"):
                    self.send_error(403)  # a name that somebody else points at this machine
                    return
                if self.path != "/":
                    self.send_error(404)
                    return
                body = live.page().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Refresh", str(EVERY))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *told: Any) -> None:
                """Nothing: the terminal shows how the run goes."""

        return Handler


def _without_weights(run: RunResult) -> RunResult:
    """What a report reads of a run; weights and graphs would be written for nothing."""
    return RunResult(
        run.method, run.seed, run.rounds, run.chosen_round, run.seconds, run.metrics, list(run.history), run.ledger,
        privacy=run.privacy, places=run.places,
    )  # fmt: skip
