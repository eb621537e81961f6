"""Whether a federation gave what the study in one process gives."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from tests.deploy.federated_studies import in_one_process
from tests.deploy.real import rows_of

from isthmus.federation import wire
from isthmus.study.config import Study


def check_equal(out: Path, study: Study, total: str = "none") -> None:
    """Every run of a federation is that of the study in one process: weights, history, ledger.

    Arguments:
        total: how totals were protected; with plain ones, all is the same to the bit.
    """
    near = {"none": 0.0, "masks": 5e-6, "ckks": 2e-5}[total]
    for method in study.methods:
        name = method["name"]
        here = in_one_process(study.model_copy(update={"methods": [method]}))
        file = out / "weights" / f"{name}-0.safetensors"
        weights = load_file(file) if here.weights else {}
        assert file.exists() == bool(here.weights)
        mine = dict(wire.flatten(here.weights))
        assert mine.keys() == weights.keys()
        assert all(torch.allclose(mine[path], weights[path], atol=near, rtol=0) for path in mine), name
        found = {(at, metric): value for at, metric, value in here.history}
        history = [row for row in rows_of(out, "history") if row["method"] == name]
        assert history
        assert all(abs(found[row["round"], row["metric"]] - row["value"]) <= 400 * near for row in history), name
        ledger = [row for row in rows_of(out) if row["method"] == name]
        due = [{"method": name, "seed": 0, **row} for row in here.ledger.rows()]
        protections = {"ask": "none", "total": total, "exchange": "sealed"}
        sizes = ("sent", "received", "rows") if total != "none" else ()
        due = [{**row, "protection": protections[row["verb"]]} for row in due]
        assert [_without(row, sizes) for row in ledger] == [_without(row, sizes) for row in due], name


def _without(row: dict[str, object], names: tuple[str, ...]) -> dict[str, object]:
    return {name: value for name, value in row.items() if name not in names}
