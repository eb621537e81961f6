"""Evaluation of graphs for which a pass over all nodes at once takes too much memory.

One layer after another is computed for all nodes, some nodes at a time; only the outputs of two layers are stored. The
results are those of one pass, as every row is computed from the same numbers.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from isthmus.data import rows
from isthmus.data.cohort import Block
from isthmus.data.neighbours import Neighbours, NodeRange
from isthmus.nn.encoders import ONE_HOP, Convolutions, hops_of_layer
from isthmus.nn.per_party import PerParty
from isthmus.nn.stacks import dense
from isthmus.nn.twins import propagates_by_matrix

ONE_PASS = 2**30
"""Bytes of rows and messages up to which all nodes are computed in one pass: that is faster, as propagation matrices
stay cached. A full batch of training takes several times as much, so what trains in full batches keeps one pass."""
AT_A_TIME = 2**27
"""Bytes of rows and messages that are computed at a time: far below a layer's output on such graphs."""


def infer(model: PerParty, block: Block, *, embed: bool = False) -> Any:
    """The model's output for every row, as `model(block, embed=embed)` gives it, without gradients."""
    with torch.no_grad():
        module = model.module
        if not _is_chain(module, embed) or _one_pass_bytes(module, block) <= ONE_PASS:
            return model(block, embed=embed)
        return layer_by_layer(model, block, embed=embed)


@torch.no_grad()
def layer_by_layer(model: PerParty, block: Block, *, embed: bool = False, at_a_time: int = AT_A_TIME) -> Any:
    """As `infer` for a chain of convolutions, in pieces of about `at_a_time` bytes."""
    module, weights = model.module, model.weights()
    assert isinstance(module, Convolutions)
    h, layers = block.x, list(module.convs)
    embedding = h
    for at, conv in enumerate(layers):
        prefix = f"convs.{at}."
        layer = PerParty(Convolutions([conv], 0.0, weighted=module.weighted), model.parties, model.device)
        own = {name: stack for name, stack in weights.items() if name.startswith(prefix)}
        layer.load({f"convs.0.{name.removeprefix(prefix)}": dense(stack) for name, stack in own.items()})
        whole = block if at == 0 else replace(block, x=h)
        embedding = h
        h = _all_rows(layer, conv, whole, block, at_a_time)
        if at < len(layers) - 1:
            h.relu_()
    return (h, embedding) if embed else h


def _all_rows(layer: PerParty, conv: nn.Module, whole: Block, first: Block, at_a_time: int) -> Tensor:
    """A layer's output for all nodes, computed piece by piece.

    Arguments:
        whole: the block with the layer's input.
        first: the block that caches the neighbours.
    """
    near, out = first.neighbours, torch.empty(0)
    by_matrix = layer.takes_hops and hops_of_layer(conv) == 1 and not rows.is_sparse(whole.x)
    for start, stop in itertools.pairwise(_ends(conv, near, by_matrix, at_a_time)):
        if by_matrix:
            part = NodeRange(near, start, stop, whole.sizes)
            without = whole.edges_at(slice(0, 0))
            piece = layer(replace(whole, edge_index=whole.edge_index[:, :0], part=part, **without))
        else:
            seeds = torch.arange(start, stop, device=near.device)
            around = near.around(seeds, (None,) * (hops_of_layer(conv) or 0), whole.sizes)
            x = rows.take(whole.x, around.nodes)
            taken = around if layer.takes_hops else None
            types = whole.types_at(around.nodes)
            piece = layer(Block(x, around.edge_index, around.sizes, part=taken, node_type=types, **around.per_edge))
            piece = piece[around.rows_of(seeds, among_seeds=False)]
        if not start:
            out = piece.new_empty(whole.nodes, piece.size(1))
        out[start:stop] = piece
    return out


def _is_chain(module: nn.Module, embed: bool) -> bool:
    """Whether a model is a chain of convolutions whose rows depend on no others than neighbours'."""
    if type(module) is not Convolutions or module.concatenate or (embed and len(module.convs) == 1):
        return False
    norms = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm1d)]
    return all(norm.running_mean is not None for norm in norms) and all(
        type(conv) in ONE_HOP or hops_of_layer(conv) == 0 for conv in module.convs
    )


def _one_pass_bytes(module: nn.Module, block: Block) -> int:
    """About how much one pass over all nodes takes in its largest layer."""
    convs: Any = module.get_submodule("convs")
    each = ((conv, *_numbers(conv, gathers=not propagates_by_matrix(conv))) for conv in convs)
    edges = block.edge_index.size(1)
    return max((block.nodes * per_node + edges * per_edge) * _bytes(conv) for conv, per_node, per_edge in each)


def _numbers(conv: nn.Module, *, gathers: bool) -> tuple[int, int]:
    """How many numbers a layer stores per node and per edge: rows, and the messages or the matrix."""
    width = max((max(weight.shape) for weight in conv.parameters() if weight.dim() > 1), default=1)
    return 4 * width, 2 * width if gathers else 6


def _bytes(conv: nn.Module) -> int:
    return next((weight.element_size() for weight in conv.parameters()), 4)


def _ends(conv: nn.Module, near: Neighbours, by_matrix: bool, at_a_time: int) -> list[int]:
    """Where pieces of nodes end that take about so many bytes each; a node is in one piece, however many its edges."""
    per_node, per_edge = _numbers(conv, gathers=not by_matrix)
    total = near.start * per_edge + torch.arange(near.nodes + 1, device=near.device) * per_node
    pieces = -(-int(total[-1]) * _bytes(conv) // at_a_time)
    wanted = torch.arange(1, pieces, device=near.device) * (at_a_time // _bytes(conv))
    ends = torch.searchsorted(total, wanted, right=True) - 1
    return [0, *(end for end in ends.unique().tolist() if 0 < end < near.nodes), near.nodes]
