"""OpenFGL's FedAvg on parties that Isthmus cut; `compare.py` starts it in OpenFGL's environment.

    python openfgl_side.py PARTIES.pt OPTIONS.json

The parties are written as the files that OpenFGL makes when it cuts a graph itself. OpenFGL's own trainer then loads
and trains them; nothing of it is replaced but its log, which tells when a round ends.
"""

import itertools
import json
import pickle
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from side import serve
from torch_geometric.data import Data

WARM_UP = 2


def write_parties(parties: list[dict[str, Any]], classes: int, folder: Path) -> None:
    """The files of `FGLDataset` and of `NodeClsTask`: a graph, three masks and three lists of global ids per party."""
    split = folder / "node_cls" / "default_split"
    split.mkdir(parents=True)
    for at, party in enumerate(parties):
        data = Data(x=party["x"], edge_index=party["edge_index"], y=party["y"])
        data.num_global_classes = classes
        data.global_map = dict(enumerate(party["ids"].tolist()))
        torch.save(data, folder / f"data_{at}.pt")
        for name in ("train", "val", "test"):
            torch.save(party[name], split / f"{name}_{at}.pt")
            (split / f"glb_{name}_{at}.pkl").write_bytes(pickle.dumps(party["ids"][party[name]].tolist()))


class Stamps:
    """Stands in for OpenFGL's log, which it tells the figures of a round when the round is over."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.accuracy = 0.0

    def add_log(self, result: dict[str, Any]) -> None:
        self.seconds.append(time.process_time())
        self.accuracy = float(result["current_test_accuracy"])

    def save(self) -> None:
        pass


def new_trainer(root: Path, parties: int, options: dict[str, Any]) -> Any:
    sys.argv = sys.argv[:1]  # OpenFGL reads the command line when it is imported
    from openfgl import config
    from openfgl.flcore.trainer import FGLTrainer

    args = config.args
    args.root, args.dataset, args.simulation_mode = str(root), ["Cora"], "subgraph_fl_metis"
    args.num_clients, args.num_epochs, args.use_cuda = parties, options["epochs"], False
    args.model, args.hid_dim, args.dropout = ["gcn"], options["hidden"], options["dropout"]
    # its Adam adds the decay to the gradient: 5e-4 costs 5 points of accuracy with 10 parties and 46 with 100;
    # the decay of AdamW on the other sides changes no accuracy by a thousandth
    args.lr, args.weight_decay = options["lr"], 0.0
    args.metrics, args.evaluation_mode = ["accuracy"], "global_model_on_local_data"
    torch.manual_seed(options["seed"])
    trainer = FGLTrainer(args)
    trainer.logger = Stamps()
    return trainer


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    saved, options = torch.load(sys.argv[1]), json.loads(sys.argv[2])
    parties = saved["parties"]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        raw = root / "global" / "subgraph_fl" / "Cora" / "raw"
        raw.parent.mkdir(parents=True)
        raw.symlink_to(options["raw"], target_is_directory=True)  # the server loads the whole graph, too
        write_parties(parties, saved["classes"], root / "distrib" / f"subgraph_fl_metis_Cora_client_{len(parties)}")
        trainers: list[Any] = []

        def learn(rounds: int) -> float:
            trainer = new_trainer(root, len(parties), options)
            trainer.args.num_rounds = rounds
            trainer.train()
            return trainer.logger.accuracy

        def turn(rounds: int) -> list[float]:
            if not trainers:
                trainers.append(new_trainer(root, len(parties), options))
            trainer, trainer.logger = trainers[0], Stamps()
            trainer.args.num_rounds = rounds + WARM_UP
            trainer.train()
            stamps = trainer.logger.seconds[WARM_UP - 1 :]
            return [1000 * (after - before) for before, after in itertools.pairwise(stamps)]

        serve(learn, turn)


if __name__ == "__main__":
    main()
