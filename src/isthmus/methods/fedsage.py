"""FedSage and FedSage+: GraphSAGE on each party's own graph, as it is or mended with generated neighbours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as gnn
from torch_geometric.data import Data

from isthmus.data import rows
from isthmus.data.level import Level
from isthmus.data.party import SPLITS, Party
from isthmus.errors import IsthmusError
from isthmus.federation.actions import action
from isthmus.federation.answers import Answer, Mail, Total
from isthmus.federation.letters import Form, UpTo
from isthmus.federation.site import Prepared
from isthmus.federation.transport import Each
from isthmus.federation.verbs import Federation
from isthmus.federation.wire import Payload
from isthmus.methods.base import Listing, Model, State
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.optimizer import Optimizer, server_step
from isthmus.nn.draws import Draws, draws_of
from isthmus.nn.products import Features, Propagation
from isthmus.nn.weights import Weights
from isthmus.options import Options
from isthmus.tasks.base import Task

MAX_COMPARED = 500
"""Most nodes between which all distances are computed at once."""
IDEAL_NOISE = 0.1
"""Standard deviation of the noise on features of true neighbours, as a share of their size."""


class FedSage(FedAvg):
    """FedSage (Zhang et al. 2021): federated averaging of GraphSAGE; edges between parties are ignored.

    A party's nodes learn from their neighbours at the party only. GraphSAGE treats a node apart from the mean of its
    neighbours, and the mean over a part of a neighbourhood is still like the mean over all of it.

    Layer:  h_v <- ReLU(W_1 mean_{u in N_v} h_u + W_2 h_v + b), W, b by layer
    Server: w_{t+1} = sum_k (n_k / n) w_k, over the parties drawn

    N_v are all neighbours at v's own party, where the paper draws some; the last layer has no ReLU. The server reads
    the mean of the parties' weights.
    """

    name: ClassVar[str] = "fedsage"
    listing: ClassVar[Listing] = Listing("coupled")
    levels: ClassVar[tuple[Level, ...]] = ("node", "pair")
    encoder: ClassVar[str] = "sage"

    def check(self, module: nn.Module) -> None:
        if not any(isinstance(layer, gnn.SAGEConv) for layer in module.modules()):
            raise IsthmusError(f"method '{self.name}' trains GraphSAGE: use encoder sage")


class NeighGen(Options):
    """A party's generator of missing neighbours, and how it learns.

    z = GraphSAGE(own graph), its rows scaled to the length of the noise;
    dGen: d = a z + b, the number of missing neighbours; fGen: x = W_2 ReLU(W_1 (z + e) + b_1) + b_2, one of them.

    The paper ends fGen with tanh; here it is linear, because features need not lie within -1 and 1.
    """

    hide: float = Field(0.1, gt=0, lt=1)
    """Share of a party's nodes that are hidden in a step, as examples of missing neighbours."""
    most: int = Field(5, ge=1)
    """Most neighbours that are generated for a node."""
    width: int = Field(32, ge=1)
    """Width of the embeddings; the hidden layer of fGen is twice as wide."""
    epochs: int = Field(20, ge=0)
    """Steps on the party's own data, before the rounds with partners."""
    rounds: int = Field(10, ge=0)
    """Rounds with partners; each is a step on the own loss and on the partners' gradients."""
    nodes: int = Field(128, ge=1)
    """Most nodes for which neighbours are generated in a step; they are drawn in each."""
    lr: float = Field(0.003, gt=0)
    """Learning rate of Adam."""
    weight_degree: float = Field(1.0, ge=0)
    """Weight of the error in the number of missing neighbours (smooth L1)."""
    weight_feature: float = Field(1.0, ge=0)
    """Weight of the squared distance of a generated neighbour to the nearest real one, here and at each partner."""

    def start(self, features: int, draws: Draws, like: Tensor) -> Weights:
        """Weights before training; at first fGen generates zeros."""
        width, inner = self.width, 2 * self.width
        shapes = {
            "encoder.0.own": (width, features), "encoder.0.near": (width, features),
            "encoder.1.own": (width, width), "encoder.1.near": (width, width),
            "degree": (1, width), "feature.0": (inner, width), "feature.1": (features, inner),
        }  # fmt: skip
        weights = {}
        for name, (out, into) in shapes.items():
            uniform = draws.of(name).uniform((out,), into, dtype=like.dtype) * 2 - 1
            weights[f"{name}.weight"] = (uniform * into**-0.5).to(like.device)
            if not name.startswith("encoder"):
                weights[f"{name}.bias"] = like.new_zeros(out)
        weights["feature.1.weight"].zero_()  # or its first values would remain after training
        return weights

    def counts(self, weights: Weights, z: Tensor) -> Tensor:
        """Number of neighbours to generate for each node, `[nodes]`."""
        return _degree(weights, z).nan_to_num().round().clamp(0, self.most).long()

    def step(self, state: Mapping[str, Any], gradients: Weights) -> dict[str, Any]:
        """The state of a party's generator after a step of Adam."""
        options = Optimizer(optimizer="adam", lr=self.lr, weight_decay=0.0)
        at = int(state["step"]) + 1
        weights, first, second = server_step(options, at, state["weights"], gradients, state["first"], state["second"])
        return {"step": at, "weights": weights, "first": first, "second": second}


