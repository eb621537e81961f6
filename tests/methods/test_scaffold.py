"""SCAFFOLD against Algorithm 1 with option II."""

from written_out import SGD, AsWritten

from isthmus.methods.scaffold import Scaffold


class TestScaffold(AsWritten):
    kind, options = Scaffold, {"local": SGD, "server_lr": 0.7}

    @staticmethod
    def literal(plain):
        x, parties = plain.start, len(plain.parties)
        c, controls = plain.zeros, [plain.zeros for _ in plain.parties]
        for drawn in plain.rounds():
            ys, changes = [], []
            for at in drawn:

                def corrected(module, ci=controls[at], c=c):
                    return sum(((c[name] - ci[name]) * y).sum() for name, y in module.named_parameters())

                y, steps = plain.train(at, x, corrected)
                ys.append(y)
                after = controls[at]
                if steps:
                    after = {n: controls[at][n] - c[n] + (x[n] - y[n]) / (steps * plain.lr) for n in c}
                changes.append({n: after[n] - controls[at][n] for n in c})
                controls[at] = after
            mean = plain.mean(drawn, ys)
            x = mean | {n: x[n] + plain.method.server_lr * (mean[n] - x[n]) for n in c}
            share = len(drawn) / parties
            c = {n: c[n] + share * sum(change[n] for change in changes) / len(drawn) for n in c}
        return x
