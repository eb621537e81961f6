"""BDS-GCN: with the whole border it is FedCog's GCN, and right on average with a part of it."""

import torch
from condensing_runs import run_of

from isthmus.methods.base import Model
from isthmus.methods.bds_gcn import BdsGcn
from isthmus.methods.fedcog_gcn import FedCogGcn
from isthmus.nn.encoders import Encoder
from isthmus.study.setup import module_for, task_for


def test_bds_gcn_with_the_whole_border_is_fedcogs_gcn(parties):
    options = {"rounds": 5, "lnnc": False}
    ours = run_of(BdsGcn(**options, boundary=1.0), parties).go().weights
    theirs = run_of(FedCogGcn(**options), parties).go().weights
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name])


def test_bds_gcn_is_right_on_average(parties):
    """What arrives, averaged over many draws, is what all of the border sends."""
    task = task_for(parties)
    module = module_for(Encoder.named("gcn")(hidden=8, dropout=0.0), parties, task, 0)
    weights = Model(module).weights()

    def came(method, times):
        site = method.site(parties, task, module)
        total = 0
        for _ in range(times):
            reply = site.answer("forth", {"layer": 0, "training": True, "weights": weights}, site.hosted.names)
            rows = [letter["h"] for own in reply.letters for _, letter in sorted(own.items())]
            total = total + torch.cat(rows)
        return total / times

    whole, drawn = came(FedCogGcn(lnnc=False), 1), came(BdsGcn(boundary=0.5), 400)
    assert float((drawn - whole).abs().mean()) < 0.1 * float(whole.abs().mean())
    assert not torch.allclose(came(BdsGcn(boundary=0.5), 1), whole)
