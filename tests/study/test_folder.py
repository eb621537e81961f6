"""A result folder has one writer, and belongs to one study; nobody else's files are touched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isthmus.errors import IsthmusError
from isthmus.result_files import STATE
from isthmus.study.config import Study
from isthmus.study.folder import MARK, discard_unless_started, hold_folder, prepare_folder

STUDY = Study.of({"data": {"name": "banks", "nodes": 100}}).resolved()


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_that_was_created_to_be_locked_is_not_left_behind(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), hold_folder(tmp_path / "out"):
        raise ZeroDivisionError
    assert not (tmp_path / "out").exists()


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    with (
        hold_folder(tmp_path / "out"),
        pytest.raises(IsthmusError, match="is in use by another study: wait for it, or stop it first"),
        hold_folder(tmp_path / "out"),
    ):
        pass


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(IsthmusError, match="is a file: choose a folder"), hold_folder(tmp_path / "out"):
        pass
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: None], ids=["empty", "nothing"])
def test_resume_of_nothing_is_refused(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    make(tmp_path / "out")
    with pytest.raises(IsthmusError, match="holds no started study: run it without resume=True"):
        prepare_folder(tmp_path / "out", STUDY, resume=True, force=False)


@pytest.mark.parametrize("name", ["thesis.tex", "weights/precious.pt", "results.json", "report.html", ".state/x"])
def test_force_does_not_touch_the_folder_of_somebody_else(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("[1]")
    with pytest.raises(IsthmusError, match="holds files that are not results: choose another folder"):
        prepare_folder(tmp_path, STUDY, resume=False, force=True)
    assert (tmp_path / name).read_text() == "[1]"
    assert names(tmp_path) == {name}


def test_what_has_begun_is_the_same_study(tmp_path: Path) -> None:
    prepare_folder(tmp_path, STUDY, resume=False, force=False)
    assert names(tmp_path) == {f"{STATE}/{MARK}"}
    prepare_folder(tmp_path, STUDY, resume=True, force=False)
    with pytest.raises(IsthmusError, match="holds another study, which differs in 'wire': resume it with the options"):
        prepare_folder(tmp_path, {**STUDY, "wire": True}, resume=True, force=False)
    with pytest.raises(IsthmusError, match="is not empty: use resume=True to continue, force=True to start over"):
        prepare_folder(tmp_path, STUDY, resume=False, force=False)


@pytest.mark.parametrize("existed", [True, False])
def test_a_study_that_failed_at_once_leaves_nothing(tmp_path: Path, existed: bool) -> None:
    out = tmp_path / "out"
    prepare_folder(out, STUDY, resume=False, force=False)
    (out / STATE / "fedavg-0.checkpoint").write_text("")
    discard_unless_started(out, existed)
    assert (out / STATE / MARK).exists()
    (out / STATE / "fedavg-0.checkpoint").unlink()
    discard_unless_started(out, existed)
    assert out.exists() == existed
    assert not (out / STATE).exists()
