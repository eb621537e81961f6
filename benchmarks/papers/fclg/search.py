"""Search the settings of table2.toml on labels of validation graphs, without test labels.

    OMP_NUM_THREADS=1 python benchmarks/papers/fclg/search.py --write

For each of FCLG, InfoGraph and MVGRL this tries three learning rates with and without batch normalisation (MVGRL: with
a GIN or a GCN), and evaluates the validation graphs every 5 rounds, on seeds that are not reported. It saves the
accuracy and macro-F1 of clusters for each way to scale embeddings, so that one way can be chosen for all methods. The
best settings have the highest mean of both: accuracy alone is high when one cluster has nearly all graphs. Variants of
a method share its settings.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isthmus.federation.answers import PlainTotal
from isthmus.federation.sums import positions_of
from isthmus.options import merge
from isthmus.papers.measures import prepare_run
from isthmus.papers.plan import Cell, Table
from isthmus.study.config import Study
from isthmus.tasks.base import Step
from isthmus.tasks.clustering import GraphClustering, Scale, scaled

sys.path.append(str(Path(__file__).parents[2]))  # figures.py is there
from figures import added, kept_cells

HERE = Path(__file__).parent
SEARCH = HERE / "results" / "search.json"
TABLE = Table.of_file(HERE / "table2.toml")
SETS = ("proteins", "enzymes", "dhfr", "nci1")
SCALE = "unit"
"""What is done to embeddings of all methods before they are clustered: best on average."""
SEED = 1000
"""The first one searched with."""
SCALES: tuple[Scale, ...] = ("unit", "standard", "log", "raw")
EVERY = 5
RATES = (1e-4, 1e-3, 1e-2)
ENCODERS: dict[str, list[dict[str, Any]]] = {
    "fclg": [{"encoder": "gin", "norm": False}, {"encoder": "gin", "norm": True}],
    "infograph": [{"encoder": "gin", "norm": False}, {"encoder": "gin", "norm": True}],
    "mvgrl": [{"encoder": "gcn"}, {"encoder": "gin", "norm": False}],
}


class ByScale(GraphClustering):
    """Clusters of the graphs that are counted, by themselves, for each way to scale embeddings."""

    def postprocess(self, output: Tensor, sizes: Sequence[int]) -> Tensor:
        return output

    def counts(self, step: Step) -> dict[str, Tensor]:
        z, y, found = step.output.double().numpy(), step.y.numpy(), {}
        for scale in SCALES:
            cluster = self.cluster(scaled(z, scale))
            found[scale] = torch.from_numpy(self.confusion(cluster, y)).unsqueeze(0)
        return found


def study(data: str, setting: dict[str, Any], method: dict[str, Any], seed: int) -> Study:
    """A run of table II in another setting: the learning rate, the encoder and its normalisation."""
    (of_data,) = (axis.changes()[data] for axis in TABLE.axes if axis.name == "data")
    model = {"encoder": setting["encoder"]}
    if setting["encoder"] == "gin":
        model |= {"weighted": True, "norm": setting["norm"]}
    changes = {"model": model, "method": {**method, "local": {"lr": setting["lr"]}}}
    return Cell({"data": data}, merge(merge(TABLE.study, of_data), changes), None, {}).study_for(seed)


def score(runs: list[dict[str, Any]], rounds: str, scale: str) -> float:
    """Mean of accuracy and macro-F1 of the validation graphs, over the seeds."""
    return statistics.fmean(run["val"][rounds][scale][name] for run in runs for name in ("accuracy", "f1"))


def chosen(data: str, family: str) -> dict[str, Any]:
    """The setting that is best, after some number of rounds, on validation graphs of the seeds searched with."""
    by_score = {
        score(cell["runs"], rounds, SCALE): cell["setting"]
        for cell in reversed(kept_cells(SEARCH))  # of equals the first one
        if (cell["data"], cell["family"]) == (data, family) and cell["runs"]
        for rounds in reversed(cell["runs"][0]["val"])
    }
    return by_score[max(by_score)]


def _percent(told: Mapping[str, float]) -> dict[str, float]:
    return {name: round(100 * told[metric], 2) for name, metric in (("accuracy", "accuracy"), ("f1", "macro_f1"))}


def tried(data: str, family: str, setting: dict[str, Any], rounds: int, at: int) -> dict[str, Any]:
    """Accuracy and macro-F1 of the clusters of validation graphs, by round and scale."""
    method = {"name": family, "rounds": rounds, "every": EVERY}
    run = prepare_run(study(data, setting, method, SEED + at), SEED + at, None)
    whole, run.whole = run.whole, None
    assert whole is not None
    task = whole.task = ByScale(classes=run.task.outputs)
    whole.hosted.masks["test"].zero_()
    found: dict[str, dict[str, dict[str, float]]] = {}

    def look(now: int, metrics: Mapping[str, float]) -> None:
        names = whole.hosted.names
        tables = PlainTotal([whole.answer("evaluate", {"weights": run.state.weights}, names)], positions_of(names)).sum(
            "val"
        )
        found[str(now)] = {scale: _percent(task.confusion_metrics(tables[scale])) for scale in SCALES}

    run.on_round = look
    seconds = run.go().seconds
    return {"seed": SEED + at, "val": found, "seconds": round(seconds, 1), "date": datetime.date.today().isoformat()}


def text(cells: list[dict[str, Any]]) -> str:
    """For each set and method the best setting under each scale, and its mean of accuracy and macro-F1."""
    lines = ["| set | method | " + " | ".join(SCALES) + " |", "| --- " * (2 + len(SCALES)) + "|"]
    means: dict[str, list[float]] = {scale: [] for scale in SCALES}
    for data in SETS:
        for family in ENCODERS:
            mine = [c for c in cells if (c["data"], c["family"]) == (data, family) and c["runs"]]
            if not mine:
                continue
            told = []
            for scale in SCALES:
                scores = {
                    (rounds, *cell["setting"].values()): score(cell["runs"], rounds, scale)
                    for cell in mine
                    for rounds in cell["runs"][0]["val"]
                }
                best = max(scores, key=scores.__getitem__)
                means[scale].append(scores[best])
                told.append(f"{scores[best]:.1f} ({', '.join(map(str, best[1:]))}, {best[0]} rounds)")
            lines.append(f"| {data} | {family} | " + " | ".join(told) + " |")
    lines.append("| mean | | " + " | ".join(f"{statistics.fmean(each):.1f}" for each in means.values() if each) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=SETS, choices=SETS)
    parser.add_argument("--methods", nargs="*", default=list(ENCODERS), choices=ENCODERS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--write", action="store_true", help="save the results, and continue from saved ones")
    args = parser.parse_args()
    torch.set_num_threads(1)
    kept = kept_cells(SEARCH) if args.write else []
    for data in args.data:
        for family in args.methods:
            for encoder in ENCODERS[family]:
                for lr in RATES:
                    setting = {**encoder, "lr": lr}
                    key = {"data": data, "family": family, "setting": setting}
                    run_seed = partial(tried, data, family, setting, args.rounds)
                    for run in added(kept, key, args.seeds, run_seed, SEARCH if args.write else None):
                        print(data, family, setting, run, flush=True)
    print(text(kept))


if __name__ == "__main__":
    main()
