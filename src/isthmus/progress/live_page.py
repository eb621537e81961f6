"""The report of a study while it runs: on a page that only this machine can open, or in a file."""

from __future__ import annotations

import logging
import math
import tempfile
import time
from collections.abc import Mapping, Set
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from types import TracebackType
from typing import Any, Self

from isthmus import store
from isthmus.data.description import CutDescription
from isthmus.errors import IsthmusError
from isthmus.federation.ledger import Ledger, PartyStanding
from isthmus.methods.base import Method
from isthmus.progress.standing import HEADS, NOTE, party_cells, shown_parties
from isthmus.report import page as pages
from isthmus.report.report import announcement, write_report
from isthmus.study.config import Study
from isthmus.study.loop import RunResult
from isthmus.study.results import Results, sort_runs
from isthmus.study.run import Watcher
from isthmus.study.settings import search_of_grid

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
REFRESH = 5
"""Seconds after which a browser loads the page again."""


@dataclass
class _Unfinished(RunResult):
    """A run that is under way: its chosen round and its seconds are not known yet."""

    def summary(self) -> dict[str, Any]:
        known = {key: getattr(self, key) for key in ("method", "seed", "rounds", "metrics")}
        return {**known, "under_way": True}


class RunningReport(Watcher):
    """The report of the results so far.

    Runs under way have their curves; their ledger and their privacy costs follow when they have finished. In a
    federation, a table says how the parties stand.
    """

    def __init__(self, study: Study) -> None:
        self.study = study
        self._lock, self._writing = Lock(), Lock()
        self._finished: list[RunResult] = []
        self._unfinished: dict[tuple[str, int], _Unfinished] = {}
        self._resolved: Mapping[str, Any] = study.resolved()
        self._cuts: dict[int, CutDescription] = {}
        self._left_out: set[tuple[str, int]] = set()
        self._parties: Mapping[str, PartyStanding] = {}
        self._page, self._page_version = "", -1
        self._version = 0

    def study_started(self, study: Mapping[str, Any]) -> None:
        with self._lock:
            self._resolved = study
            self._version += 1

    def cut_made(self, seed: int, cut: CutDescription) -> None:
        with self._lock:
            self._cuts[seed] = cut

    def round_done(self, method: Method, seed: int, at: int, metrics: Mapping[str, float]) -> None:
        with self._lock:
            run = self._unfinished.setdefault(
                (method.label, seed), _Unfinished(method.label, seed, at, at, 0.0, {}, [], Ledger())
            )
            run.history += [(at, name, value) for name, value in metrics.items()]
            run.rounds = at
            run.metrics, run.metric = dict(metrics), self._resolved.get("task", {}).get("metric", "")
            self._version += 1

    def run_done(self, result: RunResult) -> None:
        with self._lock:
            self._unfinished.pop((result.method, result.seed), None)
            self._finished.append(_light(result))
            self._version += 1

    def run_restored(self, result: RunResult) -> None:
        self.run_done(result)

    def run_left_out(self, method: Method, seed: int, why: str) -> None:
        with self._lock:
            self._unfinished.pop((method.label, seed), None)
            self._left_out.add((method.label, seed))
            self._version += 1

    def parties_seen(self, parties: Mapping[str, PartyStanding]) -> None:
        with self._lock:
            self._version += parties != self._parties
            self._parties = dict(parties)

    def page(self) -> str:
        """The report of the results so far, written again only if there are new ones; training goes on meanwhile."""
        with self._writing:
            with self._lock:
                finished, version = list(self._finished), self._version
                unfinished = [_light(run) for run in self._unfinished.values()]
                study, cuts, parties = self._resolved, dict(self._cuts), self._parties
                left_out = set(self._left_out)
            if self._page_version != version:
                runs = finished or unfinished
                page = self._report(study, cuts, finished, unfinished, left_out) if runs else announcement(study)
                self._page = page.replace("<nav ", f"{_parties_table(parties)}<nav ", 1) if parties else page
                self._page_version = version
            return self._page

    def _report(
        self,
        study: Mapping[str, Any],
        cuts: Mapping[int, CutDescription],
        finished: list[RunResult],
        unfinished: list[RunResult],
        left_out: Set[tuple[str, int]],
    ) -> str:
        settings = self.study.settings()
        names = [setting.method.label for setting in settings]
        runs = sort_runs([*finished, *unfinished], names)
        under_way = [f"{run.method}, seed {run.seed}, round {run.rounds}" for run in unfinished]
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "so far"
            results = Results(study, runs, cuts)
            if self.study.grid:
                results.search = search_of_grid(settings, runs, "", {label for label, _ in left_out})
            results.save(folder)
            page = write_report([folder]).read_text(encoding="utf-8")
        planned = len(names) * len(self.study.seeds) - len(left_out)
        text = f"Under way: {'; '.join(under_way)}. " if under_way else ""
        note = f"<p class=caution>{escape(text)}{len(finished)} of {planned} runs have finished.</p>"
        return page.replace("<nav ", f"{note}<nav ", 1)


