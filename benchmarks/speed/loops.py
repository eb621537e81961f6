"""Methods as plain loops over parties with PyTorch Geometric, as `methods.py` times them.

A class for each method, and one for its party. What `rounds.py` says of its loop holds for all: a model per party made
once, dense features, a fresh optimiser in every round, and an evaluation of each party's model. What does not change
from round to round is computed once. Models are made of PyG's layers; those that a method adds (masks, the
networks of AdaFGL, the generator of FedTAD) are the plain torch modules of Isthmus.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from rounds import LR, WEIGHT_DECAY, Bench, Plain, PlainParty
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import softmax, subgraph

from isthmus.data import rows
from isthmus.data.party import Party
from isthmus.methods.fedpub import proxy_graph
from isthmus.methods.gcfl import minimum_cut
from isthmus.methods.gcfl_plus import warped_distance
from isthmus.nn.adaptive import message, similar
from isthmus.nn.decoupled import Diffused
from isthmus.nn.draws import draws_of, seed_of, torch_seeded
from isthmus.nn.projected import SmoothedHead
from isthmus.nn.pseudo import NOISE, PseudoNodes, join_similar, sameness
from isthmus.nn.structure import walk_encoding
from isthmus.nn.weights import Weights


def copied(weights: Weights) -> Weights:
    return {name: value.clone() for name, value in weights.items()}


def mean(states: Sequence[Weights], shares: Sequence[Any], names: Sequence[str]) -> Weights:
    """The weighted mean of these weights."""
    return {name: sum(state[name] * share for state, share in zip(states, shares, strict=True)) for name in names}


def matrix_of(edge_index: Tensor, nodes: int, *, self_loops: bool = True) -> Tensor:
    """D^-1/2 (A + I) D^-1/2, sparse."""
    index, value = gcn_norm(edge_index, None, nodes, add_self_loops=self_loops)
    return torch.sparse_coo_tensor(index.flip(0), value, (nodes, nodes)).to_sparse_csr()


# ---- rounds in which parties end with one model, or with a part of it


class Loop(Plain):
    """FedAvg."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench, cached=False)
        self.bench = bench

    def models(self) -> list[Weights]:
        """The weights of each party's model."""
        return [self.weights for _ in self.parties]


class Own(Loop):
    """Ground of the methods that evaluate models of the parties' own."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        for party in self.parties:
            party.model.load_state_dict(self.weights, strict=False)  # PyG's linear layers leave masks out

    def evaluate(self) -> tuple[int, int]:
        val, test = torch.stack([torch.stack(each.hits(each.model.eval())) for each in self.parties]).sum(0).tolist()
        return val, test

    def models(self) -> list[Weights]:
        return [{**party.model.state_dict(), **dict(party.model.named_parameters())} for party in self.parties]


class Part(Own):
    """Ground of the methods that average some weights and leave the others at their parties."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self.weights = {name: self.weights[name] for name in self.shared()}

    def shared(self) -> list[str]:
        raise NotImplementedError

    def evaluate(self) -> tuple[int, int]:
        for party in self.parties:
            party.model.load_state_dict(self.weights, strict=False)
        return super().evaluate()


class FedBN(Part):
    def shared(self) -> list[str]:
        norms = [f"{name}." for name, part in self.server.named_modules() if isinstance(part, nn.BatchNorm1d)]
        return [name for name in self.weights if not name.startswith(tuple(norms))]


class FedPer(Part):
    def shared(self) -> list[str]:
        return [name for name in self.weights if not name.startswith("convs.1.")]


