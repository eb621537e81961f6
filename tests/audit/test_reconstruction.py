"""The audit counts what is right, and what colluders claim of small random graphs is right."""

from __future__ import annotations

import os

import pytest
import torch
from audited import coupled, cut, features, propagating
from hypothesis import given, settings
from hypothesis import strategies as some

from isthmus.audit import reconstruction
from isthmus.audit.attacks import Attack, RowClaim
from isthmus.audit.reconstruction import ATTACKS, LEVELS, Reconstruction, _Truth, run_attacks
from isthmus.data.coupling import decouple
from isthmus.errors import IsthmusError
from isthmus.methods.fedcog import FedCog
from isthmus.study.config import Study
from isthmus.study.setup import module_for

SOURCE = torch.Generator().manual_seed(5)


def audited(parties, *, method=None, encoder="sgc", **options):
    return Reconstruction(**options).run(parties, *propagating(parties, encoder), method)


@pytest.mark.slow
@settings(max_examples=25)
@given(coupled(), some.integers(0, 2))
def test_no_claim_is_wrong_and_lnnc_leaves_theorem_2_one_node_parties(parties, colluders):
    found = audited(parties, colluders=colluders)
    assert [each.protection for each in found] == ["none", "lnnc", "min 3", "lnnc + min 3"]
    lonely = sum(party.nodes == 1 for party in parties)
    for each in found:
        assert each.wrong == 0
        assert each.named <= each.features <= each.direction <= each.support <= each.nodes
        assert each.exposed <= each.summed
        assert sum(each.parties.values()) == each.features
        for levels in each.attacks.values():
            assert levels["features"] <= levels["direction"] <= levels["support"] <= each.support
    assert found[1].exposed <= lonely
    assert found[3].exposed <= lonely
    assert found[1].attacks["no inner neighbour"]["features"] <= lonely


@settings(max_examples=10)
@given(coupled(kinds=("dense",)))
def test_of_dense_rows_lnnc_leaves_directions_alone(parties):
    plain, lnnc = audited(parties)[:2]
    lonely = sum(party.nodes == 1 for party in parties)
    assert lnnc.features <= lonely
    assert lnnc.direction == plain.direction


def test_one_neighbour_is_read_with_lnnc_and_not_with_least():
    # 0 to 3 at one party, each a neighbour of one node of the other; 0 has no inner neighbour
    parties = cut([(1, 2), (2, 3), (0, 4), (2, 5), (4, 5)], [0, 0, 0, 0, 1, 1], features("bags", 10, SOURCE), more=4)
    none, lnnc, least, both = audited(parties)
    assert (none.exposed, lnnc.exposed, least.exposed, both.exposed) == (1, 0, 0, 0)
    assert none.added == 0 < lnnc.added
    assert none.attacks["one neighbour"]["features"] == 4  # 0 and 2, and at the other party 4 and 5
    assert lnnc.attacks["one neighbour"]["features"] == 4
    assert lnnc.features >= none.features
    assert (least.summed, least.features, both.features) == (0, 0, 0)


def test_colluders_are_those_that_most_edges_lead_to():
    x = features("bags", 9, SOURCE)
    edges = [(0, 3), (1, 3), (2, 4), (2, 6), (0, 1), (1, 2), (3, 4), (6, 7)]
    parties = cut(edges, [0, 0, 0, 1, 1, 1, 2, 2, 2], x)
    alone = audited(parties, colluders=1)[0]
    together = audited(parties)[0]
    assert alone.parties["party-0"] <= together.parties["party-0"]
    assert alone.summed == 3 + 2 + 1  # of party-0 at party-1; of the two others at party-0
    assert together.summed == alone.summed


def test_a_neighbour_at_a_third_party_is_as_unknown_as_an_inner_one():
    # 0 has one inner neighbour's place taken by a third party's node 4
    x = features("bags", 10, SOURCE)
    parties = cut([(0, 2), (0, 4), (2, 3), (4, 5)], [0, 0, 1, 1, 2, 2], x, more=4)
    found = audited(parties, colluders=1)[0]
    assert found.wrong == 0
    assert found.attacks["inner neighbours"]["features"] == 0  # what is read there is not the victim's


def claim(row, level="features", **whose):
    columns = row.nonzero().flatten()
    return RowClaim(columns.numpy(), row[columns].double().numpy(), level, "one neighbour", **whose)