class FedSagePlus(FedSage):
    """FedSage+ (Zhang et al. 2021): parties mend their graphs with generated neighbours, then FedSage.

    Each party hides some of its nodes and trains a generator (`NeighGen`) to predict how many neighbours a node misses
    and their features. Partners then send gradients that bring generated neighbours nearer to their own nodes. Last,
    each party adds generated neighbours to its graph and trains on it; only own nodes are trained on and evaluated.

    Encoder:  z_v = GraphSAGE(own graph without the hidden nodes), of fixed length
    dGen:     d_v = a z_v + b, how many neighbours of v are missing
    fGen:     x_v = W_2 ReLU(W_1 (z_v + e) + b_1) + b_2,  e ~ N(0, I) for each one
    Own:      L_i = wd mean_v smoothL1(d_v - hidden neighbours of v)
                    + wf mean_v min_{u hidden, of v} |x_v - m_i(u)|^2
    Others':  L_ij = mean_v min_m |x_v - m|^2, over the means m of party j
    Step:     Adam along grad L_i + wf sum_j grad_{fGen} L_ij
    Mended:   v gets round(d_v) neighbours x_v, from 0 to most

    wd and wf are weight_degree and weight_feature, |.|^2 is a mean over features, m_i(u) the mean of the group of nodes
    that u is in at party i. The paper's losses compare with a node's features x_u, and its fGen ends with tanh.

    In the set-up the server reads the mean square of all features, as a sum over parties. A party sends its partners
    the weights of its fGen and, for some nodes drawn in each round, embeddings plus noise; each returns the gradient of
    these weights. The server passes both on.

    From such gradients a party can solve for what its generator was compared with. Therefore no generator meets a
    node's features, but only means over groups of `min_size` or more similar nodes. Embeddings of own nodes do travel,
    as in the paper. Their noise is drawn from the study's seed: whoever knows the seed can subtract it.

    With `ideal` nothing is generated. Each party sends the features of its border nodes, with little noise, to the
    parties at the other end of their edges, which join them to their own nodes by these edges. The public code of
    FedGCN (Yao et al. 2023) stands for FedSage+ in this way, with N(0, 0.1) on features of 0 and 1; on others the noise
    is in proportion. It bounds what a generator can reach, and hides nothing.
    """

    name: ClassVar[str] = "fedsage-plus"
    nouns: ClassVar[Mapping[str, str]] = {
        "squares": "squared features",
        "nodes": "numbers of nodes",
        "inputs": "inputs of the neighbour generator",
        "show/weights": "weights of the neighbour generator",
        "feature": "gradients of the neighbour generator",
        "rows": "features with little noise",
    }
    listing: ClassVar[Listing] = Listing(
        "coupled", leaves="generators, embeddings of some nodes with noise, and gradients for them, from party to party"
    )

    neighgen: NeighGen = NeighGen()
    """The generator of missing neighbours."""
    partners: int = Field(5, ge=0)
    """Parties that a generator is sent to in a round; they are drawn in each."""
    min_size: int = Field(5, ge=1)
    """Fewest nodes whose features are averaged before a generator meets them; the paper's 1 discloses raw features."""
    ideal: bool = False
    """Replace generated neighbours by the true ones across the border, their features plus noise of a tenth of their
    size: discloses features, a bound for comparison."""

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        if self.ideal and state.once("mend"):
            federation.exchange("disclose")
            federation.ask("join")
            yield state
        elif state.once("mend"):
            federation.ask("start", {"scale": _root_mean(federation.total("scale"), model.features)})
            count = min(self.partners, len(federation.parties) - 1)
            for at in range(self.neighgen.rounds if count else 0):
                federation.exchange("show", _partners(federation, count, at))
                federation.exchange("compare")
                federation.ask("learn")
            federation.ask("mend")
            yield state
        yield from super().server(federation, model, state)

    def calls(self, module: nn.Module) -> dict[str, int]:
        learned = int(not self.ideal)
        counts = {
            **dict.fromkeys(("scale", "start", "mend"), learned),
            **dict.fromkeys(("show", "compare", "learn"), learned * self.neighgen.rounds),
            **dict.fromkeys(("disclose", "join"), int(self.ideal)),
        }
        return {**super().calls(module), **counts}

    class AtParty(Prepared, FedAvg.AtParty):
        method: FedSagePlus

        def __init__(
            self, method: FedSagePlus, parties: Sequence[Party], task: Task, module: nn.Module, **where: Any
        ) -> None:
            super().__init__(method, parties, task, module, **where)
            # for a party that fails in the set-up
            self.begin(prepared=[_not_mended(party) for party in parties])

        @action("total", bounds={"squares": None, "nodes": "nodes"})
        def scale(self, request: Payload) -> Answer:
            """Sum of squared features and number of nodes, which scale the generators' losses."""
            squares = [_values(party.graph.x).double().square().sum() for party in self.cohort.parties]
            return Answer({"squares": torch.stack(squares), "nodes": torch.tensor(self.cohort.sizes)})

        @action("ask")
        def start(self, request: Payload) -> Answer:
            """Every party trains its generator alone."""
            options, scale, states, groups_of = self.method.neighgen, float(request["scale"]), [], []
            self.kept["scale"] = [scale] * len(self.cohort)
            for at, party in enumerate(self.cohort.parties):
                draws = self.draws("neighgen")[at]
                groups = similar_nodes(party.graph.x, self.method.min_size, draws)
                ground = Ground.of(party, groups, scale, self.hosted.device)
                weights = options.start(party.features, draws, ground.targets)
                zeros = {name: torch.zeros_like(weight) for name, weight in weights.items()}
                state: dict[str, Any] = {"step": 0, "weights": weights, "first": zeros, "second": zeros}
                for epoch in range(options.epochs):
                    state = options.step(state, own_gradients(options, state["weights"], ground, draws.of(epoch)))
                states.append(state)
                groups_of.append(groups)
            self.kept["neighgen"], self.kept["groups"] = states, groups_of
            return Answer({})

        def due_inputs(self, sender: str) -> Form:
            """fGen of a party is as large as any other; it generates for `nodes` nodes, `most` for each."""
            options, (weights,) = self.method.neighgen, self._weights()
            inputs = UpTo(options.nodes * options.most, weights["degree.weight"][0])
            return {"inputs": inputs, "weights": _of_features(weights)}

        @action("exchange", protected=True, form=due_inputs)
        def show(self, request: Payload) -> Mail:
            """Send fGen and its inputs to each partner."""
            options, letters = self.method.neighgen, []
            each = zip(self._grounds(), self._weights(), request["partners"], self.draws("show"), strict=True)
            for ground, weights, partners, draws in each:
                z = encode(weights, ground, ground.edges)
                chosen = draws.some(ground.nodes, options.nodes).to(z.device)
                z = z[chosen].repeat_interleave(options.counts(weights, z[chosen]), dim=0)
                letter = {"inputs": _noisy(z, draws), "weights": _of_features(weights)}
                letters.append(dict.fromkeys(partners.split("/"), letter) if z.size(0) else {})
            return Mail(letters)

        def due_gradients(self, sender: str) -> Form:
            """One for each weight of the own fGen."""
            return _of_features(*self._weights())

        @action("exchange", protected=True, form=due_gradients)
        def compare(self, request: Payload) -> Mail:
            """Return to each party the gradient of its fGen, by distance to the nearest means here."""
            options, letters = self.method.neighgen, []
            each = zip(self._grounds(), self.received("show"), self.draws("compare"), strict=True)
            for ground, received, draws in each:
                chosen = draws.some(ground.targets.size(0), options.nodes).to(ground.targets.device)
                targets = ground.targets[chosen]
                answered = received.items() if targets.size(0) else ()
                letters.append({who: others_gradients(one["weights"], one["inputs"], targets) for who, one in answered})
            return Mail(letters)

        @action("ask")
        def learn(self, request: Payload) -> Answer:
            """A step along the own gradient and the partners'."""
            options, states = self.method.neighgen, []
            each = zip(
                self.kept.each("neighgen"),
                self._grounds(),
                self.received("compare"),
                self.draws("learn"),
                strict=True,
            )
            for state, ground, received, draws in each:
                gradients = own_gradients(options, state["weights"], ground, draws)
                for partner in sorted(received):
                    for name, gradient in received[partner].items():
                        gradients[name] = gradients[name] + options.weight_feature * gradient
                states.append(options.step(state, gradients))
            self.kept["neighgen"] = states
            return Answer({})

        @action("ask")
        def mend(self, request: Payload) -> Answer:
            """From here on the parties train on their mended graphs."""
            options, generated_parts = self.method.neighgen, []
            for ground, weights, draws in zip(self._grounds(), self._weights(), self.draws("mend"), strict=True):
                z = encode(weights, ground, ground.edges)
                missing = options.counts(weights, z)
                x = ground.scale * generate(weights, _noisy(z.repeat_interleave(missing, dim=0), draws))
                generated_parts.append(_one_each(missing, x))
            self.kept["prepared"] = generated_parts
            self.invalidate()
            for name in ("neighgen", "groups"):  # no longer needed
                self.kept[name] = [False] * len(generated_parts)
            for name in ("show", "compare"):
                self.inbox.pop(name, None)
            return Answer({})

        def due_rows(self, sender: str) -> Form | None:
            """Features of the sender's nodes at edges to own nodes."""
            (party,) = self.held.parties
            if sender not in (across := _across(party)):
                return None
            (_, _, ids), x = across[sender], rows.to_dense(party.graph.x)
            return {"ids": ids, "rows": x.abs().max().expand(ids.numel(), party.features)}

        @action("exchange", protected=True, form=due_rows)
        def disclose(self, request: Payload) -> Mail:
            """Send the features of own nodes at edges to other parties, with noise, to these parties."""
            letters = []
            for party, draws in zip(self.held.parties, self.draws("disclose"), strict=True):
                own_letters, much = {}, IDEAL_NOISE * _size(party.graph.x)
                for other, (ids, at, _) in _across(party).items():
                    x = rows.to_dense(rows.take(party.graph.x, at))
                    noise = draws.of(other).normal(x.shape[:1], party.features, dtype=x.dtype)
                    own_letters[other] = {"ids": ids, "rows": x + much * noise}
                letters.append(own_letters)
            return Mail(letters)

        @action("ask")
        def join(self, request: Payload) -> Answer:
            """From here on the parties train on graphs with the nodes across their border."""
            parts = zip(self.held.parties, self.received("disclose"), strict=True)
            self.kept["prepared"] = [_joined(party, letters) for party, letters in parts]
            self.invalidate()
            self.inbox.pop("disclose", None)
            return Answer({})

        def trained_on(self, party: Party, prepared: Any) -> Party:
            return add_nodes(party, *(prepared[name].cpu() for name in ("x", "edges", "weight")))

        def _grounds(self) -> list[Ground]:
            known = self.kept.each("groups"), self.kept.each("scale")
            return [Ground.of(*each, self.hosted.device) for each in zip(self.cohort.parties, *known, strict=True)]

        def _weights(self) -> list[Weights]:
            return [state["weights"] for state in self.kept.each("neighgen")]


