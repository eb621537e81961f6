"""Turn any PyG module into a model with a slice of weights per party."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch_geometric.nn import Linear, MessagePassing

from isthmus.data import rows
from isthmus.data.cohort import Block
from isthmus.data.neighbours import Subgraph
from isthmus.errors import IsthmusError, did_you_mean
from isthmus.nn.diffusion import Diffusion
from isthmus.nn.draws import Draws, PartyDropout, torch_seeded
from isthmus.nn.edge_readout import Ends
from isthmus.nn.hops import GraphsHop, Hops, RangeHop, graphs_of, hops_of
from isthmus.nn.products import Columns, Features, by_input
from isthmus.nn.stacks import FirstLayer, Stack, dense
from isthmus.nn.twins import Bank, twin_of, without_caches
from isthmus.nn.weights import Weights, body_weights, head_of, initial_weights, no_embedding, statistics

MOST_KEPT = 2**30
"""Bytes of diffused features that are kept from pass to pass; more are computed in each."""
FARTHEST = 100
"""Most hops for which the nodes around the training items are looked for: farther away nearly all of a graph lies."""


@dataclass
class Leaf:
    """A tensor that is trained, with a part for each party.

    Arguments:
        name: the weight; a first-layer weight stored by touched rows has a second leaf, `name#rest`.
        tensor: what autograd sees.
        sizes: number of the tensor's rows in each part.
        shared: the second part belongs to all parties that train and moves when any of them does (see `FirstLayer`).
    """

    name: str
    tensor: Tensor
    sizes: tuple[int, ...]
    shared: bool = False


_BY_ROWS = (nn.Linear, Linear, MessagePassing)
"""Layers that say how wide the rows are that they read."""
OFFERED = ("x", "edge_index", "edge_weight", "batch", "batch_size", "num_graphs", "node_type", "edge_type", "edge_attr",
           "edge_label_index", "edge_label_attr")  # fmt: skip
"""Arguments that a module's `forward` may name."""