def test_truth_knows_right_from_wrong():
    x = features("bags", 6, SOURCE)
    x[1] = x[0]
    parties = cut([(0, 1), (0, 2), (3, 4), (2, 3)], [0, 0, 0, 1, 1, 1], x)
    truth = _Truth(parties, decouple(parties))

    def nodes(*claims):
        return [each.node for each in truth.checked(0, {"party-1"}, claims)]

    assert nodes(claim(x[0], nodes=(100,))) == [0]
    assert nodes(claim(x[0] * 1.01, nodes=(100,))) == [None]
    assert nodes(claim(x[0] * 1.01, "direction", nodes=(100,))) == [0]
    assert nodes(claim(x[0] + x[2], "direction", nodes=(100,))) == [None]
    assert nodes(claim((x[0] > 0) * 3.0, "support", nodes=(100,))) == [0]
    assert nodes(claim(x[2], nodes=(100,)), claim(x[2], nodes=(100, 102))) == [None, 2]
    assert nodes(claim(x[0], nodes=(100, 101)), claim(x[0], nodes=(100, 101))) == [0, 1]  # both have this row
    assert nodes(claim(x[2], near=100), claim(x[2], near=101)) == [2, None]
    assert nodes(claim(torch.zeros(60), nodes=(100,))) == [None]


def test_a_claim_that_is_wrong_is_counted_as_such(monkeypatch):
    class Liar(Attack):
        name = "one neighbour"

        def run(self, findings):
            findings.claims.append(claim(torch.ones(60), nodes=(int(findings.known.ids[0]),)))

    monkeypatch.setattr(reconstruction, "run_attacks", lambda known: run_attacks(known, [Liar]))
    found = audited(cut([(0, 1), (1, 2), (2, 3)], [0, 0, 1, 1], features("bags", 6, SOURCE), more=2))[0]
    assert (found.wrong, found.support) == (2, 0)


def test_one_party_has_nobody_to_be_read_by():
    parties = cut([(0, 1)], [0, 0], features("bags", 2, SOURCE))
    with pytest.raises(IsthmusError, match="needs two or more parties"):
        audited(parties)


def test_parties_without_edges_between_them_read_nothing():
    found = audited(cut([(0, 1), (2, 3)], [0, 0, 1, 1], features("bags", 4, SOURCE)))
    assert all((each.summed, each.support, each.wrong) == (0, 0, 0) for each in found)
    assert found[0].attacks == {attack.name: dict.fromkeys(LEVELS, 0) for attack in ATTACKS}


def test_options_of_the_method_stay_and_its_protections_are_replaced():
    method = FedCog(lnnc=True, min_neighbours=7, rounds=5)
    kinds = Reconstruction(min_neighbours=4).protected(method)
    assert [(each.lnnc, each.min_neighbours, each.rounds) for each in kinds] == [
        (False, 1, 5), (True, 1, 5), (False, 4, 5), (True, 4, 5),
    ]  # fmt: skip
    assert len(Reconstruction(min_neighbours=1).protected(method)) == 2


def test_exposures_are_plain_values():
    found = audited(cut([(0, 1), (1, 2), (2, 3)], [0, 0, 1, 1], features("bags", 6, SOURCE), more=2))[0].to_dict()
    assert found["protection"] == "none"
    assert found["value"] is None


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.skipif("ISTHMUS_DATA" not in os.environ, reason="ISTHMUS_DATA names no folder of data sets")
def test_cora_is_read_with_lnnc_and_less_with_least():
    tables = {"data": {"name": "cora"}, "partition": {"name": "metis"}, "parties": 10, "model": {"encoder": "sgc"}}
    study = Study.of(tables)
    loaded = study.cut_data(0)
    module = module_for(study.encoder(), loaded.parties, loaded.task, 0)
    none, lnnc, least, both = Reconstruction().run(loaded.parties, loaded.task, module)
    assert none.nodes == 2708
    assert (lnnc.exposed, both.exposed) == (0, 0)
    assert min(none.features, lnnc.features) > 800
    assert 0 < both.features <= least.features < 0.3 * none.features
    assert [each.wrong for each in (none, lnnc, least, both)] == [0, 0, 0, 0]
