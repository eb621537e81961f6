"""The report in Chromium: nothing breaks, nothing is cut off, and what is read there is what the results say."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from result_folders import LEVEL, audit_record, hostile, of_another_task, spends, with_pictures, write_folder

from isthmus.progress.live_page import LivePage
from isthmus.report.report import write_report
from isthmus.result_files import write_audit
from isthmus.study.config import Study
from isthmus.study.run import run_study

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.drawn,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]

READERS: dict[str, dict[str, Any]] = {
    "desk": {"width": 1280, "scheme": "light", "media": "screen"},
    "night": {"width": 1280, "scheme": "dark", "media": "screen"},
    "phone": {"width": 375, "scheme": "light", "media": "screen"},
    "phone at night": {"width": 360, "scheme": "dark", "media": "screen"},
    "paper": {"width": 688, "scheme": "light", "media": "print"},
    "paper of one who reads at night": {"width": 688, "scheme": "dark", "media": "print"},
}
"""Windows; paper is as wide as A4 is between its margins."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


class Opened:
    """A page in a window, and all that it complained of or asked for."""

    def __init__(self, browser: Any, address: str, width: int = 1280, scheme: str = "light", media: str = "screen"):
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.emulate_media(media=media)
        self.page.goto(address)
        for folded in self.page.query_selector_all("details"):
            folded.evaluate("each => each.open = true")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.page, name)


