"""Sums over neighbours are those of the whole graph."""

from dataclasses import replace

import torch
from condensing_runs import QUICK, server_of

from isthmus.data.pooled import pool_parties
from isthmus.methods.fedgc import FedGC
from isthmus.methods.fedgcn import FedGcn
from isthmus.nn.diffusion import Diffusion
from isthmus.testing import small_parties


def test_sums_over_neighbours_are_those_of_the_whole_graph(parties):
    method = FedGC(**QUICK, hops=2)
    server, site, _, _ = server_of(method, parties)
    next(server)
    next(server)
    whole = pool_parties(parties)
    due = Diffusion(hops=2).diffuse(whole.graph.x.to_dense(), whole.graph.edge_index, whole.graph.edge_weight)
    made = site.cohort_of(range(len(parties))).parties
    for party, own in zip(parties, made, strict=True):
        torch.testing.assert_close(own.graph.x, due[torch.searchsorted(whole.ids, party.ids)], atol=1e-5, rtol=1e-4)


def test_parties_without_ids_add_nothing_to_each_others_nodes():
    apart = [replace(party, ids=None, border=None) for party in small_parties("node")]
    for method in (FedGC(**QUICK, hops=1), FedGcn(rounds=1)):
        server, site, _, _ = server_of(method, apart)
        next(server)
        made = site.cohort_of(range(len(apart))).parties
        for party, own in zip(apart, made, strict=True):
            due = Diffusion(hops=1).diffuse(
                party.graph.x.to_dense(), party.graph.edge_index, party.graph.get("edge_weight")
            )
            torch.testing.assert_close(own.graph.x.to_dense(), due, atol=1e-5, rtol=1e-4)
