"""Small runs of methods that learn without labels."""

from isthmus.methods.fclg import FCLG
from isthmus.nn.encoders import Encoder
from isthmus.study.loop import Run
from isthmus.study.setup import module_for, task_of
from isthmus.tasks.clustering import GraphClustering

LR = 0.05


SGD = {"epochs": 3, "batch_size": 4, "optimizer": "sgd", "lr": LR, "weight_decay": 0.0}


def run(method, parties, encoder="gin", seed=0):
    task = task_of(GraphClustering(), parties)
    options = {"weighted": True} if encoder == "gin" else {}
    encoder = Encoder.named(encoder)(hidden=6, dropout=0.0, pool="sum", **options)
    return Run(method, parties, task, module_for(encoder, parties, task, seed), seed=seed)


def method(**options):
    return FCLG.read({"rounds": 2, "local": SGD, **options}, "fclg")
