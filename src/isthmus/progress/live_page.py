"""A study's report while it runs, on a page that this machine alone can open."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from types import TracebackType
from typing import Any, Self

from isthmus.data.describe import CutDescription
from isthmus.errors import IsthmusError
from isthmus.federation.ledger import Ledger
from isthmus.methods.base import Method
from isthmus.report.report import announcement, write_report
from isthmus.study.config import Study
from isthmus.study.loop import RunResult
from isthmus.study.results import Results, ordered
from isthmus.study.run import Watcher

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
EVERY = 5
"""Seconds after which the page is looked at again."""


@dataclass
class _Going(RunResult):
    """A run that is under way: what it reports and how long it takes is not known yet."""

    def summary(self) -> dict[str, Any]:
        known = {key: getattr(self, key) for key in ("method", "seed", "rounds", "metrics")}
        return {**known, "under_way": True}


class LivePage(Watcher):
    """Serves the report of what there is so far, as long as the `with` lasts.

    Runs that are under way have their curves; their ledger and what they spent are told when they have ended.

    Arguments:
        port: 0 takes one that is free.
    """

    def __init__(self, study: Study, port: int = 0) -> None:
        self.study = study
        self._lock, self._writing = Lock(), Lock()
        self._done: list[RunResult] = []
        self._going: dict[tuple[str, int], _Going] = {}
        self._known: Mapping[str, Any] = study.resolved()
        self._cuts: dict[int, CutDescription] = {}
        self._page, self._told = "", -1
        self._news = 0
        try:
            self._server = _Quietly((HOST, port), self._handler())
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise IsthmusError(f"cannot serve at {HOST}:{port}: {reason}; choose another --port") from error

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self._server.server_port}/"

    @property
    def names(self) -> set[str]:
        """What a browser may call it."""
        port = self._server.server_port
        return {f"{name}:{port}" for name in (HOST, "localhost")} | ({HOST, "localhost"} if port == 80 else set())

    def __enter__(self) -> Self:
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def study_started(self, study: Mapping[str, Any]) -> None:
        with self._lock:
            self._known = study
            self._news += 1

    def cut_made(self, seed: int, cut: CutDescription) -> None:
        with self._lock:
            self._cuts[seed] = cut

    def round_done(self, method: Method, seed: int, at: int, metrics: Mapping[str, float]) -> None:
        with self._lock:
            run = self._going.setdefault((method.name, seed), _Going(method.name, seed, at, at, 0.0, {}, [], Ledger()))
            run.history += [(at, name, value) for name, value in metrics.items()]
            run.rounds = at
            run.metrics = dict(metrics)
            self._news += 1

    def run_done(self, result: RunResult) -> None:
        with self._lock:
            self._going.pop((result.method, result.seed), None)
            self._done.append(_light(result))
            self._news += 1

    def run_restored(self, result: RunResult) -> None:
        self.run_done(result)

    def page(self) -> str:
        """The report of what there is now, made anew only where there is news; training goes on meanwhile."""
        with self._writing:
            with self._lock:
                done, going, news = list(self._done), [_light(run) for run in self._going.values()], self._news
                known, cuts = self._known, dict(self._cuts)
            if self._told != news:
                made = self._written(known, cuts, done, going) if done or going else announcement(known)
                self._page, self._told = made, news
            return self._page

    def _written(
        self,
        known: Mapping[str, Any],
        cuts: Mapping[int, CutDescription],
        done: list[RunResult],
        under_way: list[RunResult],
    ) -> str:
        names = [method.name for method in self.study.method_list()]
        runs = ordered([*done, *under_way], names)
        going = [f"{run.method}, seed {run.seed}, round {run.rounds}" for run in under_way]
        with tempfile.TemporaryDirectory() as aside:
            folder = Path(aside) / "so far"
            Results(known, runs, cuts).save(folder)
            page = write_report([folder]).read_text(encoding="utf-8")
        due = len(names) * len(self.study.seeds)
        told = f"Under way: {'; '.join(going)}. " if going else ""
        note = f"<p class=caution>{escape(told)}{len(done)} of {due} runs have ended.</p>"
        return page.replace("<nav ", f"{note}<nav ", 1)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        live = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.headers.get("Host", "") not in live.names:
                    self.send_error(403)  # a name that somebody else points at this machine
                    return
                if self.path == "/favicon.ico":  # browsers ask for one, and complain where there is none
                    self.send_response(204)
                    self.end_headers()
                    return
                if self.path != "/":
                    self.send_error(404)
                    return
                try:
                    body = live.page().encode()
                except IsthmusError as error:
                    self.send_error(500, "no page", str(error))
                    return
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


def _light(run: RunResult) -> RunResult:
    """Without weights and graphs, which would be written for nothing."""
    return replace(run, history=list(run.history), models={}, graph={})


class _Quietly(ThreadingHTTPServer):
    """A reader that goes away in the middle of a page is no error."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("the live page could not be sent", exc_info=True)