def _root_mean(total: Total, features: int) -> float:
    """The root of the mean square of all features."""
    mean = float(total.sum("squares")) / max(1.0, float(total.sum("nodes")) * features)
    return math.sqrt(max(0.0, mean)) or 1.0


def _values(x: Tensor) -> Tensor:
    return x.values() if rows.is_sparse(x) else x


def _size(x: Tensor) -> float:
    """The root mean square of the entries that are not 0: 1 where features are 0 and 1."""
    entries = _values(x)
    return float(entries[entries != 0].double().square().mean().sqrt()) if bool(entries.any()) else 0.0


def _partners(federation: Federation, count: int, at: int) -> Each:
    """For every party its partners in a round; each party is a partner equally often."""
    names = federation.parties
    order = draws_of(federation.seed, "partners", at).order((len(names),)).tolist()
    ring = [names[position] for position in order] * 2
    return Each({ring[k]: {"partners": "/".join(ring[k + 1 : k + 1 + count])} for k in range(len(names))})


# ---- what a party's generator learns from


@dataclass(frozen=True, eq=False)
class Ground:
    """A party's own graph, and the mean features that generators are compared with.

    Arguments:
        x: features, `[nodes, features]`, sparse or dense.
        edges: `[2, edges]`.
        groups: the group of each node, `[nodes]`; empty if the party has too few nodes for one.
        scale: divides features before they are compared.
    """

    x: Tensor
    edges: Tensor
    groups: Tensor
    scale: float

    @classmethod
    def of(cls, party: Party, groups: Tensor, scale: float, device: torch.device) -> Ground:
        return cls(party.graph.x.to(device), party.graph.edge_index.to(device), groups.to(device), scale)

    @property
    def nodes(self) -> int:
        return self.x.size(0)

    @cached_property
    def features(self) -> Any:
        """The encoder's input."""
        return Features(self.x) if rows.is_sparse(self.x) else self.x

    @cached_property
    def targets(self) -> Tensor:
        """The means, `[means, features]`."""
        return means(self.x, self.groups) / self.scale


