"""FedDyn against Algorithm 1."""

from written_out import SGD, AsWritten

from isthmus.methods.feddyn import FedDyn


class TestFedDyn(AsWritten):
    kind, options = FedDyn, {"local": SGD, "alpha": 0.1}

    @staticmethod
    def literal(plain):
        theta, alpha, parties = plain.start, plain.method.alpha, len(plain.parties)
        gradients = [plain.zeros for _ in range(parties)]
        h = plain.zeros
        for drawn in plain.rounds():
            mine = []
            for at in drawn:

                def dynamic(module, g=gradients[at], theta=theta):
                    named = dict(module.named_parameters())
                    linear = sum((g[name] * p).sum() for name, p in named.items())
                    return -linear + alpha / 2 * sum((p - theta[name]).square().sum() for name, p in named.items())

                mine.append(plain.train(at, theta, dynamic)[0])
                gradients[at] = {n: g - alpha * (mine[-1][n] - theta[n]) for n, g in gradients[at].items()}
            h = {n: old - alpha / parties * sum(own[n] - theta[n] for own in mine) for n, old in h.items()}
            theta = plain.mean(drawn, mine)
            theta = theta | {n: theta[n] - h[n] / alpha for n in h}
        return theta
