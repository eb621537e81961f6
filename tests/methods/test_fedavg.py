"""FedAvg against its algorithm."""

from written_out import ADAM, AsWritten

from isthmus.methods.fedavg import FedAvg


class TestFedAvg(AsWritten):
    kind, options = FedAvg, {"local": ADAM}

    @staticmethod
    def literal(plain):
        w = plain.start
        for drawn in plain.rounds():
            w = plain.mean(drawn, [plain.train(at, w)[0] for at in drawn])
        return w
