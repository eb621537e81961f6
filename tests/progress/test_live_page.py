"""A page with the report of what there is so far."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from command_line import Isthmus
from isthmus.errors import IsthmusError
from isthmus.federation.ledger import PartyStanding
from isthmus.progress import live_page
from isthmus.progress.live_page import LivePage, PageFile
from isthmus.study.config import Study
from isthmus.study.loop import RunResult
from isthmus.study.run import Watcher, Watchers, run_study

PLAN = Study.of(
    {
        "data": {"name": "banks", "nodes": 120},
        "model": {"hidden": 8},
        "unlabelled": "idle",
        "methods": [{"name": "fedavg", "rounds": 4}, {"name": "local", "rounds": 2}],
    }
)


@pytest.fixture
def live() -> Iterator[LivePage]:
    with LivePage(PLAN) as page:
        yield page


def got(page: LivePage, path: str = "/", host: str = "") -> tuple[int, str]:
    place = urlsplit(page.address).netloc
    connection = http.client.HTTPConnection(place, timeout=30)
    connection.request("GET", path, headers={"Host": host or place})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


class Looking(Watcher):
    """Looks at the page in the middle of a run."""

    def __init__(self, page: LivePage) -> None:
        self.page, self.seen = page, list[str]()

    def round_done(self, *told: object) -> None:
        if told[2] == 3:
            self.seen.append(got(self.page)[1])


def test_it_shows_what_there_is_so_far(live: LivePage) -> None:
    assert "No round has been evaluated yet" in got(live)[1]
    looking = Looking(live)
    results = run_study(PLAN, watcher=Watchers(live, looking))
    (during,) = looking.seen
    assert "Under way: fedavg, seed 0, round 3. 0 of 2 runs have finished." in during
    assert during.count("<svg") >= 2
    status, after = got(live)
    assert status == 200
    assert "2 of 2 runs have finished." in after
    best = max(run.metrics["test_accuracy"] for run in results.runs if run.method == "fedavg")
    assert f"{100 * best:.1f}" in after
    assert "Party by party" in after


def test_facts_that_are_known_from_the_start_are_shown(live: LivePage) -> None:
    before = got(live)[1]
    assert "<h1>banks</h1>" in before
    assert "<dt>Rounds</dt><dd>at most 4</dd>" in before

    class Early(Looking):
        def run_started(self, *told: object) -> None:
            self.seen.append(got(self.page)[1])

    looking = Early(live)
    run_study(PLAN, watcher=Watchers(live, looking))
    begun, during, other = looking.seen
    for page in looking.seen:
        assert "<h1>banks across 4 parties</h1>" in page
        assert "<dt>Parties</dt><dd>4</dd>" in page
        assert "<dt>Partition</dt><dd>given (edges coupled)</dd>" in page
        assert "None" not in page.partition("</style>")[2]
        assert "unnamed" not in page
    assert "No round has been evaluated yet" in begun
    assert "<dt>Rounds</dt><dd>3 so far</dd>" in during
    assert "test accuracy so far" in during
    assert "Every run reports its last round" not in during
    assert "chosen on validation data; test data chose nothing. One that is under way shows its last" in during
    assert "0.0 s" not in during
    assert "Nothing left any party" not in during
    assert "4 parties hold" in during, "the cut is known before any run"
    assert 'id="traffic"' not in during
    assert 'id="traffic"' in other


def test_the_page_is_written_again_only_after_news(live: LivePage) -> None:
    run_study(PLAN, watcher=live)
    assert live.page() is live.page()


def test_it_answers_this_machine_alone(live: LivePage) -> None:
    assert live.address.startswith("http://127.0.0.1:")
    assert got(live, host="evil.example:80")[0] == 403
    assert got(live, path="/etc/passwd")[0] == 404


def test_runs_that_had_ended_before_are_shown(live: LivePage, tmp_path: Path) -> None:
    class Stopping(Watcher):
        def run_done(self, result: RunResult) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(PLAN, tmp_path / "out", watcher=Stopping())
    run_study(PLAN, tmp_path / "out", resume=True, watcher=live)
    assert "2 of 2 runs have finished." in live.page()


def test_a_reader_that_leaves_is_no_error(live: LivePage, capfd: pytest.CaptureFixture[str]) -> None:
    run_study(PLAN, watcher=live)
    place = urlsplit(live.address)
    for _ in range(3):
        with socket.create_connection((place.hostname, place.port)) as line:
            line.sendall(f"GET / HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset
    assert got(live)[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_a_file_is_reloaded_until_the_end_and_has_the_parties_of_a_federation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_page, "REFRESH", 0)
    path, reload = tmp_path / "live.html", '<meta http-equiv="refresh"'
    with PageFile(PLAN, path) as page:
        assert "No round has been evaluated yet" in path.read_text()
        page.parties_seen({"<b>": PartyStanding(seen="2026-05-04T<script>", absent="<i>gone</i>")})
        early = path.read_text()
        assert early.count(reload) == 1
        assert "<th scope=row>&lt;b&gt;</th>" in early
        assert "&lt;script&gt;" in early
        assert "out: &lt;i&gt;gone&lt;/i&gt;" in early
        run_study(PLAN, watcher=page)
    last = path.read_text()
    assert "2 of 2 runs have finished." in last
    assert "out: &lt;i&gt;gone&lt;/i&gt;" in last
    assert reload not in last


def test_a_file_is_written_again_only_after_news_and_not_all_the_time(tmp_path: Path) -> None:
    with PageFile(PLAN, tmp_path / "live.html") as page:
        (tmp_path / "live.html").unlink()
        page.parties_seen({"north": PartyStanding()})
        assert not (tmp_path / "live.html").exists(), "it was written a moment ago"
        page._written_at -= live_page.REFRESH
        page.parties_seen({"north": PartyStanding()})
        assert (tmp_path / "live.html").exists()
        (tmp_path / "live.html").unlink()
        page._written_at -= live_page.REFRESH
        page.parties_seen({"north": PartyStanding()})
        assert not (tmp_path / "live.html").exists(), "there is nothing new"


def test_it_ends_with_the_run() -> None:
    with LivePage(PLAN) as page:
        pass
    with pytest.raises(ConnectionRefusedError):
        got(page)
    assert not page._thread.is_alive()


def test_a_port_that_is_taken_is_said(live: LivePage) -> None:
    port = int(urlsplit(live.address).port or 0)
    with pytest.raises(IsthmusError, match=r"cannot serve at 127\.0\.0\.1:\d+: Address already in use; choose another"):
        LivePage(PLAN, port)


def test_the_command_says_where(isthmus: Isthmus) -> None:
    done = isthmus("run", "--data", "banks", "--set", "data.nodes=120", "--rounds", "1", "--watch")
    assert done.code == 0
    assert "watch it at http://127.0.0.1:" in done.err
