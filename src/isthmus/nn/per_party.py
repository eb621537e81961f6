"""Turns any PyG module into one that holds a stack of weights, one slice per party."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from isthmus.data import rows
from isthmus.data.party import Block
from isthmus.errors import IsthmusError, did_you_mean
from isthmus.nn.draws import Draws
from isthmus.nn.products import Columns, Features
from isthmus.nn.stacks import FirstLayer, Stack, dense
from isthmus.nn.twins import Bank, twin_of, without_caches
from isthmus.nn.weights import Weights, body_weights, head_of, initial_weights, statistics


@dataclass
class Leaf:
    """A tensor that is trained, and how it divides among the parties.

    Arguments:
        name: the weight it is (part of); a first-layer weight kept by touched rows has a second leaf `name#rest`.
        tensor: what autograd sees.
        sizes: rows of the tensor that are each party's.
        shared: the slice moves when any party moves (the rest of a first-layer weight, equal at all that train).
    """

    name: str
    tensor: Tensor
    sizes: tuple[int, ...]
    shared: bool = False

    def parts(self, of: Tensor) -> tuple[Tensor, ...]:
        """`of` (shaped like the leaf) as one view per party."""
        return tuple(of.split(self.sizes))


class PerParty:
    """A model for a cohort: shared weights (one slice for all) or a stack of them (one slice per party).

    Known layers work on all parties side by side: Linear layers, inside PyG's convolutions too, become stacked ones;
    biases, attention vectors and normalisation weights are repeated for the rows of their party. Functional dropout
    draws per party. A module with a layer that is not known, or whose own `forward` mixes rows (found by comparing
    both ways once), is run for one party after another: slower, never wrong.

    Arguments:
        module: any PyG module with `forward(x, edge_index, ...)`; of `edge_weight`, `batch` and `batch_size` it gets
            what its signature names.
        parties: number of slices.

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
        self.side_by_side = self._twin is not None
        self._probed = False
        self._arguments = _arguments(self.module)
        self._features: dict[int, Features] = {}
        self._columns: dict[Any, tuple[Tensor, Columns]] = {}
        self._shared: Weights | None = initial_weights(self.module)
        self._stacks: dict[str, Stack] = {}
        self._frozen: frozenset[str] = frozenset()
        self._counters = {name: b for name, b in self.module.named_buffers() if not b.is_floating_point()}

    # ---- weights

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take weights: of each one slice for all parties, or a stack with a leading party dimension."""
        names = initial_weights(self.module)
        for name, like in names.items():
            if name not in weights:
                raise IsthmusError(f"weights lack '{name}' of the model")
            if weights[name].shape not in (like.shape, (self.parties, *like.shape)):
                raise IsthmusError(
                    f"weight '{name}' has shape {tuple(weights[name].shape)}, the model's is {tuple(like.shape)}"
                )
        moved = {name: weights[name].detach().to(self.device) for name in names}
        alone = {name for name, like in names.items() if moved[name].shape == like.shape}
        self._shared, self._stacks = moved, {}
        if alone != names.keys():
            self._shared = None
            self._stacks = {n: w.expand(self.parties, *w.shape) if n in alone else w for n, w in moved.items()}

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
            block: what will be trained on.
            trains: which parties take steps at all.
            touched_rows: every party that trains takes the same number of steps, and only its data moves its weights
                otherwise than those of other parties: then a first layer may be stored by touched rows.
            only: names of the weights to train; the others keep their values, running statistics too, and get no
                gradient. None trains all.
        """
        known = initial_weights(self.module)
        for name in only or ():
            if name not in known:
                raise IsthmusError(f"cannot train '{name}', no weight of the model: {did_you_mean(name, known)}")
        if not self._probed:
            self._probe(block)
        trainable = {n for n, p in self.module.named_parameters() if p.requires_grad and (only is None or n in only)}
        self._frozen = frozenset(name for name in statistics(self.module) if only is not None and name not in only)
        leaves: list[Leaf] = []
        shared, stacks = self._shared, self.weights()
        self._stacks, self._shared = {}, None
        for name, stack in stacks.items():
            if name == self.first_layer and rows.is_sparse(block.x):
                use = touched_rows and shared is not None
                layer = self._first_layer(block, shared[name] if shared and use else stack, use, trains)
                self._stacks[name] = layer
                if name in trainable:
                    leaves.append(Leaf(name, layer.party_rows.requires_grad_(), layer.columns.sizes))
                    if use:
                        leaves.append(Leaf(f"{name}#rest", layer.shared_rows, (1, 1), shared=True))
                continue
            full = dense(stack).clone(memory_format=torch.contiguous_format)
            self._stacks[name] = full
            if name in trainable:
                leaves.append(Leaf(name, full.requires_grad_(), (1,) * self.parties))
        self.training = True
        return leaves

    def _first_layer(self, block: Block, stack: Stack, touched: bool, trains: Sequence[bool]) -> FirstLayer:
        columns = self._columns_of(block, touched)
        if touched:
            assert isinstance(stack, Tensor)
            by_input = stack.t().contiguous()
            kept, rest = by_input.index_select(0, columns.index), torch.stack([by_input, by_input])
        else:
            full = dense(stack)
            kept = full.transpose(1, 2).reshape(-1, full.size(1)).contiguous()
            rest = full.new_zeros(2, full.size(2), full.size(1))
        return FirstLayer(columns, kept, rest, tuple(trains))

    def like_leaves(self, leaves: Sequence[Leaf], weights: Mapping[str, Tensor]) -> list[Tensor]:
        """Weights (shared or stacked) in the shapes of the leaves, to be added to their gradients."""
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
                shaped.append(value.transpose(1, 2).reshape(leaf.tensor.shape))
            else:
                shaped.append(value.t()[layer.columns.index])
        return shaped

    def stop_training(self) -> None:
        """Freeze the weights; what autograd held is let go."""
        for stack in self._stacks.values():
            for tensor in (stack,) if isinstance(stack, Tensor) else (stack.party_rows, stack.shared_rows):
                tensor.requires_grad_(False).grad = None
        self.training = False

    @property
    def first_layer(self) -> str | None:
        """The weight that meets sparse features, where the module names one."""
        return getattr(self.module, "first_layer", None) if self.side_by_side else None

    @property
    def keeps_to_components(self) -> bool:
        """Whether the module says that an output row depends on rows in its own connected component alone."""
        return bool(getattr(self.module, "keeps_to_components", False))

    # ---- forward

    def __call__(
        self, block: Block, generators: Sequence[torch.Generator] | None = None, *, embed: bool = False
    ) -> Any:
        """The module's output for every row of the block: a tensor, or several, the rows of each party after party.

        Arguments:
            block: graphs of all parties; a party may be absent from it (size 0).
            generators: one per party, for dropout; needed in training only.
            embed: return `(output, embedding)`. The embedding is what the module's head (see `head_of`) receives: a
                row per node, or per graph, with its gradients.
        """
        if len(block.sizes) != self.parties:
            raise IsthmusError(f"the block has {len(block.sizes)} parties, the model {self.parties}")
        if not self._probed:
            self._probe(block)
        way = self._together if self.side_by_side else self._one_by_one
        if not embed:
            return way(block, generators)
        with self._head_inputs(block.sizes) as inputs:
            output = way(block, generators)
        return output, torch.cat(inputs)

    @contextmanager
    def _head_inputs(self, sizes: Sequence[int]) -> Iterator[list[Tensor]]:
        """What the head receives in the passes meanwhile: once side by side, or party after party."""
        head, weights_before = head_of(self.module), body_weights(self.module)
        inputs: list[Tensor] = []

        def receive(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            h = args[0] if args else next(iter(named.values()))
            if not weights_before or isinstance(h, Features):
                raise IsthmusError(
                    f"model {type(self.module).__name__} has no embedding before its head '{head}', which reads the "
                    "features: use a model with more layers"
                )
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
                f"model {type(self.module).__name__} calls its head '{head}' not once per forward pass: name a "
                "submodule that it calls once"
            )

    def resize(self, parties: int) -> None:
        """Start anew with this many slices, all at the initial weights."""
        self.parties = parties
        self.training = False
        self._shared, self._stacks = initial_weights(self.module), {}

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The weights as they are now, without gradients, as after training."""
        training, self.training = self.training, False
        try:
            with torch.no_grad():
                yield
        finally:
            self.training = training

    def _together(self, block: Block, generators: Sequence[torch.Generator] | None) -> Any:
        bank = self._bank
        bank.stacked = self._shared is None
        bank.weights = dict(self._shared if self._shared is not None else self._unfrozen())
        bank.layouts = (block.sizes, block.graphs) if block.graphs else (block.sizes,)
        assert self._twin is not None
        self._twin.train(self.training)
        sparse = rows.is_sparse(block.x) and self.first_layer is not None
        x = self._features_of(block.x) if sparse else rows.to_dense(block.x)
        try:
            with Draws(generators, bank.layouts) if self.training and generators is not None else nullcontext():
                return self._twin(**self._call(block, x))
        finally:
            bank.weights = {}

    def _one_by_one(self, block: Block, generators: Sequence[torch.Generator] | None) -> Any:
        outputs = []
        self.module.train(self.training)
        for at, weights in enumerate(self._every_slice()):
            if block.sizes[at] == 0:
                continue
            part = block.for_party(at) if self.parties > 1 else block
            arguments = self._call(part, rows.to_dense(part.x))
            counters = {name: counter.clone() for name, counter in self._counters.items()}
            if not self.training or generators is None:
                outputs.append(functional_call(self.module, weights | counters, kwargs=arguments))
                continue
            with _seeded(generators[at]), Draws([generators[at]], (part.sizes,)):
                outputs.append(functional_call(self.module, weights | counters, kwargs=arguments))
        if isinstance(outputs[0], tuple):
            return tuple(torch.cat(each) for each in zip(*outputs, strict=True))
        return torch.cat(outputs)

    def _every_slice(self) -> Iterator[Weights]:
        if self._shared is not None:
            yield from (self._shared for _ in range(self.parties))
            return
        full = {name: dense(stack) for name, stack in self._unfrozen().items()}
        for at in range(self.parties):
            yield {name: stack[at] for name, stack in full.items()}

    def _unfrozen(self) -> dict[str, Stack]:
        """The stacks, with copies of running statistics that a pass in training must not move."""
        copies = {name: dense(self._stacks[name]).clone() for name in self._frozen if self.training}
        return {**self._stacks, **copies}

    def _call(self, block: Block, x: Any) -> dict[str, Any]:
        graphs = sum(block.graphs) if block.graphs else None
        offered = {
            "x": x,
            "edge_index": block.edge_index,
            "edge_weight": block.edge_weight,
            "batch": block.batch,
            "batch_size": graphs,
            "num_graphs": graphs,
        }
        return {name: offered[name] for name in self._arguments}

    def _probe(self, block: Block) -> None:
        """Compare both ways once, on some rows of the two parties with most edges, each with weights of its own."""
        self._probed = True
        alone = [block.for_party(at) for at, size in enumerate(block.sizes) if size]
        if not self.side_by_side or not alone:
            return
        alone.sort(key=lambda each: (each.edge_index.size(1), each.nodes))
        samples = [_some_rows(each) for each in (alone[-1], alone[-2:][0])]
        pair = _side_by_side([replace(sample, x=rows.to_dense(sample.x)) for sample in samples])
        if pair.edge_weight is not None:  # PyG normalises weights below 0 in another way, see `normalised_edges`
            pair = replace(pair, edge_weight=pair.edge_weight.abs())
        trial = PerParty(self.module, 2, self.device)
        trial._probed = True
        noise = torch.Generator().manual_seed(0)
        weights = {}
        for name, weight in initial_weights(self.module).items():
            apart = torch.rand((2, *weight.shape), generator=noise).to(weight.device, weight.dtype)
            weights[name] = weight + 0.1 * apart * (weight.abs().mean() + 0.1)
        for training in (False, True):
            outputs: list[Any] = []
            for way in (trial._together, trial._one_by_one):
                trial.load({name: value.clone() for name, value in weights.items()})
                trial.training = training
                sources = [torch.Generator().manual_seed(at) for at in range(2)]
                try:
                    with torch.no_grad(), torch.random.fork_rng(devices=[]):
                        outputs.append(way(pair, sources))
                except Exception:
                    if len(outputs) == 1:  # the plain way fails too: the first real pass will say why
                        return
                    self.side_by_side = False
                    return
            both = [each if isinstance(each, tuple) else (each,) for each in outputs]
            if not all(map(_alike, *both)):
                self.side_by_side = False
                return

    def _features_of(self, x: Tensor) -> Features:
        if id(x) not in self._features:
            while len(self._features) >= 4:  # what is trained on and what is evaluated on take turns
                self._features.pop(next(iter(self._features)))
            self._features[id(x)] = Features(x)
        return self._features[id(x)]

    def _columns_of(self, block: Block, touched: bool) -> Columns:
        key = (id(block.x), block.sizes, touched)
        if key not in self._columns:
            self._columns.clear()
            self._columns[key] = block.x, Columns(block.x, block.sizes, touched)
        return self._columns[key][1]


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


@contextmanager
def _seeded(source: torch.Generator) -> Iterator[None]:
    """Torch's global draws follow a party's generator, which moves on only if any were made."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (1,), generator=source.clone_state())))
        before = torch.get_rng_state()
        yield
        if not torch.equal(before, torch.get_rng_state()):
            torch.randint(2**62, (1,), generator=source)