class PerParty:
    """A model for a cohort: shared weights (one slice for all) or a stack of them (one slice per party).

    Known layers work on all parties side by side: Linear layers, also inside PyG's convolutions, use stacked weights;
    biases, attention vectors and normalisation weights are repeated for the rows of their party. Functional dropout
    draws per party. A module with an unknown layer, or whose own `forward` mixes rows (the first pass compares both
    ways), runs for one party after another, which is slower and gives the same results.

    Arguments:
        module: any PyG module with `forward(x, edge_index, ...)`; it also gets `edge_weight`, `batch` and
            `batch_size` (or `num_graphs`) if its signature names them.
        parties: number of slices.

    >>> from torch_geometric import nn as gnn
    >>> model = per_party(gnn.GCN(3, 8, 2, 4), parties=2)
    >>> block = Block(torch.ones(3, 3), torch.tensor([[0, 1], [1, 0]]), sizes=(2, 1))
    >>> model(block).shape
    torch.Size([3, 4])
    """

    def __init__(self, module: nn.Module, parties: int, device: torch.device | None = None) -> None:
        self.module = without_caches(copy.deepcopy(module).to(device or "cpu"))
        self.parties = parties
        self.device = device or torch.device("cpu")
        self.training = False
        self._bank = Bank()
        self._twin = twin_of(self.module, self._bank)
        arguments = inspect.signature(module.forward).parameters
        if "edge_label_index" in arguments and not any(isinstance(part, Ends) for part in self.module.modules()):
            self._twin = None  # nothing says which of its rows are edges'
        self.side_by_side = self._twin is not None
        if self._before is not None:
            setattr(self._twin, "diffused", True)  # noqa: B010 - nn.Module's type knows no plain attributes
        self._probed = False
        self._arguments = arguments.keys()
        if not {"x", "edge_index"} <= self._arguments:
            raise IsthmusError(
                f"model {type(module).__name__} has no forward(x, edge_index, ...): name its first arguments so"
            )
        if missing := [name for name, each in arguments.items() if name not in OFFERED and _is_required(each)]:
            raise IsthmusError(
                f"model {type(module).__name__}: its forward needs '{missing[0]}', which no party has: give it "
                f"a default, or use {', '.join(OFFERED[2:])}"
            )
        self._features: dict[int, Features] = {}
        self._diffused: dict[Any, tuple[Block, Block]] = {}
        self._columns: dict[Any, tuple[Tensor, Columns]] = {}
        self.initial = initial_weights(self.module)
        self._shared: Weights | None = self.initial
        self._stacks: dict[str, Stack] = {}
        self._frozen: frozenset[str] = frozenset()
        self._counters = {name: b for name, b in self.module.named_buffers() if not b.is_floating_point()}

    # ---- weights

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Set every weight to one slice for all parties, or to a stack with a leading party dimension."""
        names = self.initial
        for name, like in names.items():
            if name not in weights:
                raise IsthmusError(f"weights lack '{name}' of the model")
            if weights[name].shape not in (like.shape, (self.parties, *like.shape)):
                raise IsthmusError(
                    f"weight '{name}' has shape {tuple(weights[name].shape)}, the model's is {tuple(like.shape)}"
                )
        moved = {name: weights[name].detach().to(self.device) for name in names}
        shared = {name for name, like in names.items() if moved[name].shape == like.shape}
        self._shared, self._stacks = moved, {}
        if shared != names.keys():
            self._shared = None
            self._stacks = {n: w.expand(self.parties, *w.shape) if n in shared else w for n, w in moved.items()}

    def weights(self) -> dict[str, Stack]:
        """The stack of every weight, `[parties, ...]`."""
        if self._shared is not None:
            return {name: w.expand(self.parties, *w.shape) for name, w in self._shared.items()}
        return {name: s.detach() if isinstance(s, Tensor) else s for name, s in self._stacks.items()}

    def stacks(self) -> Weights:
        """As `weights`, every stack a plain tensor."""
        return {name: dense(stack) for name, stack in self.weights().items()}

    def start_training(
        self, block: Block, trains: Sequence[bool], *, touched_rows: bool, only: Collection[str] | None = None
    ) -> list[Leaf]:
        """Make the weights trainable, a slice per party, and return the leaves that an optimiser moves.

        Arguments:
            block: the data to train on.
            trains: which parties take steps at all.
            touched_rows: allow a first layer stored by touched rows. Right only if all parties that train take the same
                number of steps and nothing but their data moves their weights apart.
            only: names of the weights to train; the others keep their values, running statistics too, and get no
                gradient. None trains all.
        """
        known = self.initial
        for name in only or ():
            if name not in known:
                raise IsthmusError(f"cannot train '{name}', no weight of the model: {did_you_mean(name, known)}")
        self.probe(block)
        trainable = {n for n, p in self.module.named_parameters() if p.requires_grad and (only is None or n in only)}
        self._frozen = frozenset(name for name in statistics(self.module) if only is not None and name not in only)
        leaves: list[Leaf] = []
        shared, stacks = self._shared, self.weights()
        self._stacks, self._shared = {}, None
        for name, stack in stacks.items():
            if name == self.first_layer and rows.is_sparse(block.x):
                layer = self._first_layer(block, stack, shared[name] if shared and touched_rows else None, trains)
                self._stacks[name] = layer
                if name in trainable:
                    leaves.append(Leaf(name, layer.party_rows.requires_grad_(), layer.columns.sizes))
                    if layer.columns.touched:
                        leaves.append(Leaf(f"{name}#rest", layer.shared_rows, (1, 1), shared=True))
                continue
            full = dense(stack).clone(memory_format=torch.contiguous_format)
            self._stacks[name] = full
            if name in trainable:
                leaves.append(Leaf(name, full.requires_grad_(), (1,) * self.parties))
        self.training = True
        return leaves

    def _first_layer(self, block: Block, stack: Stack, shared: Tensor | None, trains: Sequence[bool]) -> FirstLayer:
        """The first layer of `stack`; by touched rows if `shared` is the slice that all parties start from."""
        columns = self._columns_of(block, shared is not None)
        if shared is not None:
            turned = shared.t().contiguous()
            party_rows, shared_rows = turned.index_select(0, columns.index), torch.stack([turned, turned])
        else:
            full = dense(stack)
            party_rows = by_input(full)
            shared_rows = full.new_zeros(2, full.size(2), full.size(1))
        return FirstLayer(columns, party_rows, shared_rows, tuple(trains))

    def like_leaves(self, leaves: Sequence[Leaf], weights: Mapping[str, Tensor]) -> list[Tensor]:
        """Weights (shared or stacked) in the shapes of the leaves, to be combined with their gradients."""
        shaped = []
        parameters = dict(self.module.named_parameters())
        for leaf in leaves:
            name = leaf.name.removesuffix("#rest")
            value = weights[name].to(self.device)
            stacked = value.dim() > parameters[name].dim()
            layer = self._stacks[name]
            if isinstance(layer, Tensor):
                shaped.append(value if stacked else value.expand_as(leaf.tensor))
            elif leaf.shared:
                shaped.append(value.t().expand_as(leaf.tensor))
            elif stacked:
                shaped.append(by_input(value))
            else:
                shaped.append(value.t()[layer.columns.index])
        return shaped

    def stop_training(self) -> None:
        """Freeze the weights and free what autograd holds."""
        for stack in self._stacks.values():
            for tensor in (stack,) if isinstance(stack, Tensor) else (stack.party_rows, stack.shared_rows):
                tensor.requires_grad_(False).grad = None
        self.training = False

    @property
    def first_layer(self) -> str | None:
        """The weight that is multiplied with sparse features, if the module names one."""
        return getattr(self.module, "first_layer", None) if self.side_by_side else None

    @property
    def takes_hops(self) -> bool:
        """Whether the module's layers propagate by rows of a whole graph's matrices (see `Hop`)."""
        return self.side_by_side and bool(getattr(self.module, "takes_hops", False))

    @property
    def trims(self) -> bool:
        """Whether the module's layers leave out the rows that the seeds of a part do not need."""
        return self._before is not None or (self.takes_hops and bool(getattr(self.module, "trims", False)))

    @property
    def _before(self) -> Diffusion | None:
        """What diffuses the features of a block, once, before the module reads them."""
        return getattr(self.module, "before", None) if self.side_by_side else None

    @property
    def reach(self) -> int | None:
        """How many hops of edges an output row depends on, if the module says so and they are not too many to count."""
        return None if getattr(self.module, "takes_hops", False) and not self.side_by_side else reach_of(self.module)

    @property
    def hops(self) -> int | None:
        """How many hops of edges the module's layers read, if it says so."""
        hops: int | None = getattr(self.module, "hops", None)
        return hops

    # ---- forward

    def __call__(self, block: Block, draws: Draws | None = None, *, embed: bool = False) -> Any:
        """The module's output for every row of the block: a tensor, or several, the rows of each party after party.

        Arguments:
            block: graphs of all parties; a party may be absent from it (size 0).
            draws: of the parties, for dropout; needed in training only. Another pass needs other draws.
            embed: return `(output, embedding)`. The embedding is what the module's head (see `head_of`) receives: a
                row per node, or per graph, with its gradients.
        """
        if len(block.sizes) != self.parties:
            raise IsthmusError(f"the block has {len(block.sizes)} parties, the model {self.parties}")
        self.probe(block)
        run = self._together if self.side_by_side else self._one_by_one
        if not embed:
            return run(block, draws)
        with self._head_inputs(block.sizes) as inputs:
            output = run(block, draws)
        return output, torch.cat(inputs)

    @contextmanager
    def _head_inputs(self, sizes: Sequence[int]) -> Iterator[list[Tensor]]:
        """A list of what the head receives within the `with`: one tensor side by side, else one per party."""
        head, weights_before = head_of(self.module), body_weights(self.module)
        inputs: list[Tensor] = []

        def receive(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            h = args[0] if args else next(iter(named.values()))
            if not weights_before or isinstance(h, Features):
                raise no_embedding(self.module)
            inputs.append(h)

        module = self._twin if self.side_by_side else self.module
        assert module is not None
        hook = module.get_submodule(head).register_forward_pre_hook(receive, with_kwargs=True)
        try:
            yield inputs
        finally:
            hook.remove()
        if len(inputs) != (1 if self.side_by_side else sum(size > 0 for size in sizes)):
            raise IsthmusError(
                f"model {type(self.module).__name__} must call its head '{head}' once per forward pass: name another "
                "submodule in its attribute `head`"
            )

    @torch.no_grad()
    def unactivated(self, block: Block) -> Tensor:
        """What the last layer before the head gives, before an activation follows: a row per node of one party."""
        self.probe(block)  # which decides whose layers run
        body, outputs = set(body_weights(self.module)), list[Tensor]()
        module = self._twin if self.side_by_side else self.module
        assert module is not None
        assert self.parties == 1

        def give(_: nn.Module, __: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.dim() == 2 and len(output) == block.nodes:
                outputs.append(output)

        with ExitStack() as hooks:
            for name, layer in self.module.named_modules():
                weights = layer.named_parameters(name, recurse=isinstance(layer, MessagePassing))
                if name and not body.isdisjoint(own for own, _ in weights):
                    hooks.callback(module.get_submodule(name).register_forward_hook(give).remove)
            self(block)
        if not outputs:
            raise no_embedding(self.module)
        return outputs[-1]

    def resize(self, parties: int) -> None:
        """Restart with this many slices, all at the initial weights."""
        self.parties = parties
        self.training = False
        self._shared, self._stacks = self.initial, {}

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Within the `with`, the model evaluates (no gradients, no dropout) although it is being trained."""
        training, self.training = self.training, False
        try:
            with torch.no_grad():
                yield
        finally:
            self.training = training

    @torch.no_grad()
    def embed_with(self, weights: Mapping[str, Tensor], block: Block, draws: Draws | None = None) -> Tensor:
        """The embeddings that this model would give with other weights, in the mode that it is in now.

        In training, the same draws give the same dropout as in a pass of the model itself. The model stays as it is.
        """
        before = self._shared, self._stacks, self._frozen
        self.load(weights)
        # running statistics, which a pass in training moves, are copied
        moving = statistics(self.module)
        self._stacks = {name: s.clone() if name in moving else s for name, s in self.stacks().items()}
        self._shared, self._frozen = None, frozenset()
        try:
            embedding: Tensor = self(block, draws, embed=True)[1]
            return embedding
        finally:
            self._shared, self._stacks, self._frozen = before

    def _together(self, block: Block, draws: Draws | None) -> Any:
        bank, block = self._bank, self._diffused_of(block)
        bank.stacked = self._shared is None
        bank.weights = dict(self._shared if self._shared is not None else self._unfrozen())
        bank.layouts = [block.sizes, block.graphs] if block.graphs else [block.sizes]
        bank.edge_labels = block.edge_labels
        takes_graphs = bool(getattr(self.module, "takes_graphs", False))
        hops = graphs_of(block) if takes_graphs else hops_of(block) if self.takes_hops else None
        if hops is not None:
            bank.layouts += hops.layouts  # dropout reads this list too, which `Ends` changes
        assert self._twin is not None
        if self._twin.training != self.training:
            self._twin.train(self.training)
        sparse = rows.is_sparse(block.x) and self.first_layer is not None
        x = self._features_of(block.x) if sparse else rows.to_dense(block.x)
        try:
            with PartyDropout(draws, bank.layouts) if self.training and draws is not None else nullcontext():
                return self._twin(**self._inputs(block, x, hops))
        finally:
            bank.weights = {}

    def _one_by_one(self, block: Block, draws: Draws | None) -> Any:
        outputs = []
        self.module.train(self.training)
        for at, weights in enumerate(self._slices()):
            if block.sizes[at] == 0:
                continue
            part = block.for_party(at) if self.parties > 1 else block
            inputs = self._inputs(part, rows.to_dense(part.x))
            counters = {name: counter.clone() for name, counter in self._counters.items()}
            with ExitStack() as drawing:
                if self.training and draws is not None:
                    drawing.enter_context(torch_seeded(int(draws[at].keys[0]) >> 1))  # for a module of a user
                    drawing.enter_context(PartyDropout(draws[at], (part.sizes,)))
                try:
                    outputs.append(functional_call(self.module, weights | counters, kwargs=inputs))
                except RuntimeError:
                    self._check_widths(weights | counters, inputs)
                    raise
        if isinstance(outputs[0], tuple):
            return tuple(torch.cat(each) for each in zip(*outputs, strict=True))
        return torch.cat(outputs) if isinstance(outputs[0], Tensor) else outputs[0]  # what it is, `check_output` says

    def _check_widths(self, weights: Weights, inputs: Mapping[str, Any]) -> None:
        """After a pass that failed: refuse a module one of whose layers gets rows of another width than its own."""

        def check(name: str, layer: nn.Module, args: tuple[Any, ...]) -> None:
            width = getattr(layer, "in_features", getattr(layer, "in_channels", None))
            if isinstance(width, int) and width > 0 and args and isinstance(args[0], Tensor):
                given = args[0].size(-1)
                if given != width:
                    raise IsthmusError(
                        f"model {type(self.module).__name__}: its layer '{name}' reads {width} features and gets "
                        f"{given}, the data have {inputs['x'].size(-1)}: make the widths equal"
                    ) from None

        layers = {name: each for name, each in self.module.named_modules() if isinstance(each, _BY_ROWS)}
        hooks = [each.register_forward_pre_hook(partial(check, name)) for name, each in layers.items()]
        try:
            with suppress(RuntimeError), torch.no_grad():
                functional_call(self.module, weights, kwargs=dict(inputs))
        finally:
            for hook in hooks:
                hook.remove()

    def _slices(self) -> list[Weights]:
        if self._shared is not None:
            return [self._shared] * self.parties
        full = {name: dense(stack) for name, stack in self._unfrozen().items()}
        return [{name: stack[at] for name, stack in full.items()} for at in range(self.parties)]

    def _unfrozen(self) -> dict[str, Stack]:
        """The stacks, with copies of running statistics that a pass in training must not move."""
        copies = {name: dense(self._stacks[name]).clone() for name in self._frozen if self.training}
        return {**self._stacks, **copies}

    def _inputs(self, block: Block, x: Any, hops: Hops | RangeHop | GraphsHop | None = None) -> dict[str, Any]:
        """The arguments that the module's `forward` names."""
        graphs = sum(block.graphs) if block.graphs else None
        offered = {
            "x": x,
            "edge_index": block.edge_index if hops is None else hops,
            "edge_weight": block.edge_weight,
            "batch": block.batch,
            "batch_size": graphs,
            "num_graphs": graphs,
            "node_type": block.node_type,
            "edge_type": block.edge_type,
            "edge_attr": block.edge_attr,
            "edge_label_index": block.edge_label_index,
            "edge_label_attr": block.edge_label_attr,
        }
        return {name: value for name, value in offered.items() if name in self._arguments}

    def probe(self, block: Block) -> None:
        """Compare once what the module does side by side, and on the hops that it says to read, with what it does.

        What the module reads, and how, is certain only afterwards: a part of a block is cut after this.
        """
        if self._probed:
            return
        self._probed = True
        self._probe_sides(block)
        if block.batch is None and self.reach is not None:
            self._probe_reach(block, self.reach)

    def _trial(self, parties: int) -> PerParty:
        """Another one with the same layers, for passes whose output is only compared."""
        trial = copy.copy(self)
        trial._features, trial._diffused, trial._columns, trial._frozen = {}, {}, {}, frozenset()
        trial.resize(parties)
        return trial

    def _probe_reach(self, block: Block, reach: int) -> None:
        """Compare the first node of a path of nodes with itself where the path ends after as many hops.

        A path has no types of nodes and edges, so of typed graphs a node of the largest one is compared.
        """
        count = reach + 3
        along = torch.arange(count - 1)
        edges = torch.cat([torch.stack([along, along + 1]), torch.stack([along + 1, along])], dim=1)
        noise = torch.Generator().manual_seed(0)
        x = torch.rand(count, block.x.size(1), generator=noise).to(torch.get_default_dtype())
        weight = None if block.edge_weight is None else torch.rand(edges.size(1), generator=noise).to(x.dtype)
        on = self.device
        whole = Block(x.to(on), edges.to(on), (count,), None if weight is None else weight.to(on))
        seed = edges[0, :1].to(on)
        if block.edge_attr is not None:
            attributes = torch.rand(edges.size(1), block.edge_attr.size(1), generator=noise).to(x.dtype)
            whole = replace(whole, edge_attr=attributes.to(on))
        if block.node_type is not None:
            whole = max(
                (block.for_party(at) for at in range(len(block.sizes))), key=lambda each: each.edge_index.size(1)
            )
            seed = whole.edge_index[1, :1] if whole.edge_index.numel() else seed
        part = whole.neighbours.around(seed, (None,) * reach, whole.sizes)
        reads = [whole, whole.restricted(part, trims=False)]
        rows_of = [int(seed), int(part.rows_of(seed, among_seeds=False))]
        if block.edge_label_index is not None:  # an edge from the node to itself
            attr = None if block.edge_label_attr is None else block.edge_label_attr.new_ones(
                1, block.edge_label_attr.size(1)
            )  # fmt: skip
            ends = (torch.full((2, 1), row, device=on) for row in rows_of)
            reads = [
                replace(read, edge_label_index=both, edge_label_attr=attr, edge_labels=(1,))
                for read, both in zip(reads, ends, strict=True)
            ]
            rows_of = [0, 0]
        trial = self._trial(1)
        outputs = []
        for read, row in zip(reads, rows_of, strict=True):
            trial.load(_varied(self.initial, 1))
            try:
                with torch.no_grad():
                    output = trial(read)
            except Exception:
                return  # the first real pass will say why
            outputs.append((output[0] if isinstance(output, tuple) else output)[row])
        if not _close(*outputs):
            raise IsthmusError(
                f"model {type(self.module).__name__} reads further than reach = {reach} hops: give a larger number, "
                "one more than its layers where they normalise by degrees, or none"
            )

    def _probe_sides(self, block: Block) -> None:
        """Compare both ways, with different weights for two parties: some rows of those with most edges."""
        parts = [block.for_party(at) for at, size in enumerate(block.sizes) if size]
        if not self.side_by_side or not parts:
            return
        parts.sort(key=lambda part: (part.edge_index.size(1), part.nodes))
        samples = [_some_rows(part) for part in (parts[-1], parts[-2:][0])]
        pair = Block.concat([replace(sample, x=rows.to_dense(sample.x)) for sample in samples])
        if pair.edge_weight is not None:  # PyG normalises negative weights differently, see `normalised_edges`
            pair = replace(pair, edge_weight=pair.edge_weight.abs())
        trial = self._trial(2)
        trial.module = copy.deepcopy(self.module)  # functional_call changes a layer that has two names
        weights = _varied(self.initial, 2)
        for training in (False, True):
            outputs: list[Any] = []
            for run in (trial._together, trial._one_by_one):
                trial.load({name: value.clone() for name, value in weights.items()})
                trial.training = training
                try:
                    with torch.no_grad(), torch.random.fork_rng(devices=[]):
                        outputs.append(run(pair, Draws.seeded(range(2))))
                except Exception:
                    self.side_by_side = bool(outputs)  # if one by one fails too, the first real pass will say why
                    return
            both = [output if isinstance(output, tuple) else (output,) for output in outputs]
            if not all(map(_close, *both)):
                self.side_by_side = False
                return

    def _features_of(self, x: Tensor) -> Features:
        if id(x) not in self._features:
            while len(self._features) >= 4:  # data for training and for evaluation alternate
                self._features.pop(next(iter(self._features)))
            self._features[id(x)] = Features(x)
        return self._features[id(x)]

    def _diffused_of(self, block: Block) -> Block:
        """The block with diffused features, if these are what the module reads; edges are of no further use.

        It is kept: no weight has a part in it, so passes over the same data read the same.
        """
        if self._before is None:
            return block
        key = id(block.x), id(block.edge_index), id(block.edge_weight), id(block.part), block.trims
        if key in self._diffused:
            return self._diffused[key][1]
        x, sizes = self._before.diffuse(rows.to_dense(block.x), block.edge_index, block.edge_weight), block.sizes
        if block.trims and isinstance(block.part, Subgraph):
            x, sizes = x[block.part.rows_within(0)], block.part.sizes_within(0)
        diffused = replace(block, x=x, edge_index=block.edge_index[:, :0], edge_weight=None, sizes=sizes, part=None)
        if not x.requires_grad and x.numel() * x.element_size() <= MOST_KEPT:
            while len(self._diffused) >= 4:
                self._diffused.pop(next(iter(self._diffused)))
            self._diffused[key] = block, diffused
        return diffused

    def _columns_of(self, block: Block, touched: bool) -> Columns:
        key = (id(block.x), block.sizes, touched)
        if key not in self._columns:
            self._columns.clear()
            self._columns[key] = block.x, Columns(block.x, block.sizes, touched)
        return self._columns[key][1]


def reach_of(module: nn.Module) -> int | None:
    """How many hops of edges an output row depends on, as the module says; None if it does not, or more than any graph
    is worth cutting for."""
    reach = getattr(module, "reach", None)
    if reach is not None and (type(reach) is not int or reach < 0):
        raise IsthmusError(f"model {type(module).__name__} says reach = {reach!r}: give a number of hops, or None")
    return None if reach is None or reach > FARTHEST else reach


def _varied(weights: Weights, parties: int) -> Weights:
    """These weights with some noise, other for every party."""
    noise = torch.Generator().manual_seed(0)
    varied = {}
    for name, weight in weights.items():
        change = torch.rand((parties, *weight.shape), generator=noise).to(weight.device, weight.dtype)
        varied[name] = weight + 0.1 * change * (weight.abs().mean() + 0.1)
    return varied


def _close(a: Tensor, b: Tensor) -> bool:
    """Whether two outputs are equal up to rounding, which grows with the numbers that were added up."""
    if a.shape != b.shape or not b.numel() or not b.is_floating_point():
        return torch.equal(a, b)
    sizes = b.detach().abs().nan_to_num(0, posinf=0)
    largest = sizes.amax(dim=0) if b.dim() > 1 else sizes.amax()  # of each column: one may be larger than all others
    within = (a - b).abs() <= 1e-5 * largest.clamp(min=1.0) + 1e-4 * b.abs()
    return bool((within | (a == b) | (a.isnan() & b.isnan())).all())


def per_party(module: nn.Module, parties: int, device: torch.device | None = None) -> PerParty:
    """`module` with one slice of weights per party."""
    return PerParty(module, parties, device)


def _some_rows(block: Block, limit: int = 200) -> Block:
    """Some rows of one party's block, among them the ends of its first edges, and the edges between these rows.

    Labelled edges are sampled likewise.
    """
    if block.nodes <= limit:
        return block
    first = torch.arange(limit // 2, device=block.edge_index.device)
    labelled = block.edge_label_index
    ends = [block.edge_index[:, : limit // 4], *([] if labelled is None else [labelled[:, : limit // 4]])]
    nodes = torch.cat([first, *(each.reshape(-1) for each in ends)]).unique()
    position = nodes.new_full((block.nodes,), -1)
    position[nodes] = torch.arange(nodes.numel(), device=nodes.device)
    inside = (position[block.edge_index] >= 0).all(dim=0)
    batch = None if block.batch is None else block.batch[nodes].unique(return_inverse=True)[1]
    of_edges: dict[str, Any] = {}
    if labelled is not None:
        kept = (position[labelled] >= 0).all(dim=0)
        attr = None if block.edge_label_attr is None else block.edge_label_attr[kept]
        of_edges = {"edge_label_index": position[labelled[:, kept]], "edge_label_attr": attr}
        of_edges["edge_labels"] = (int(kept.sum()),)
    return Block(
        x=rows.take(block.x, nodes),
        edge_index=position[block.edge_index[:, inside]],
        sizes=(nodes.numel(),),
        node_type=block.types_at(nodes),
        **block.edges_at(inside),
        **of_edges,
        batch=batch,
        graphs=() if batch is None else (int(batch.max()) + 1,),
    )


def _is_required(argument: inspect.Parameter) -> bool:
    return argument.default is argument.empty and argument.kind in (
        argument.POSITIONAL_OR_KEYWORD,
        argument.KEYWORD_ONLY,
    )
