"""The set-up of a federation: one encoding and one task for all parties."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.deploy.federated_studies import add_columns, federated, in_one_process, study_of
from tests.federation.by_hand import at_folders

from isthmus.deploy.setup import Agreement
from isthmus.errors import IsthmusError
from isthmus.tasks.classification import NodeClassification
from isthmus.tasks.multilabel import NodeMultiLabel


def test_the_set_up_has_a_ledger_of_its_own(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")
    rows = list(federated(study, tmp_path).ledger.rows())
    assert {(row["verb"], row["action"]) for row in rows} == {("ask", "introduce"), ("ask", "encode")}


def test_encodings_are_settled_by_totals(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")
    add_columns(tmp_path / "data")
    here, outcome = in_one_process(study), federated(study, tmp_path)
    assert here.history == outcome.runs[0].history
    structural = study.load(0).parties[0].inputs.structural
    assert outcome.runs[0].description["structural"] == list(structural) != []
    said = {(row["verb"], row["action"]) for row in outcome.ledger.rows()}
    assert {("total", "first"), ("total", "second"), ("ask", "values")} <= said


def test_parties_that_declare_other_columns_are_named(tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg"), tmp_path / "data")
    path = tmp_path / "data" / "party-1" / "party.toml"
    path.write_text(path.read_text().replace("classes = ", "classes = 1"))
    with pytest.raises(IsthmusError, match=r"'party-1': 'classes' in party\.toml differs from that of 'party-0'"):
        federated(study, tmp_path)


def test_a_task_of_another_kind_than_the_labels_is_refused() -> None:
    agreed = {"level": "node", "labels": None, "tasks": ["red", "round"], "classes": None, "tables": None}
    settled = Agreement(agreed, "multilabel", 4)
    assert settled.task(NodeMultiLabel(tasks=2), {}).name == "node-multilabel"
    with pytest.raises(IsthmusError, match="task 'node-classification': the labels are those of 'node-multilabel'"):
        settled.task(NodeClassification(classes=2), {})