class FedRepParty(PlainParty):
    def fit(self, weights: Weights) -> Weights:
        self.model.load_state_dict(weights, strict=False)
        self.model.train()
        body, head = self.model.convs
        for fitted, fixed, epochs in ((head, body, 10), (body, head, 1)):
            fixed.requires_grad_(False)
            optimizer = torch.optim.AdamW(fitted.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
            for _ in range(epochs):
                self.step(optimizer)
            fixed.requires_grad_(True)
        return self.model.state_dict()


class FedRep(FedPer):
    Party = FedRepParty


# ---- Ditto and FedProto: models that stay at their parties


class DittoParty(PlainParty):
    """With a model of its own beside the one that it trains for all."""

    own: nn.Module

    def fit(self, weights: Weights) -> Weights:
        found = copied(super().fit(weights))
        model, self.model = self.model, self.own.train()
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
        optimizer.zero_grad()
        self.loss().backward()
        for name, value in self.model.named_parameters():
            value.grad += value.detach() - weights[name]
        optimizer.step()
        self.model = model
        return found

    def hits(self, model: nn.Module) -> list[Tensor]:
        return super().hits(self.own.eval())


class Ditto(Own):
    Party = DittoParty

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        for party in self.parties:
            party.own = copy.deepcopy(party.model)

    def models(self) -> list[Weights]:
        return [party.own.state_dict() for party in self.parties]


class FedProtoParty(PlainParty):
    classes: int
    prototypes: Tensor | None = None
    opened: Tensor
    """Classes of two parties or more."""

    def means(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The mean embedding and the number of training nodes of each class."""
        y = self.y[self.train]
        count = torch.bincount(y, minlength=self.classes)
        sums = z.new_zeros(self.classes, z.size(1)).index_add(0, y, z[self.train])
        return sums / count.clamp(min=1).unsqueeze(1), count

    def loss(self) -> Tensor:
        z = self.model.embed(self.x, self.edge_index)
        loss = F.cross_entropy(self.model.convs[1](z, self.edge_index)[self.train], self.y[self.train])
        if self.prototypes is None:
            return loss
        means, count = self.means(z)
        held = self.opened & (count > 0)
        return loss + (means - self.prototypes)[held].square().sum()

    @torch.no_grad()
    def hits(self, model: nn.Module) -> list[Tensor]:
        apart = torch.cdist(model.embed(self.x, self.edge_index), self.prototypes)
        right = apart.masked_fill(~self.opened, math.inf).argmin(dim=1) == self.y
        return [right[self.val].sum(), right[self.test].sum()]


class FedProto(Own):
    Party = FedProtoParty

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        for party in self.parties:
            party.classes = bench.task.outputs

    def train(self) -> None:
        for party in self.parties:
            party.fit({})
        with torch.no_grad():
            of_parties = [each.means(each.model.eval().embed(each.x, each.edge_index)) for each in self.parties]
        counts = torch.stack([count for _, count in of_parties]).unsqueeze(2)
        prototypes = (torch.stack([means for means, _ in of_parties]) * counts).sum(0) / counts.sum(0).clamp(min=1)
        opened = (counts > 0).sum(0).squeeze(1) >= 2
        for party in self.parties:
            party.prototypes, party.opened = prototypes, opened


# ---- MOON and FGSSL: other losses


class MoonParty(PlainParty):
    received: nn.Module
    previous: nn.Module | None = None

    def fit(self, weights: Weights) -> Weights:
        found = super().fit(weights)
        if self.previous is None:
            self.previous = copy.deepcopy(self.model)
        self.previous.load_state_dict(found)
        return found

    def loss(self) -> Tensor:
        z = self.model.embed(self.x, self.edge_index)
        output = self.model.convs[1](z, self.edge_index)
        loss = F.cross_entropy(output[self.train], self.y[self.train])
        if self.previous is None:
            return loss
        with torch.no_grad():
            sent, before = (each.embed(self.x, self.edge_index)[self.train] for each in (self.received, self.previous))
        near, far = (torch.cosine_similarity(z[self.train], each, dim=1) / 0.5 for each in (sent, before))
        return loss + F.softplus(far - near).mean()


class Moon(Loop):
    Party = MoonParty

    def train(self) -> None:
        self.server.load_state_dict(self.weights)
        self.server.train()
        for party in self.parties:
            party.received = self.server
        super().train()


class FgsslParty(PlainParty):
    received: nn.Module
    near: Tensor
    strong: tuple[float, float]
    weak: tuple[float, float]

    def fit(self, weights: Weights) -> Weights:
        with torch.no_grad():
            self.near = self.received.embed(self.x, self.edge_index)
        return super().fit(weights)

    def view(self, edges: float, features: float) -> tuple[Tensor, Tensor]:
        shown = torch.rand(self.x.size(1)) >= features
        return self.x * shown, self.edge_index[:, torch.rand(self.edge_index.size(1)) >= edges]

    def loss(self) -> Tensor:
        z = self.model.embed(self.x, self.edge_index)
        output = self.model.convs[1](z, self.edge_index)
        loss = F.cross_entropy(output[self.train], self.y[self.train])
        own = self.model.embed(*self.view(*self.strong))
        with torch.no_grad():
            given = self.received.embed(*self.view(*self.weak))
        contrast = self.contrast(own[self.train], given[self.train], self.y[self.train])
        return loss + 0.1 * contrast + 0.1 * self.divergence(z)

    @staticmethod
    def contrast(own: Tensor, given: Tensor, y: Tensor) -> Tensor:
        score = F.normalize(own, dim=1) @ F.normalize(given, dim=1).T / 0.1
        same = y.unsqueeze(1) == y
        others = score.masked_fill(same, -1e30).logsumexp(1, keepdim=True)
        return ((torch.logaddexp(score, others) - score) * same).sum(1).div(same.sum(1)).mean()

    def divergence(self, z: Tensor) -> Tensor:
        source, target = self.edge_index
        due, found = (self.shares(each, source, target) for each in (self.near, z))
        of_node = z.new_zeros(len(z)).index_add(0, target, due * (due / found).log())
        return of_node[target.unique()].mean()

    @staticmethod
    def shares(h: Tensor, source: Tensor, target: Tensor) -> Tensor:
        return softmax(F.cosine_similarity(h[source], h[target]) / 0.1, target, num_nodes=len(h))


class Fgssl(Loop):
    Party = FgsslParty

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        method = bench.method
        for party in self.parties:
            party.strong = method.strong_edges, method.strong_features
            party.weak = method.weak_edges, method.weak_features

    def train(self) -> None:
        self.server.load_state_dict(self.weights)
        self.server.eval()
        for party in self.parties:
            party.received = self.server
        super().train()


# ---- mixes of the parties' models


class Mixed(Own):
    """Ground of the methods whose server mixes models for each party."""

    def train(self) -> None:
        states = [copied(party.fit({})) for party in self.parties]
        names = [name for name in states[0] if not name.endswith(".mask")]
        for party, shares in zip(self.parties, self.shares(), strict=True):
            party.model.load_state_dict(mean(states, shares.tolist(), names), strict=False)

    def shares(self) -> Tensor:
        """How much of each model is in each party's, `[parties, parties]`."""
        raise NotImplementedError


def by_cosine(vectors: Sequence[Tensor], sharpness: float) -> Tensor:
    unit = F.normalize(torch.stack(list(vectors)), dim=1)
    return (sharpness * unit @ unit.T).softmax(1)


class PairsHead(SmoothedHead):
    """The head that reads smoothed embeddings, as its formula is written: with a kernel of all pairs of nodes."""

    def forward(self, h: Tensor, *edges: Tensor) -> Tensor:
        s = h @ self.direction / h.norm(dim=1).max()
        kernel = (-((s.unsqueeze(1) - s.unsqueeze(0)) ** 2) / self.bandwidth**2).exp()
        return self.linear(torch.cat([h, kernel @ h / kernel.sum(dim=1, keepdim=True)], dim=1))


class FedAux(Mixed):
    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        for party in self.parties:
            party.model.body.linear.__class__ = PairsHead

    def shares(self) -> Tensor:
        return by_cosine([party.model.body.linear.direction.detach() for party in self.parties], 10.0)


class FedPubParty(PlainParty):
    received: list[Tensor]

    def fit(self, weights: Weights) -> Weights:
        self.received = [each.detach().clone() for each in self.by_kind(masks=False)]
        return super().fit(weights)

    def by_kind(self, *, masks: bool) -> list[Tensor]:
        return [each for name, each in self.model.named_parameters() if name.endswith(".mask") == masks]

    def loss(self) -> Tensor:
        size = sum(each.abs().sum() for each in self.by_kind(masks=True))
        own = self.by_kind(masks=False)
        gap = torch.cat([(each - near).flatten() for each, near in zip(own, self.received, strict=True)])
        return super().loss() + 1e-6 * size + 1e-3 * gap.norm()


class FedPub(Mixed):
    Party = FedPubParty

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        proxy = proxy_graph(0, self.parties[0].x.size(1), self.parties[0].x.dtype)
        self.proxy = proxy.x, proxy.edge_index

    @torch.no_grad()
    def shares(self) -> Tensor:
        models = [party.model.eval() for party in self.parties]
        return by_cosine([model.convs[0](*self.proxy).mean(0) for model in models], 3.0)


class FedGtaParty(PlainParty):
    """With features diffused once for GAMLP."""

    def __init__(self, party: Party, model: nn.Module, device: torch.device) -> None:
        super().__init__(party, model, device)
        self.matrix = matrix_of(self.edge_index, len(self.y))
        self.degree = torch.bincount(self.edge_index[1], minlength=len(self.y))
        if isinstance(model, Diffused):
            self.x, model.diffused = model.diffusion.diffuse(self.x, self.edge_index), True

    @torch.no_grad()
    def described(self) -> tuple[Tensor, Tensor]:
        """Moments of the soft labels, and how sure they are."""
        start = self.model.eval()(self.x, self.edge_index).softmax(1)
        start[self.train] = F.one_hot(self.y[self.train], start.size(1)).to(start.dtype)
        y = start
        for _ in range(5):
            y = 0.5 * (self.matrix @ y) + 0.5 * start
            y[self.train] += start[self.train]
        soft, even = y.softmax(1), (y / 20).softmax(1)
        soft[self.train] = even[self.train] = start[self.train]
        central = soft - soft.mean(0)
        moments = torch.cat([(each**p).mean(0) for each in (soft, central) for p in range(1, 11)])
        sure = (self.degree * (even.size(1) / math.e + torch.xlogy(even, even).sum(1))).sum()
        return moments, sure.clamp(min=0)


class FedGta(Mixed):
    Party = FedGtaParty

    def shares(self) -> Tensor:
        moments, sure = zip(*(party.described() for party in self.parties), strict=True)
        unit = F.normalize(torch.stack(moments), dim=1)
        near = (unit @ unit.T > 0.5) | torch.eye(len(unit), dtype=torch.bool)
        weight = near * torch.stack(sure)
        return weight / weight.sum(1, keepdim=True)


# ---- networks of each party's own


class AdaParty(PlainParty):
    """What follows from the shared model's predictions is computed when it is final."""

    optimizer: torch.optim.Optimizer | None = None
    p: Tensor
    relation: Tensor
    smooth: Tensor
    score = 0.5

    @torch.no_grad()
    def relate(self) -> None:
        self.p = self.model.body.eval()(self.x, self.edge_index).softmax(1)
        self.relation = similar(self.p)
        adjacent = torch.zeros_like(self.relation)
        adjacent[self.edge_index[1], self.edge_index[0]] = 1
        a = 0.05 * adjacent + 0.95 * (self.relation > 0.999) + torch.eye(len(self.y))
        scale, hops = a.sum(1).rsqrt(), [self.x]
        for _ in range(3):
            hops.append(scale.unsqueeze(1) * (a @ (scale.unsqueeze(1) * hops[-1])))
        self.smooth, self.score = torch.cat(hops, dim=1), self.homophily()

    def homophily(self) -> float:
        """How often label propagation is right on a random half of the training labels."""
        items = self.train.nonzero().squeeze(1)
        known, hidden = items[torch.randperm(len(items))].tensor_split([len(items) // 2])
        classes = self.p.size(1)
        start = torch.full_like(self.p, 1 / classes)
        start[known] = F.one_hot(self.y[known], classes).to(start.dtype)
        matrix, y = matrix_of(self.edge_index, len(self.y)), start
        for _ in range(10):
            y = (matrix @ y + start) / 2
        return float((y[hidden].argmax(1) == self.y[hidden]).float().mean())

    def outputs(self) -> list[Tensor]:
        net = self.model
        h, of_hops, messages = (
            each[1:](F.linear(self.smooth, each[0].weight, each[0].bias))
            for each in (net.homophilous, net.of_hops, net.messages)
        )
        return [h, net.of_features(self.x), of_hops, message(messages, self.relation, 0.2)]

    def personalise(self, epochs: int) -> None:
        if self.optimizer is None:
            self.relate()
            own = [each for name, each in self.model.named_parameters() if not name.startswith("body.")]
            self.optimizer = torch.optim.Adam(own, lr=LR, weight_decay=WEIGHT_DECAY)
        self.model.train()
        for _ in range(epochs):
            self.optimizer.zero_grad()
            outputs = self.outputs()
            loss = sum(F.cross_entropy(each[self.train], self.y[self.train]) for each in outputs)
            (loss + F.mse_loss(outputs[0].softmax(1), self.p)).backward()
            self.optimizer.step()

    @torch.no_grad()
    def hits(self, model: nn.Module) -> list[Tensor]:
        h, *others = (each.softmax(1) for each in self.outputs())
        both = self.score * (h + self.p) / 2 + (1 - self.score) * sum(others) / 3
        right = both.argmax(dim=1) == self.y
        return [right[self.val].sum(), right[self.test].sum()]


class AdaFgl(Own):
    """Its first round is federated averaging, all others are personal."""

    Party = AdaParty

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self.rounds = 0

    def round(self) -> None:
        self.rounds += 1
        if self.rounds == 1:
            states = [{n: w.clone() for n, w in self.first(party).items()} for party in self.parties]
            counts = [party.count for party in self.parties]
            self.weights = mean(states, [count / sum(counts) for count in counts], list(states[0]))
            for party in self.parties:
                party.model.load_state_dict(self.weights, strict=False)
            return
        for party in self.parties:
            party.personalise(self.bench.method.personal.epochs)
        self.evaluate()

    @staticmethod
    def first(party: Any) -> Weights:
        body = party.model.body.train()
        optimizer = torch.optim.AdamW(body.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
        F.cross_entropy(body(party.x, party.edge_index)[party.train], party.y[party.train]).backward()
        optimizer.step()
        return {f"body.{name}": value for name, value in body.state_dict().items()}

    def models(self) -> list[Weights]:
        return [{name: value for name, value in own.items() if name != "score"} for own in super().models()]


class OpFglParty(PlainParty):
    optimizer: torch.optim.Optimizer
    given: Tensor
    trust: Tensor

    def start(self, weights: Weights, strength: float) -> None:
        self.model.load_state_dict(weights)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LR)
        with torch.no_grad():
            self.given = self.model.eval()(self.x, self.edge_index).log_softmax(1)
        (source, target), nodes, classes = self.edge_index, len(self.y), self.given.size(1)
        both = self.train[source] & self.train[target]
        alike = torch.bincount(target[both & (self.y[source] == self.y[target])], minlength=nodes)
        share = alike.to(self.x.dtype) / torch.bincount(target[both], minlength=nodes).clamp(min=1)
        h = torch.zeros(classes).index_add(0, self.y[self.train], share[self.train])
        start = F.one_hot(self.y, classes) * self.train.to(self.x.dtype).unsqueeze(1)
        matrix, labels = matrix_of(self.edge_index, nodes, self_loops=False), start
        for _ in range(2):
            labels = (0.9 * (matrix @ labels) + 0.1 * start).clamp(0, 1)
        labels[labels.sum(1) == 0] = 1 / classes
        self.trust = strength * (labels / (1 + h.log1p())).sum(1)

    def loss(self) -> Tensor:
        output = self.model(self.x, self.edge_index)
        apart = F.kl_div(output.log_softmax(1), self.given, reduction="none", log_target=True).sum(1)
        return F.cross_entropy(output[self.train], self.y[self.train]) + (self.trust * apart).mean()

    def tune(self, epochs: int) -> None:
        self.model.train()
        for _ in range(epochs):
            self.step(self.optimizer)


class OpFgl(Own):
    """The surrogate and the model trained on it are made once, by Isthmus for both sides."""

    Party = OpFglParty

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        weights = bench.run(1).go().weights
        for party in self.parties:
            party.start(weights, bench.method.strength)

    def train(self) -> None:
        for party in self.parties:
            party.tune(self.bench.method.tuning.epochs)


# ---- FedTAD: a server that learns from all models on generated graphs


class FedTad(Loop):
    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        classes, features = bench.task.outputs, self.parties[0].x.size(1)
        with torch_seeded(seed_of(0, "generator")):
            self.generator = PseudoNodes(features, classes)
        found = torch.stack([self.reliability(party, classes) for party in self.parties])
        self.held = (found.sum(0) > 0).nonzero().squeeze(1)
        self.reliable = found / found.sum(0).clamp(min=1e-30)
        self.student = bench.plain_model(cached=False)
        self.of_generator = torch.optim.Adam(self.generator.parameters(), lr=1e-3, weight_decay=WEIGHT_DECAY)
        self.of_student = torch.optim.Adam(self.student.parameters(), lr=1e-3, weight_decay=WEIGHT_DECAY)
        self.rounds = 0

    @staticmethod
    def reliability(party: PlainParty, classes: int) -> Tensor:
        nodes = len(party.y)
        unit = F.normalize(torch.cat([party.x, walk_encoding(party.edge_index, nodes, 5, party.x.dtype)], 1), dim=1)
        source, target = party.edge_index
        near = torch.ones(nodes).index_add(0, target, (unit[source] * unit[target]).sum(1))
        each = near / (1 + torch.bincount(target, minlength=nodes))
        return torch.zeros(classes).index_add(0, party.y[party.train], each[party.train]).clamp(min=0)

    def train(self) -> None:
        super().train()
        self.rounds += 1
        for party in self.parties:
            party.model.eval()
        self.student.load_state_dict(self.weights)
        self.student.eval()
        for epoch in range(self.bench.method.server_epochs):
            self.learn(epoch)
        self.weights = copied(self.student.state_dict())

    def learn(self, epoch: int) -> None:
        method = self.bench.method
        nodes = method.generated
        z = draws_of(0, "noise", self.rounds, epoch).normal((nodes,), NOISE)  # that of Isthmus, to compare weights
        z = z.to(self.parties[0].x.dtype)
        c = self.held[torch.arange(nodes) * len(self.held) // nodes]
        weight = (self.reliable / torch.bincount(c, minlength=self.reliable.size(1)).clamp(min=1))[:, c]
        x = self.generator(z, c)
        edges = join_similar(x, method.neighbours)
        own = [party.model(x, edges).log_softmax(1) for party in self.parties]
        wrong = sum((w * -p.gather(1, c.unsqueeze(1)).squeeze(1)).sum() for w, p in zip(weight, own, strict=True))
        self.of_generator.zero_grad()
        (wrong - self.divergence(x, edges, own, weight) + sameness(z, x)).backward()
        self.of_generator.step()
        with torch.no_grad():
            x = self.generator(z, c)
            edges = join_similar(x, method.neighbours)
            own = [party.model(x, edges).log_softmax(1) for party in self.parties]
        for _ in range(method.student_steps):
            self.of_student.zero_grad()
            self.divergence(x, edges, own, weight).backward()
            self.of_student.step()

    def divergence(self, x: Tensor, edges: Tensor, own: Sequence[Tensor], weight: Tensor) -> Tensor:
        given = self.student(x, edges).log_softmax(1)
        return sum((w * (p.exp() * (p - given)).sum(1)).sum() for w, p in zip(weight, own, strict=True))


# ---- whole graphs


class GraphParty(PlainParty):
    """The graphs of each split as one batch, collated once, as they all fit into a step."""

    def __init__(self, party: Party, model: nn.Module, device: torch.device) -> None:
        self.model, self.count = model.to(device), int(party.train.sum())
        self.batches = [self.batch(party, each) for each in (party.train, party.val, party.test)]

    @staticmethod
    def batch(party: Party, mask: Tensor) -> Data:
        graph, inside = party.graph, mask[party.graph.batch]
        edges, _ = subgraph(inside, graph.edge_index, relabel_nodes=True)
        batch = (mask.cumsum(0) - 1)[graph.batch[inside]]
        return Data(x=rows.to_dense(graph.x)[inside], edge_index=edges, y=graph.y[mask], batch=batch)

    @staticmethod
    def output(model: nn.Module, graphs: Data) -> Tensor:
        return model(graphs.x, graphs.edge_index, None, graphs.batch, len(graphs.y))

    def loss(self) -> Tensor:
        return F.cross_entropy(self.output(self.model, self.batches[0]), self.batches[0].y)

    @torch.no_grad()
    def hits(self, model: nn.Module) -> list[Tensor]:
        return [(self.output(model, each).argmax(dim=1) == each.y).sum() for each in self.batches[1:]]


class GraphLoop(Loop):
    """FedAvg on whole graphs."""

    Party = GraphParty


class FedStar(Part):
    Party = GraphParty

    def shared(self) -> list[str]:
        return [name for name in self.weights if ".structure." in name]


class Gcfl(Own):
    Party = GraphParty

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self.clusters = [(list(range(len(self.parties))), self.weights, 0)]
        self.trained = [name for name, _ in self.server.named_parameters()]
        self.rounds = 0

    def flat(self, weights: Weights) -> Tensor:
        return torch.cat([weights[name].flatten() for name in self.trained])

    def train(self) -> None:
        method = self.bench.method
        self.rounds += 1
        after = []
        for members, weights, since in self.clusters:
            states = [copied(self.parties[at].fit(weights)) for at in members]
            counts = [self.parties[at].count for at in members]
            new = mean(states, [count / sum(counts) for count in counts], list(weights))
            start = self.flat(weights)
            updates = torch.stack([self.flat(state) - start for state in states])
            self.remember(members, updates)
            split = len(members) > 2 and self.rounds > method.warm_up and self.may_split(since)
            if split and (self.flat(new) - start).norm() < method.eps1 and updates.norm(dim=1).max() > method.eps2:
                halves = minimum_cut(self.similarity(members, updates))
                after += [([members[at] for at in half], new, self.rounds) for half in halves]
            else:
                after.append((members, new, since))
        self.clusters = after
        for members, weights, _ in self.clusters:
            for at in members:
                self.parties[at].model.load_state_dict(weights)

    def remember(self, members: Sequence[int], updates: Tensor) -> None:
        """Keep what a later split needs."""

    def may_split(self, since: int) -> bool:
        return True

    def similarity(self, members: Sequence[int], updates: Tensor) -> Tensor:
        unit = F.normalize(updates, dim=1)
        return 1 + unit @ unit.T


class GcflPlus(Gcfl):
    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self.lengths: list[list[float]] = [[] for _ in self.parties]

    def remember(self, members: Sequence[int], updates: Tensor) -> None:
        for at, length in zip(members, updates.norm(dim=1).tolist(), strict=True):
            self.lengths[at] = [*self.lengths[at], length][-self.bench.method.length :]

    def may_split(self, since: int) -> bool:
        return self.rounds - since >= self.bench.method.length

    def similarity(self, members: Sequence[int], updates: Tensor) -> Tensor:
        own = [self.lengths[at] for at in members]
        distance = torch.tensor([[warped_distance(one, other) for other in own] for one in own])
        return distance.max() - distance
