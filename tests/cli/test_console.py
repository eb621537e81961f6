"""A terminal has a width; a pipe or a file has none."""

from __future__ import annotations

import pytest

from isthmus.cli.console import WIDE, console


def test_what_is_no_terminal_is_as_wide_as_any_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert [console().width, console(error=True).width] == [WIDE, WIDE]
    monkeypatch.setenv("FORCE_COLOR", "1")  # Rich takes any output for a terminal
    assert console().width == 60
