"""FedProx against its objective, by autograd."""

from written_out import ADAM, AsWritten

from isthmus.methods.fedprox import FedProx


class TestFedProx(AsWritten):
    kind, options = FedProx, {"local": ADAM, "mu": 0.5}

    @staticmethod
    def literal(plain):
        w, mu = plain.start, plain.method.mu
        for drawn in plain.rounds():

            def proximal(module, w=w):
                return mu / 2 * sum((p - w[name]).square().sum() for name, p in module.named_parameters())

            w = plain.mean(drawn, [plain.train(at, w, proximal)[0] for at in drawn])
        return w