def similar_nodes(x: Tensor, min_size: int, draws: Draws) -> Tensor:
    """Group nodes with similar features, at least `min_size` in each; return each node's group, empty if there are
    fewer.

    The node farthest from the mean and those nearest to it are a group; then the same with the rest. A large graph is
    first split at random.

    >>> similar_nodes(torch.tensor([[0.0], [9.0], [8.0], [1.0], [2.0]]), 2, draws_of(0)).tolist()
    [1, 0, 0, 1, 1]
    """
    nodes = x.size(0)
    if nodes < min_size:
        return torch.empty(0, dtype=torch.long)
    groups = torch.empty(nodes, dtype=torch.long)
    parts = draws.order((nodes,)).tensor_split(-(-nodes // max(MAX_COMPARED, 2 * min_size)))
    first = 0
    for part in parts:
        part = part.sort().values
        own = _similar(rows.to_dense(rows.take(x, part)), min_size)
        groups[part] = first + own
        first += int(own.max()) + 1
    return groups


def _similar(x: Tensor, min_size: int) -> Tensor:
    far = (x - x.mean(0)).norm(dim=1)
    apart = torch.cdist(x, x)
    groups = torch.full((x.size(0),), -1)
    left, group = x.size(0), 0
    while left >= 2 * min_size:
        around = apart[far.argmax()].topk(min_size, largest=False).indices
        groups[around] = group
        far[around] = -1.0
        apart[:, around] = torch.inf
        left, group = left - min_size, group + 1
    groups[groups < 0] = group
    return groups


def means(x: Tensor, groups: Tensor) -> Tensor:
    """Mean features of every group, `[groups, features]`."""
    count, width = int(groups.max()) + 1 if groups.numel() else 0, x.size(1)
    sums = torch.zeros(count, width, dtype=x.dtype, device=x.device)
    if not count:
        return sums
    if rows.is_sparse(x):
        at = groups.repeat_interleave(x.crow_indices().diff()) * width + x.col_indices()
        sums.view(-1).index_add_(0, at, x.values())
    else:
        sums.index_add_(0, groups, x)
    return sums / torch.bincount(groups).unsqueeze(1)


# ---- the generator


def encode(weights: Weights, ground: Ground, edges: Tensor) -> Tensor:
    """Two layers of GraphSAGE along these edges, rows scaled to the length of the noise, `[nodes, width]`."""
    degree = torch.bincount(edges[1], minlength=ground.nodes).to(weights["degree.bias"].dtype)
    mean = Propagation(edges, degree[edges[1]].reciprocal(), ground.nodes)
    own, near = (weights[f"encoder.0.{name}.weight"] for name in ("own", "near"))
    h = (F.linear(ground.features, own) + mean @ F.linear(ground.features, near)).relu()
    own, near = (weights[f"encoder.1.{name}.weight"] for name in ("own", "near"))
    return F.normalize(F.linear(h, own) + mean @ F.linear(h, near)) * own.size(0) ** 0.5


def generate(weights: Weights, inputs: Tensor) -> Tensor:
    """fGen: one neighbour's features for every row, `[rows, features]`."""
    h = F.linear(inputs, weights["feature.0.weight"], weights["feature.0.bias"]).relu()
    return F.linear(h, weights["feature.1.weight"], weights["feature.1.bias"])


def _degree(weights: Weights, z: Tensor) -> Tensor:
    """dGen: the number of missing neighbours of every node, `[nodes]`."""
    return F.linear(z, weights["degree.weight"], weights["degree.bias"]).squeeze(1)


def _of_features(weights: Weights) -> Weights:
    """The weights of fGen, which partners receive."""
    return {name: weight for name, weight in weights.items() if name.startswith("feature")}


def own_gradients(options: NeighGen, weights: Weights, ground: Ground, draws: Draws) -> Weights:
    """Gradients of a party's own loss in one step, with some of its nodes hidden."""
    weights = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    edges, device = ground.edges, ground.edges.device
    hidden = torch.zeros(ground.nodes, dtype=torch.bool)
    count = min(max(1, round(options.hide * ground.nodes)), ground.nodes - 1)
    hidden[draws.of("hidden").some(ground.nodes, count)] = True
    hidden = hidden.to(device)
    z = encode(weights, ground, edges[:, ~hidden[edges].any(0)])
    lost = edges[:, hidden[edges[0]] & ~hidden[edges[1]]]
    missing = torch.bincount(lost[1], minlength=ground.nodes)
    loss = options.weight_degree * F.smooth_l1_loss(_degree(weights, z)[~hidden], missing[~hidden].to(z.dtype))
    if lost.size(1) and ground.groups.numel():
        chosen = lost[1].unique()
        chosen = chosen[draws.of("chosen").some(chosen.numel(), options.nodes).to(device)]
        known = _some_hidden(lost, chosen, options.most, draws.of("known"))
        row = torch.arange(chosen.numel(), device=device).repeat_interleave(missing[chosen].clamp(max=options.most))
        x = generate(weights, _noisy(z[chosen[row]], draws.of("noise")))
        near = torch.where(known >= 0, ground.groups[known], -1)[row]
        loss = loss + options.weight_feature * _distance(x, ground.targets, near)
    found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    return {
        name: torch.zeros_like(weight) if gradient is None else gradient
        for (name, weight), gradient in zip(weights.items(), found, strict=True)
    }


def others_gradients(weights: Weights, inputs: Tensor, targets: Tensor) -> Weights:
    """Gradients of another party's fGen, by distance of its outputs to the nearest targets."""
    weights = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    x = generate(weights, inputs)
    apart = torch.cdist(x.detach(), targets)
    loss = (x - targets[apart.argmin(1)]).square().mean()
    return dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))