def full(parts: dict[str, Any]) -> None:
    """All that a report may speak of."""
    with_pictures(parts)
    for each in parts["results"]["runs"]:
        if each["method"] == "fedavg":
            each["privacy"] = spends(0.01)


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Of tasks that other metrics judge, one of which has many more beside it, and one a study of many methods."""
    methods = ("fedavg", "fedprox", "fedsage-plus", "feddyn", "scaffold", "fedadagrad", "centralized", "local")
    own = [f"{split}_{of}{name}" for split in ("test", "val") for of in ("", "party_") for name in ("nmi", "ari", "f1")]
    more = (*own, "pooled_test_accuracy", "pooled_test_macro_f1", "pooled_val_accuracy", "pooled_val_macro_f1")
    return [
        write_folder(tmp_path, "first-study", methods),
        write_folder(tmp_path, "molecules-of-laboratories", change=partial(of_another_task, more=more)),
        write_folder(tmp_path, "measured", change=partial(of_another_task, metric="rmse")),
        write_folder(tmp_path, "the-same", methods[:3]),
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made: Path = write_folder(tmp_path, "results", change=full)
    write_audit(made, audit_record(made))
    return made


CUT_OFF = """() => [...document.querySelectorAll('svg.chart')].flatMap(chart => {
  const frame = chart.getBoundingClientRect();
  return [...chart.querySelectorAll('text')].filter(text => {
    const box = text.getBoundingClientRect();
    return box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1
      || box.bottom > frame.bottom + 1;
  }).map(text => text.textContent);
})"""

TEXT_SIZES = """() => [...document.querySelectorAll('svg.chart')].flatMap(chart => {
  const scale = chart.getBoundingClientRect().width / chart.viewBox.baseVal.width;
  return [...chart.querySelectorAll('text')].map(text => scale * parseFloat(getComputedStyle(text).fontSize));
})"""

SCROLLERS = """() => [...document.querySelectorAll('.scroll')].filter(each => !each.querySelector('.ledger'))
  .map(each => [getComputedStyle(each, '::before').content, each.scrollWidth, each.clientWidth,
    parseFloat(getComputedStyle(each).gridTemplateColumns)])"""

BROKEN_NUMBERS = """() => [...document.querySelectorAll('td.n')].filter(cell => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  const lines = new Set([...range.getClientRects()].map(box => Math.round(box.top))).size;
  return lines > cell.textContent.trim().split(/\\s+/).length;
}).map(cell => cell.textContent)"""

BROKEN_HEADS = BROKEN_NUMBERS.replace("td.n", "thead th:not(.name)")

PALE = """() => {
  const part = value => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(Number);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const ground = light(getComputedStyle(document.body).backgroundColor);
  const contrast = colour => (Math.max(light(colour), ground) + 0.05) / (Math.min(light(colour), ground) + 0.05);
  const told = [...document.querySelectorAll('h1,h2,h3,p,a,th,td,dt,dd,caption,summary,small')]
    .map(each => [each.textContent, getComputedStyle(each).color]);
  const within = getComputedStyle(document.body).backgroundColor;  // text within a bar is of the page's colour
  const drawn = [...document.querySelectorAll('svg.chart text')]
    .map(each => [each.textContent, getComputedStyle(each).fill]).filter(([, colour]) => colour != within);
  const pale = [...told, ...drawn].filter(([, colour]) => contrast(colour) < 4.5);
  return pale.map(([text, colour]) => text + ' ' + colour);
}"""


@pytest.mark.parametrize("reader", READERS)
def test_nothing_breaks_and_nothing_is_cut_off(browser: Any, folder: Path, tmp_path: Path, reader: str) -> None:
    address = write_report([folder]).as_uri()
    page = Opened(browser, address, **READERS[reader])
    page.screenshot(path=tmp_path / f"{reader}.png", full_page=True)
    assert page.said == []
    assert page.asked == [address], "the page stands alone"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("[...document.querySelectorAll('svg.chart')].every(each => each.checkVisibility())")
    sizes = page.evaluate(
        "[...document.querySelectorAll('svg.chart')].map(each => each.getBoundingClientRect().height)"
    )
    assert len(sizes) >= 10
    assert min(sizes) > 50
    assert page.evaluate(CUT_OFF) == []
    assert page.evaluate(PALE) == []
    page.close()


@pytest.mark.parametrize("reader", ["desk", "phone", "paper"])
def test_several_studies_fit_on_one_page(browser: Any, folders: list[Path], tmp_path: Path, reader: str) -> None:
    page = Opened(browser, write_report(folders, folders[0].parent / "page.html").as_uri(), **READERS[reader])
    page.screenshot(path=tmp_path / f"{reader}.png", full_page=True)
    assert page.said == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(CUT_OFF) == []
    if reader == "paper":
        tables = page.evaluate("[...document.querySelectorAll('table')].map(e => e.getBoundingClientRect().right)")
        assert len(tables) > 12
        assert max(tables) <= READERS[reader]["width"], "nothing scrolls on paper"
        assert page.evaluate(BROKEN_NUMBERS) == []
        assert page.evaluate(BROKEN_HEADS) == []
    page.close()


def test_a_phone_shows_what_left_the_parties_all_dots_and_all_labels(browser: Any, folder: Path) -> None:
    page = Opened(browser, write_report([folder]).as_uri(), **READERS["phone"])
    widths = page.evaluate("[...document.querySelectorAll('td.fields')].map(e => e.getBoundingClientRect().width)")
    assert min(widths) > 150, "words need not be broken into letters"
    charts = page.evaluate("[...document.querySelectorAll('figure')].map(e => e.scrollWidth)")
    assert len(charts) >= 10
    assert max(charts) <= READERS["phone"]["width"], "nothing scrolls"
    assert min(page.evaluate(TEXT_SIZES)) > 10, "pixels"
    for name in ("ledger", "scores"):
        width = page.evaluate(f"document.querySelector('table.{name}').parentNode.scrollWidth")
        assert width <= READERS["phone"]["width"], "no column is hidden"
    cells = "[...document.querySelectorAll('.scores tbody tr:first-child > td')]"
    names = page.evaluate(f"{cells}.map(e => getComputedStyle(e, '::before').content)")
    assert {'"test accuracy "', '"seeds "', '"time per run "'} <= {*names}, "each figure says what it is"
    page.close()


def test_a_table_that_scrolls_says_so(browser: Any, folders: list[Path]) -> None:
    """The sign stands at the right edge of the screen; a cover at the right end of the table hides it there."""
    page = Opened(browser, write_report(folders, folders[0].parent / "page.html").as_uri(), **READERS["phone"])
    found = page.evaluate(SCROLLERS)
    assert {sign for sign, *_ in found} == {'"more →"'}
    assert any(whole > shown + 1 for _, whole, shown, _ in found)
    assert any(whole <= shown + 1 for _, whole, shown, _ in found)
    assert [each for each in found if abs(each[1] - each[3]) > 1.5] == [], "the cover is where the table ends"
    page.close()


CUT_CAPTIONS = """() => [...document.querySelectorAll('.scroll')].filter(each => {
  const caption = each.querySelector('caption span');
  return caption && caption.getBoundingClientRect().right > each.getBoundingClientRect().right + 1;
}).map(each => each.textContent)"""

NARROW_FACTS = """() => [...document.querySelectorAll('.facts')].flatMap(facts => {
  const room = facts.getBoundingClientRect().width, line = 30;
  return [...facts.querySelectorAll('dd')].filter(each => each.getBoundingClientRect().height > 2 * line
    && each.getBoundingClientRect().width < room / 2).map(each => each.textContent);
})"""


@pytest.mark.parametrize("width", [360, 800, 1280])
def test_captions_and_facts_have_the_room_there_is(browser: Any, folders: list[Path], width: int) -> None:
    page = Opened(browser, write_report(folders, folders[0].parent / "page.html").as_uri(), width)
    assert any(whole > shown + 1 for _, whole, shown, _ in page.evaluate(SCROLLERS)), "a caption might be cut off"
    assert page.evaluate(CUT_CAPTIONS) == []
    assert page.evaluate(NARROW_FACTS) == [], "more than two lines in less than half the width"
    page.close()


def test_long_names_of_classes_are_not_cut_off(browser: Any, tmp_path: Path) -> None:
    def called(parts: dict[str, Any]) -> None:
        full(parts)
        names = [f"a class of accounts with a long name {at}" for at in range(3)]
        parts["results"]["cuts"][0]["labels"] = names

    page = Opened(browser, write_report([write_folder(tmp_path, "named", change=called)]).as_uri(), **READERS["paper"])
    assert "a class of accounts" in page.locator("#places svg").first.inner_html()
    assert page.evaluate(CUT_OFF) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.close()


def test_figures_are_those_of_the_results(browser: Any, folder: Path) -> None:
    page = Opened(browser, write_report([folder]).as_uri())
    summary = json.loads((folder / "results.json").read_text())["summary"]
    table = page.locator("#results table").first
    for method in LEVEL:
        cells = table.locator("tbody tr", has=page.locator(f"th:text('{method}')")).locator("td").all_inner_texts()
        for column, metric in enumerate(("test_accuracy", "test_loss", "val_accuracy")):
            line = next(line for line in summary if (line["method"], line["metric"]) == (method, metric))
            scale, digits = (100, 1) if metric.endswith("accuracy") else (1, 3)
            assert cells[column] == f"{scale * line['mean']:.{digits}f} ± {scale * line['std']:.{digits}f}"
    page.close()


def test_a_dot_lies_on_the_axis_where_its_value_is(browser: Any, folder: Path) -> None:
    page = Opened(browser, write_report([folder]).as_uri())
    chart = page.locator("#results svg.chart").first
    ticks = [
        (float(text.text_content().split()[0]), text.bounding_box())
        for text in chart.locator("text").all()
        if text.text_content().endswith(" %") and "±" not in text.text_content()
    ]
    (low, left), *_, (high, right) = sorted((value, box["x"] + box["width"] / 2) for value, box in ticks)
    runs = json.loads((folder / "results.json").read_text())["runs"]
    for run in runs:
        value = 100 * run["metrics"]["test_accuracy"]
        dot = chart.locator("use", has=page.locator(f"title:text-matches('^{run['method']}, seed {run['seed']}:')"))
        box = dot.first.bounding_box()
        across = (box["x"] + box["width"] / 2 - left) / (right - left)
        assert low + across * (high - low) == pytest.approx(value, abs=0.01 * (high - low))
    page.close()


def test_hostile_names_stay_text(browser: Any, tmp_path: Path) -> None:
    def poison(parts: dict[str, Any]) -> None:
        for key, value in parts.items():
            parts[key] = hostile(value)

    made = write_folder(tmp_path, "results", change=poison)
    page = Opened(browser, write_report([made]).as_uri())
    assert page.said == []
    assert page.evaluate("document.scripts.length") == 0
    assert "<script>alert('&\"')</script>" in page.locator("body").inner_text()
    page.close()


UNSEEN = """() => [...document.querySelectorAll('main details > :not(summary)')]
  .filter(each => !each.closest('td') && !each.checkVisibility()).length"""


def test_what_is_folded_is_open_on_paper(browser: Any, folder: Path) -> None:
    """Of itself, as nobody clicks there; within a table the summary is what is printed."""
    address = write_report([folder]).as_uri()
    for media, unseen in (("screen", True), ("print", False)):
        page = browser.new_page()
        page.emulate_media(media=media)
        page.goto(address)
        assert page.query_selector_all("main section details")
        assert bool(page.evaluate(UNSEEN)) is unseen
        page.close()


def test_it_prints(browser: Any, folder: Path, tmp_path: Path) -> None:
    page = Opened(browser, write_report([folder]).as_uri())
    printed = page.pdf(path=tmp_path / "report.pdf", prefer_css_page_size=True)
    assert printed.startswith(b"%PDF")
    assert printed.count(b"/Type /Page\n") > 3
    page.close()


def test_the_live_page_is_read_while_a_study_runs(browser: Any) -> None:
    study = Study.of({"data": {"name": "banks", "nodes": 120}, "methods": [{"name": "fedavg", "rounds": 3}]})
    with LivePage(study) as live:
        page = Opened(browser, live.address)
        assert "No round has been evaluated yet" in page.locator("body").inner_text()
        run_study(study, watcher=live)
        page.reload()
        assert page.said == []
        assert page.locator("svg.chart").count() > 3
        assert "fedavg reached" in page.locator("body").inner_text()
        page.close()
