"""Whether parties of typed graphs agree on who holds the rows that their borders name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from isthmus.data.party import Party
from isthmus.errors import IsthmusError


def named_rows(party: Party) -> Iterator[tuple[str, Tensor]]:
    """Yield each other party with the ids of its rows that edges across the border name, ascending."""
    border = party.border
    if border is None:
        return
    for at in border.owner.unique().tolist():
        yield border.owners[at], border.outer[border.owner == at].unique()


def claimed_rows(party: Party) -> Tensor:
    """Return a mask of own nodes of the types that the border names at other parties: each has one holder."""
    border, schema = party.border, party.schema
    if border is None or border.edge_type is None or schema is None:
        return torch.zeros(party.nodes, dtype=torch.bool)
    ends = torch.tensor(schema.ends)[border.edge_type]
    leaving = torch.zeros(len(border), dtype=torch.bool) if border.leaving is None else border.leaving
    return torch.isin(party.graph.node_type, torch.where(leaving, ends[:, 1], ends[:, 0]))


def check_owners(party: Party, holders: Tensor, named: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Refuse rows that several parties claim, and rows that others name as this party's but it lacks.

    Arguments:
        holders: for each own node the parties that claim it, `[nodes]`.
        named: by other party the message with the ids that it names.
    """
    assert party.schema is not None
    for name, letter in named.items():
        ids = letter["ids"]
        lacking = ids.numel() if party.ids is None else int((~torch.isin(ids.cpu(), party.ids)).sum())
        if lacking:
            raise IsthmusError(
                f"party '{name}' names {ids.numel()} rows as this party's, which lacks {lacking}: correct the owners "
                "there, or add the rows here"
            )
    several = holders.round() > 1
    if bool(several.any()):
        kind = int(party.graph.node_type[several.nonzero()[0, 0]])
        raise IsthmusError(
            f"{int(several.sum())} of its rows are also those of another party, the first in "
            f"'{party.schema.nodes[kind][0]}': each has one owner, so correct the owners at one of them"
        )