def _distance(x: Tensor, targets: Tensor, near: Tensor) -> Tensor:
    """Mean squared distance of rows to the nearest of their targets; `near` is `[rows, choices]`, -1 for none."""
    with torch.no_grad():
        apart = (x.unsqueeze(1) - targets[near.clamp(min=0)]).square().sum(2)
        nearest = near.gather(1, apart.masked_fill(near < 0, torch.inf).argmin(1, keepdim=True)).squeeze(1)
    return (x - targets[nearest]).square().mean()


def _some_hidden(lost: Tensor, chosen: Tensor, most: int, draws: Draws) -> Tensor:
    """Draw up to `most` hidden neighbours of each chosen node, `[chosen, most]`, -1 for none."""
    order = draws.order((lost.size(1),)).to(lost.device)
    lost = lost[:, order]
    lost = lost[:, torch.argsort(lost[1], stable=True)]
    place = torch.searchsorted(chosen, lost[1]).clamp(max=chosen.numel() - 1)
    first = torch.searchsorted(lost[1].contiguous(), lost[1].contiguous())
    rank = torch.arange(lost.size(1), device=lost.device) - first
    use = (chosen[place] == lost[1]) & (rank < most)
    table = torch.full((chosen.numel(), most), -1, device=lost.device)
    table[place[use], rank[use]] = lost[0, use]
    return table


