"""Studies that tests run in one process and as federations, with the same data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from groups import TwoGroups
from pyarrow import parquet
from tests.federation.by_hand import ByHand, Meddler, members_of

from isthmus.deploy.coordinator import Outcome, coordinate
from isthmus.deploy.party_side import Message
from isthmus.study.config import Study
from isthmus.study.loop import Run, RunResult
from isthmus.study.setup import module_for, suited

assert TwoGroups.name == "two-groups"  # importing it registers it
BANKS = {"data": {"name": "banks"}}
MOTIFS = {"data": {"name": "motifs", "graphs": 20}}
SGD = {"optimizer": "sgd", "lr": 0.1}
STEPS = {"optimizer": "sgd"}
FEW_STEPS = {"teaching": 3, "transforming": {"epochs": 5}, "target": {"epochs": 20}}
FEDGC_BY_SGD = {
    "name": "fedgc", "ratio": 0.1, "teaching": 3, "local": SGD, "transforming": {**SGD, "epochs": 5},
    "descent": SGD, "edge_lr": 0.1, "target": {**SGD, "epochs": 20}, "tuning": SGD,
}  # fmt: skip
"""FedGC with SGD instead of Adam. Adam turns rounding errors of a sum into full steps, which hundreds
of epochs on the condensed graph amplify; with SGD the difference stays within 1e-6. The same holds for what
AdaFGL's parties train alone, and for FedStar."""
STUDIES: dict[str, dict[str, Any]] = {
    "fedavg": {**BANKS, "methods": [{"name": "fedavg"}]},
    "a schedule": {
        **BANKS, "methods": [{"name": "fedavg", "local": {"schedule": "cosine", "warm_up": 1}, "fraction": 0.7}],
    },
    "two classes": {
        "data": {"name": "banks", "classes": 2}, "methods": [{"name": "fedavg"}],
        "task": {"select_by": "average_precision", "class_weights": "balanced"},
    },
    "fedcog": {**BANKS, "model": {"encoder": "sgc"}, "methods": [{"name": "fedcog"}]},
    "fedcog-gcn": {**BANKS, "methods": [{"name": "fedcog-gcn"}]},
    "fedgcn": {**BANKS, "methods": [{"name": "fedgcn"}]},
    "fedgl": {"data": {"name": "hospitals"}, "methods": [{"name": "fedgl"}]},
    "fgcl": {**MOTIFS, "methods": [{"name": "fgcl"}], "protect": {"noise": "study"}},
    "fclg": {**MOTIFS, "task": {"name": "graph-clustering"}, "methods": [{"name": "fclg"}]},
    "fedgc": {**BANKS, "methods": [{"name": "fedgc", "ratio": 0.1, **FEW_STEPS}]},
    "fedgc by sgd": {**BANKS, "methods": [FEDGC_BY_SGD]},
    "local": {**BANKS, "methods": [{"name": "local"}]},
    "fedper": {**BANKS, "methods": [{"name": "fedper"}]},
    "moon": {**BANKS, "methods": [{"name": "moon"}]},
    "fedgta": {**BANKS, "model": {"encoder": "gamlp"}, "methods": [{"name": "fedgta", "similar": 0.95}]},
    "fedpub": {**BANKS, "methods": [{"name": "fedpub"}]},
    "fedaux": {**BANKS, "methods": [{"name": "fedaux"}]},
    "adafgl": {
        **BANKS, "methods": [{"name": "adafgl", "personal_rounds": 2, "personal": {**SGD, "keep_optimizer": False}}],
    },
    "fedbn": {
        **BANKS, "model": {"encoder": "gin", "norm": True}, "methods": [{"name": "fedbn", "local": SGD}],
    },
    "fedrep": {**BANKS, "methods": [{"name": "fedrep", "head_epochs": 2}]},
    "ditto": {**BANKS, "methods": [{"name": "ditto"}]},
    "fedproto": {**BANKS, "methods": [{"name": "fedproto"}]},
    "fedtad": {  # by SGD: Adam turns an error of encoding in a gradient near zero into a whole step
        **BANKS,
        "methods": [{"name": "fedtad", "server_epochs": 2, "generating": STEPS, "distilling": STEPS}],
    },
    "o-pfgl": {
        **BANKS,
        "methods": [{"name": "o-pfgl", "steps": 20, "target": {"epochs": 20}, "tuning": {"epochs": 5}}],
    },
    "fgssl": {**BANKS, "methods": [{"name": "fgssl"}]},
    "gcfl": {**BANKS, "methods": [{"name": "gcfl", "warm_up": 0, "eps1": 100.0, "eps2": 0.0}]},
    "gcfl-plus": {**BANKS, "methods": [{"name": "gcfl-plus", "warm_up": 0, "eps1": 100.0, "eps2": 0.0, "length": 2}]},
    "fedstar": {
        **MOTIFS, "model": {"encoder": "two-channel"}, "methods": [{"name": "fedstar", "local": {**SGD, "lr": 1e-3}}],
    },
    "two-groups": {**BANKS, "methods": [{"name": "two-groups"}]},
}  # fmt: skip


