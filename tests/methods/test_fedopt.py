"""FedAdagrad, FedAdam and FedYogi against Algorithm 2."""

import torch
from written_out import ADAM, AsWritten

from isthmus.methods.fedopt import FedAdagrad, FedAdam, FedYogi


def fedopt(plain):
    x, o = plain.start, plain.method
    m, v = plain.zeros, {name: zero + o.tau**2 for name, zero in plain.zeros.items()}
    for drawn in plain.rounds():
        mean = plain.mean(drawn, [plain.train(at, x)[0] for at in drawn])
        delta = {name: mean[name] - x[name] for name in m}
        m = {n: o.beta1 * m[n] + (1 - o.beta1) * d for n, d in delta.items()}
        if o.name == "fedadagrad":
            v = {n: v[n] + d**2 for n, d in delta.items()}
        elif o.name == "fedadam":
            v = {n: o.beta2 * v[n] + (1 - o.beta2) * d**2 for n, d in delta.items()}
        else:
            v = {n: v[n] - (1 - o.beta2) * d**2 * torch.sign(v[n] - d**2) for n, d in delta.items()}
        x = mean | {n: x[n] + o.server_lr * m[n] / (v[n].sqrt() + o.tau) for n in m}
    return x


class TestFedAdagrad(AsWritten):
    kind, options = FedAdagrad, {"local": ADAM}
    literal = staticmethod(fedopt)


class TestFedAdam(AsWritten):
    kind, options = FedAdam, {"local": ADAM}
    literal = staticmethod(fedopt)


class TestFedYogi(AsWritten):
    kind, options = FedYogi, {"local": ADAM, "tau": 0.01}
    literal = staticmethod(fedopt)