def per_party(module: nn.Module, parties: int, device: torch.device | None = None) -> PerParty:
    """`module` with one slice of weights per party."""
    return PerParty(module, parties, device)


def _arguments(module: nn.Module) -> tuple[str, ...]:
    named = inspect.signature(module.forward).parameters
    if "x" not in named or "edge_index" not in named:
        raise IsthmusError(
            f"model {type(module).__name__} has no forward(x, edge_index, ...): name its first arguments so"
        )
    offered = ("x", "edge_index", "edge_weight", "batch", "batch_size", "num_graphs")
    return tuple(name for name in offered if name in named)


def _side_by_side(blocks: Sequence[Block]) -> Block:
    nodes, graphs = 0, 0
    edges, batches = [], []
    for block in blocks:
        edges.append(block.edge_index + nodes)
        batches.append(None if block.batch is None else block.batch + graphs)
        nodes, graphs = nodes + block.nodes, graphs + sum(block.graphs)
    weights = [block.edge_weight for block in blocks if block.edge_weight is not None]
    return Block(
        x=rows.concat([block.x for block in blocks]),
        edge_index=torch.cat(edges, dim=1),
        sizes=tuple(size for block in blocks for size in block.sizes),
        edge_weight=torch.cat(weights) if weights else None,
        batch=torch.cat([b for b in batches if b is not None]) if blocks[0].batch is not None else None,
        graphs=tuple(count for block in blocks for count in block.graphs),
    )


def _some_rows(block: Block, limit: int = 200) -> Block:
    """Some rows of one party's block, the ends of its first edges among them, and the edges between these rows."""
    if block.nodes <= limit:
        return block
    first = torch.arange(limit // 2, device=block.edge_index.device)
    kept = torch.cat([first, block.edge_index[:, : limit // 4].reshape(-1)]).unique()
    place = kept.new_full((block.nodes,), -1)
    place[kept] = torch.arange(kept.numel(), device=kept.device)
    inside = (place[block.edge_index] >= 0).all(dim=0)
    batch = None if block.batch is None else block.batch[kept].unique(return_inverse=True)[1]
    return Block(
        x=rows.take(block.x, kept),
        edge_index=place[block.edge_index[:, inside]],
        sizes=(kept.numel(),),
        edge_weight=None if block.edge_weight is None else block.edge_weight[inside],
        batch=batch,
        graphs=() if batch is None else (int(batch.max()) + 1,),
    )
