"""Curves over epsilon: settings are studies, rows are of settings that are done, and when noise is worth it."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "privacy" / "curves.py"


@pytest.fixture
def curves(monkeypatch):
    spec = importlib.util.spec_from_file_location("privacy_curves", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def cells_of(curves, name, seeds=5, **gains):
    """Training alone has 60 % and more, others that and their gain."""
    spread = [0.01 * seed for seed in range(seeds)]
    noise = [0.001, -0.001, 0.002, 0.0, -0.002]
    cells = []
    for way in curves.WAYS:
        runs = [0.6 + each + gains.get(way, -0.1) + more for each, more in zip(spread, noise, strict=False)]
        cells.append({"setting": name, "way": way, "runs": [{"accuracy": each} for each in runs]})
    return cells


def test_every_setting_is_a_study_with_its_unit(curves):
    for setting in curves.SETTINGS.values():
        study = setting.study("2.0", 3)
        assert study.named_privacy().name == setting.unit
        assert study.named_privacy().epsilon == 2.0
        assert setting.study("local", 0).named_privacy() is None
        assert [setting.study(way, 0).method_list()[0].name for way in ("local", "none")] == ["local", setting.method]


def test_only_settings_that_are_done_have_a_row(curves):
    gains = {"local": 0.0, "none": 0.1, "8.0": 0.05, "4.0": 0.02, "2.0": 0.0}
    cells = cells_of(curves, "edge-banks", **gains) + cells_of(curves, "item-banks", seeds=2, local=0.0)
    head, *rows = curves.lines_of(cells, 5)
    assert len(rows) == 1
    row = dict(zip(head, rows[0], strict=True))
    assert row["unit"] == "`edge`"
    assert row["`local`"] == "62.0 ± 1.5"
    assert row["worth it"] == "from ε = 4"


@pytest.mark.parametrize(("gain", "said"), [(0.1, "without noise"), (-0.1, "never")])
def test_noise_may_never_be_worth_it(curves, gain, said):
    cells = cells_of(curves, "edge-banks", local=0.0, none=gain)
    assert curves.lines_of(cells, 5)[1][-1] == said