def _noisy(z: Tensor, draws: Draws) -> Tensor:
    """z plus Gaussian noise of variance 1."""
    return z + draws.of("noise").normal(z.shape[:1], z.size(1), dtype=z.dtype).to(z.device)


# ---- mended graphs


def _not_mended(party: Party) -> dict[str, Tensor]:
    return _one_each(torch.zeros(party.nodes, dtype=torch.long), torch.zeros(0, party.features))


def _one_each(missing: Tensor, x: Tensor) -> dict[str, Tensor]:
    """New nodes, each joined to one own node: `missing` says how many for each, `[nodes]`."""
    ends = torch.arange(missing.numel()).repeat_interleave(missing.cpu())
    return {"x": x, "edges": torch.stack([ends, torch.arange(ends.numel())]), "weight": torch.ones(ends.numel())}


def _across(party: Party) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """By other party: ids and positions of own nodes at edges to it, and ids of its nodes at them, sorted by id."""
    found: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
    if (border := party.border) is None or party.ids is None:
        return found
    for owner in border.owner.unique().tolist():
        here = border.owner == owner
        at = border.inner[here].unique()
        at = at[party.ids[at].argsort()]
        found[border.owners[owner]] = party.ids[at], at, border.outer[here].unique()
    return found


def _joined(party: Party, letters: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The nodes across the border that the letters have rows for, and the edges to them."""
    new, border = _not_mended(party), party.border
    parts = [new]
    for sender in sorted(letters):
        assert border is not None, "no letter is due without a border"
        ids, x = letters[sender]["ids"].cpu(), letters[sender]["rows"].cpu()
        here = border.owner == border.owners.index(sender)
        first = sum(part["x"].size(0) for part in parts)
        edges = torch.stack([border.inner[here], first + torch.searchsorted(ids, border.outer[here])])
        weight = torch.ones(edges.size(1)) if border.weight is None else border.weight[here]
        parts.append({"x": x, "edges": edges, "weight": weight})
    return {name: torch.cat([part[name] for part in parts], dim=int(name == "edges")) for name in new}


def add_nodes(party: Party, x: Tensor, edges: Tensor, weight: Tensor) -> Party:
    """Add nodes to a party's graph; they are in no split and in no pair.

    Arguments:
        x: their features.
        edges: each from an own node to a new one, counted from 0, `[2, edges]`.
        weight: of these edges, `[edges]`, for a graph that has weights.
    """
    count, graph = x.size(0), party.graph
    if not count:
        return replace(party, border=None)
    ends = torch.stack([edges[0], party.nodes + edges[1]])
    whole = Data(edge_index=torch.cat([graph.edge_index, ends, ends.flip(0)], dim=1), y=graph.y)
    whole.x, whole.num_nodes = torch.cat([rows.to_dense(graph.x), x.to(graph.x.dtype)]), party.nodes + count
    if (own := getattr(graph, "edge_weight", None)) is not None:
        whole.edge_weight = torch.cat([own, *[weight.to(own.dtype)] * 2])
    masks = {split: getattr(party, split) for split in SPLITS}
    if party.level == "node":
        whole.y = torch.cat([graph.y, graph.y.new_zeros(count, *graph.y.shape[1:])])
        masks = {split: torch.cat([mask, mask.new_zeros(count)]) for split, mask in masks.items()}
    ids = party.ids
    if ids is not None:  # ids that no other node has
        ids = torch.cat([ids, min(0, int(ids.min())) - 1 - torch.arange(count)])
    return replace(party, graph=whole, ids=ids, border=None, **masks)
