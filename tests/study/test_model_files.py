"""Files of models are chosen by what is asked for, and read only if they are whole."""

from __future__ import annotations

import io
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus import store
from isthmus.errors import IsthmusError, flags_in_messages
from isthmus.study.config import Study
from isthmus.study.model_files import choose_model, choose_run, load_model
from isthmus.study.run import run_study


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The results of FedAvg."""
    run_study(Study.of({"methods": [{"name": "fedavg", "rounds": 3}]}), tmp_path / "run")
    return tmp_path / "run"


def test_a_choice_is_asked_for_among_what_is_left_open() -> None:
    known = [("local", 0), ("fedavg", 0), ("fedavg", 1), ("fedavg", 2)]
    assert choose_run(known, "fedavg", 1, "it holds") == ("fedavg", 1)
    assert choose_run(known, "local", None, "it holds") == ("local", 0)
    for method, seed, due in (
        ("fedavg", None, "choose --seed 0, 1 or 2"),
        (None, 0, "choose --method fedavg or local"),
        (None, None, "choose one, --method fedavg --seed 0, among fedavg with seed 0, fedavg with seed 1"),
    ):
        with flags_in_messages(), pytest.raises(IsthmusError, match=f"^it holds several models: {due}"):
            choose_run(known, method, seed, "it holds")


def test_groups_have_the_model_of_their_parties() -> None:
    members = {"a": ["north"], "b": ["south", "west"]}
    assert choose_model(None, {"a": 1, "b": 2}, {}, members, "west", "grouped") == 2
    with pytest.raises(IsthmusError, match=r"choose one, party='north' \(north, south, west\)"):
        choose_model(None, {"a": 1, "b": 2}, {}, members, None, "grouped")


def test_an_older_folder_gives_one_line(run: Path) -> None:
    (file,) = (run / "weights").glob("*.json")
    content = store.read_json(file)
    store.write_json(file, {**content, "format": 99})
    (run / "SHA256SUMS").unlink()
    with pytest.raises(IsthmusError, match=r"it has format 99, and isthmus .* reads format 2; run the study again"):
        load_model(run)
    file.unlink()
    with pytest.raises(IsthmusError, match="was written before models kept their encoding: run the study again"):
        load_model(run)


def test_damaged_weights_give_one_line(run: Path) -> None:
    (run / "weights" / "fedavg-0.safetensors").write_bytes(b"no weights")
    with pytest.raises(IsthmusError, match=r"cannot read .*fedavg-0.safetensors"):
        load_model(run)


def test_weights_that_are_gone_give_one_line(run: Path) -> None:
    (run / "weights" / "fedavg-0.safetensors").unlink()
    with pytest.raises(IsthmusError, match=r"cannot read .*fedavg-0.safetensors: it is not there; restore the file"):
        load_model(run)


class Trap:
    """Unpickling it writes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def test_loading_a_model_unpickles_nothing(tmp_path: Path) -> None:
    run_study(Study.of({"methods": [{"name": "fedproto", "rounds": 3}]}), tmp_path / "run")
    (tmp_path / "run" / "SHA256SUMS").unlink()  # which would tell that files have changed
    folder, trap = tmp_path / "run" / "weights", Trap(tmp_path / "sprung")
    kept = {path: path.read_bytes() for path in folder.iterdir() if path.suffix in (".safetensors", ".json")}
    assert {path.name for path in kept} >= {"fedproto-0.json", "fedproto-0.context.safetensors"}
    for path, content in kept.items():
        for traps in (pickle.dumps(trap), zipped(trap)):
            path.write_bytes(traps)
            with suppress(IsthmusError):  # some files are of other parties, or not read
                load_model(tmp_path / "run").predict("banks")
        path.write_bytes(content)
    assert not trap.file.exists()
    torch.load(io.BytesIO(zipped(trap)), weights_only=False)
    assert trap.file.exists()


def zipped(trap: Trap) -> bytes:
    """What `torch.save` writes."""
    file = io.BytesIO()
    torch.save(trap, file)
    return file.getvalue()