class LivePage(RunningReport):
    """Serves the report of the results so far, as long as the `with` lasts.

    Arguments:
        port: 0 takes a free one.
    """

    def __init__(self, study: Study, port: int = 0) -> None:
        super().__init__(study)
        try:
            self._server = _Server((HOST, port), self._handler())
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise IsthmusError(f"cannot serve at {HOST}:{port}: {reason}; choose another --port") from error

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self._server.server_port}/"

    @property
    def names(self) -> set[str]:
        """Host names that a browser may use."""
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

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        live = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.headers.get("Host", "") not in live.names:
                    self.send_error(403)  # another name that somebody points at this machine
                    return
                if self.path == "/favicon.ico":  # browsers ask for one and complain if there is none
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
                self.send_header("Refresh", str(REFRESH))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                """Log nothing: the terminal shows the run's progress."""

        return Handler


class PageFile(RunningReport):
    """Writes the report of the results so far to a file; a browser loads it again until the `with` ends.

    Arguments:
        path: of the file.
    """

    def __init__(self, study: Study, path: Path) -> None:
        super().__init__(study)
        self.path = path
        self._written_at, self._written = -math.inf, -1

    def __enter__(self) -> Self:
        self._write(again=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with nullcontext() if kind is None else suppress(IsthmusError):
            self._write(again=False)

    def parties_seen(self, parties: Mapping[str, PartyStanding]) -> None:
        super().parties_seen(parties)
        if self._version != self._written and time.monotonic() - self._written_at >= REFRESH:
            self._write(again=True)

    def _write(self, again: bool) -> None:
        self._written, page = self._version, self.page()
        if again:
            page = page.replace("<head>", f'<head><meta http-equiv="refresh" content="{REFRESH}">', 1)
        store.write(self.path, page)
        self._written_at = time.monotonic()


def _parties_table(parties: Mapping[str, PartyStanding]) -> str:
    """How the parties of a federation stand, as HTML."""
    shown = shown_parties(parties)
    head = f"<tr>{pages.heads(HEADS[:1])}{pages.heads(HEADS[1:-1], 'n')}{pages.head(HEADS[-1])}</tr>"
    rows = []
    for name, *figures, now in (party_cells(party, standing) for party, standing in shown.items()):
        rows.append(pages.row(pages.row_head(name), map(escape, figures), f"<td>{escape(now)}</td>"))
    fewer = f"{len(shown)} of {len(parties)} parties. " if len(shown) < len(parties) else ""
    return pages.table(head, "".join(rows), fewer + NOTE)


def _light(run: RunResult) -> RunResult:
    """The run without models and graphs, which the report does not need."""
    return replace(run, history=list(run.history), models={}, graph={})


class _Server(ThreadingHTTPServer):
    """A server for which a reader that leaves in the middle of a page is no error."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("the live page could not be sent", exc_info=True)