CANNOT_BE_MASKED = ("fedaux", "fedgta", "fedpub")
"""Studies with a sum for each party, or set of parties, which masks cannot protect."""
NEED_PROTECTION = ("fedgcn", "fedgc", "fedgc by sgd")
"""Studies with sums over neighbours, which no party sends where the server could read them."""


def study_of(name: str, rounds: int = 3, **more: Any) -> Study:
    """With plain totals, whose numbers are those of one process bit for bit, unless `more` says something else."""
    whole = {"training": {"rounds": rounds}, "unlabelled": "idle", **STUDIES[name], **more}
    return Study.of({**whole, "protect": {"total": "none", **whole.get("protect", {})}})


def in_one_process(study: Study) -> RunResult:
    """As cohorts of one, with sums in party order."""
    loaded = study.load(0)
    module = module_for(study.encoder(), loaded.parties, loaded.task, 0)
    method = suited(study.method_list()[0], study.encoder(), loaded.task.level)
    return Run(method, loaded.parties, loaded.task, module, seed=0, side_by_side=False).go()


def federated(study: Study, base: Path, meddle: Meddler | None = None) -> Outcome:
    post = ByHand(members_of(base / "data", base / "parties", study), meddle)
    return coordinate(study, post, "s", base / "server", save_every=0)


def failing_at(party: str, rounds: set[int], reply: Message | str) -> Meddler:
    """Calls to train of these rounds get this reply instead of the party's, and so does the greeting after one."""
    count, greeted = [0], [0]

    def meddle(to: str, message: Message) -> Message | str | None:
        if to == party and message["do"] == "greet":
            greeted[0] += 1
            return reply if greeted[0] == 1 else None
        if to == party and message.get("action") == "train":
            count[0] += 1
            return reply if count[0] in rounds else None
        return None

    return meddle


def with_limits(folder: Path, text: str) -> None:
    path = folder / "party-1" / "party.toml"
    path.write_text(f"{path.read_text()}\n[limits]\n{text}\n")


def with_groups_of_one(folder: Path) -> None:
    """Have all parties answer sums over themselves alone, as a group of one party needs them."""
    for path in folder.glob("*/party.toml"):
        path.write_text(f"{path.read_text()}\n[limits]\nmin_contributors = 1\n")


def add_columns(folder: Path) -> None:
    """Give parties numbers to be scaled and categories without declared values, beside their features."""
    for at, party in enumerate(sorted(folder.iterdir())):
        table = parquet.read_table(party / "nodes.parquet")
        rows = range(len(table))
        table = table.append_column("age", pa.array([float(20 + (7 * row + at) % 40) for row in rows]))
        table = table.append_column("town", pa.array([("bonn", "ulm", f"only-{at}")[row % 3] for row in rows]))
        parquet.write_table(table, party / "nodes.parquet")
        with (party / "party.toml").open("a") as file:
            file.write('\n[columns.age]\nkind = "number"\nstructural = true\n')
            file.write('\n[columns.town]\nkind = "category"\nstructural = false\n')
