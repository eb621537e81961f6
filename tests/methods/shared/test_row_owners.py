"""Parties whose borders name rows of each other agree on who holds these rows."""

import pytest
import torch

from isthmus.data.datasets.ledgers import Ledgers
from isthmus.errors import IsthmusError
from isthmus.methods.shared.row_owners import check_owners, claimed_rows, named_rows


@pytest.fixture(scope="module")
def banks():
    return Ledgers(parties=2, customers=10, transfers=8, laundering=0.05, borders=True).load(seed=0).parties


def test_rows_that_a_border_names_are_accounts_of_their_owner(banks):
    one, two = banks
    ((owner, ids),) = named_rows(one)
    assert owner == two.name
    assert torch.equal(ids, one.border.outer.unique())
    accounts = one.graph.node_type == one.schema.node_types.index("account")
    assert torch.equal(claimed_rows(one), accounts)
    check_owners(two, torch.ones(two.nodes), {one.name: {"ids": ids}})


def test_rows_that_lack_a_holder_or_have_two_are_refused(banks):
    one, two = banks
    ((_, ids),) = named_rows(one)
    lost = {one.name: {"ids": torch.cat([ids, torch.tensor([-5])])}}
    with pytest.raises(IsthmusError, match=rf"^party '{one.name}' names {len(ids) + 1} rows as this .* which lacks 1:"):
        check_owners(two, torch.ones(two.nodes), lost)
    holders = torch.ones(two.nodes) + (torch.arange(two.nodes) == claimed_rows(two).nonzero()[0])
    with pytest.raises(IsthmusError, match=r"^1 of its rows are also those of another party, the first in 'account'"):
        check_owners(two, holders, {})
