"""Result folders are read whole or refused in one line; several become one set of findings."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from result_folders import Build, of_another_task

from isthmus.errors import IsthmusError
from isthmus.report.loading import read_folders
from isthmus.study.config import Study
from isthmus.study.run import run_study


def remove_results(folder: Path) -> None:
    (folder / "results.json").unlink()


def damage_json(folder: Path) -> None:
    (folder / "results.json").write_text('{"runs": [\n', encoding="utf-8")


def damage_shape(folder: Path) -> None:
    (folder / "results.json").write_text('{"format": 1, "study": {}, "runs": 3, "summary": []}', encoding="utf-8")


def damage_runs(folder: Path) -> None:
    (folder / "results.json").write_text('{"format": 1, "study": {}, "runs": [], "summary": []}', encoding="utf-8")


def damage_text(folder: Path) -> None:
    (folder / "study.toml").write_bytes(b"\xff\xfe\xff")


def damage_parquet(folder: Path) -> None:
    (folder / "history.parquet").write_bytes(b"no parquet\n at all")


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        (remove_results, "results.json"),
        (damage_json, "results.json"),
        (damage_shape, "results.json"),
        (damage_runs, "results.json"),
        (damage_text, "study.toml"),
        (damage_parquet, "history.parquet"),
    ],
)
def test_bad_input_is_an_error_in_one_line(build: Build, damage: Callable[[Path], None], file: str) -> None:
    folder = build()
    damage(folder)
    with pytest.raises(IsthmusError, match=re.escape(file)) as caught:
        read_folders([folder])
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_an_invalid_description_is_an_error_in_one_line(build: Build) -> None:
    def damage(parts: dict[str, Any]) -> None:
        parts["results"]["cuts"][0]["parties"][1]["nodes"] = "many"

    with pytest.raises(IsthmusError, match=r"results\.json: .* \(cuts\.0\.description\.parties\.1\.nodes: "):
        read_folders([build(change=damage)])


def test_the_cut_of_a_study_is_read_back(tmp_path: Path) -> None:
    study = Study.of({"data": {"name": "banks", "nodes": 60}, "methods": [{"name": "local", "rounds": 1}]})
    results = run_study(study, tmp_path / "out")
    (folder,) = read_folders([tmp_path / "out"]).folders
    assert [(cut.seeds, cut.description) for cut in folder.results.cuts] == [([0], results.cuts[0])]


def test_a_folder_named_twice_is_read_once(build: Build) -> None:
    folder = build()
    assert len(read_folders([folder, folder]).folders) == 1


def test_methods_of_several_folders_keep_their_figures(build: Build) -> None:
    findings = read_folders([build("a", ("fedavg", "local")), build("b", ("fedavg",))])
    assert findings.methods == {"fedavg (a)": "fedavg", "local": "local", "fedavg (b)": "fedavg"}
    assert findings.ranked(findings.methods, "test_accuracy") == ["fedavg (a)", "fedavg (b)", "local"]
    assert findings.ranked(findings.methods, "nothing") == []
    assert [setting.main_metric for setting in findings.settings] == ["test_accuracy"]


def test_each_setting_has_its_own_main_metric(build: Build) -> None:
    first, other = build("first"), build("other", change=partial(of_another_task, metric="roc_auc"))
    findings = read_folders([first, other])
    assert {setting.name: setting.main_metric for setting in findings.settings} == {
        "first": "test_accuracy",
        "other": "test_roc_auc",
    }


def test_a_study_that_was_stopped_is_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "out" / ".state").mkdir(parents=True)
    with pytest.raises(IsthmusError, match="its study has not finished; go on with --resume"):
        read_folders([tmp_path / "out"])
