import os
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main
from hypothesis import settings

from command_line import Done, Isthmus, built
from helpers import make_graph_parties, make_node_parties
from isthmus.cli import main as cli
from isthmus.report.svg import printable

settings.register_profile("suite", deadline=None)  # two test processes on two cores make single examples slow
settings.load_profile("suite")


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out the slow ones
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put all but every n-th case of a test that is `thinned(n)` among the slow ones."""
    cases: dict[str, int] = {}
    for item in items:
        thinned = item.get_closest_marker("thinned")
        if thinned is None or item.get_closest_marker("slow") is not None:
            continue
        test = item.nodeid.partition("[")[0]
        at = cases[test] = cases.get(test, -1) + 1
        if at % thinned.args[0]:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True, scope="session")
def no_cuts_of_yesterday(tmp_path_factory):
    """What a run keeps for the next one is kept for these tests alone."""
    before = os.environ.get("ISTHMUS_CACHE")
    os.environ["ISTHMUS_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["ISTHMUS_CACHE"]
    else:
        os.environ["ISTHMUS_CACHE"] = before


@pytest.fixture(autouse=True)
def words_of_charts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts have their words alone but in tests that are `drawn`: to draw all charts of a page takes a second."""

    def words(
        figure: Any, title: str, description: str, hover: Mapping[str, str | Sequence[str]], kind: str = "chart"
    ) -> str:
        root = ET.Element("svg", {"class": kind, "role": "img", "viewBox": "0 0 1 1"})
        over = [text for each in hover.values() for text in ([each] if isinstance(each, str) else each)]
        for tag, text in (("title", title), ("desc", description), *(("title", each) for each in over)):
            ET.SubElement(root, tag).text = printable(text)
        return ET.tostring(root, encoding="unicode")

    if request.node.get_closest_marker("drawn") is None:
        monkeypatch.setattr("isthmus.report.charts.inline_svg", words)


@pytest.fixture
def node_parties():
    """Four parties with one graph each, of unequal sizes, one of them small."""
    return make_node_parties()


@pytest.fixture
def graph_parties():
    """Four parties with several small graphs each, one of them with two."""
    return make_graph_parties()


@pytest.fixture
def isthmus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Isthmus:
    """The command line in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(typer.main, "get_command", built)

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["isthmus", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        out, err = capsys.readouterr()
        assert isinstance(stopped.value.code, int)
        return Done(stopped.value.code, out, err)

    return call


@pytest.fixture
def double_precision():
    """Tensors are made in double precision: what differs then is no rounding."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
