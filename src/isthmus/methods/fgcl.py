"""FGCL: many small graphs with secret edges; a contrast between noisy views regains accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import AfterValidator, Field
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from isthmus.data import rows
from isthmus.data.cache import digest
from isthmus.data.cohort import Block
from isthmus.data.level import Level
from isthmus.data.party import SPLITS, Party
from isthmus.errors import IsthmusError
from isthmus.federation.actions import action
from isthmus.federation.answers import Answer
from isthmus.federation.site import Prepared
from isthmus.federation.verbs import Federation
from isthmus.federation.wire import Payload
from isthmus.methods.base import Listing, Model, State, Weighting
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.training import LocalTraining
from isthmus.nn.draws import Draws
from isthmus.nn.encoders import ChebFixed, Readout, uses_edge_weights
from isthmus.privacy.account import Account
from isthmus.privacy.edges import NodePairs, PostProcessing
from isthmus.privacy.mechanisms import Mechanism
from isthmus.tasks.base import Step, Task


def budgets(epsilons: list[float]) -> list[float]:
    """Return the budgets; one out of range is an error."""
    if not all(0 < epsilon <= 1e6 for epsilon in epsilons):
        raise ValueError("each privacy budget must be above 0 and at most 1e6")
    return epsilons


class FGCL(FedAvg):
    """FGCL (Yang et al. 2022), Algorithm 1: contrast between two views of a graph, each with noise on its edges.

    A party releases each of its graphs as two views (3): every pair of nodes gets a weight, 1 or 0 plus noise. Only
    views are trained on, so the model discloses no more of an edge than they do; a contrast between the two regains
    some of the accuracy that the noise costs. With k graphs of other labels, drawn from a stack of the last ones:

    L_c = -log(e_0 / (e_0 + sum_t e_t)), t the k graphs     (6)
    e_t = exp(cos(h_t, h_1) / tau), h_0 and h_1 the views of the graph itself
    L_e = (c(p(h_0), y) + c(p(h_1), y)) / 2     (9)
    L   = gamma L_c + L_e     (10)
    Server: theta <- ((M - c) theta + sum_S theta_i) / M, S the c of M drawn   (11)

    With one epsilon there is one view and no contrast: the paper's "Federated + noise". The server reads the mean of
    the parties' weights.

    Literally, Algorithm 1 draws new views at every visit of a graph and trains on raw weights, graph after graph:
    `preset = "paper"`. It then spends both budgets in every epoch. The default draws views once and clamps their
    weights to [0, 1]. The stack holds graphs, which are contrasted by their present views.

    As printed, the factors of (11) do not add up to one; here parties that take no part count with the old weights. The
    paper does not say which view predicts a graph's class: the default is the mean over both (`evaluated_on`).
    """

    name: ClassVar[str] = "fgcl"
    tuned: ClassVar[tuple[str, ...]] = ("gamma", "temperature")
    listing: ClassVar[Listing] = Listing(
        "secret-edges",
        1,
        "nothing more; edges get noise before anything is computed, and epsilon is accounted for",
        costs="some 6 times federated averaging's time per round (PROTEINS, 10 parties)",
    )
    levels: ClassVar[tuple[Level, ...]] = ("graph",)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"redraw": "epoch", "post": {"clamp": False}, "local": {"batch_size": 1}, "temperature": 1.0}
    }

    preset: Literal["", "paper"] = ""
    """Where options come from that are not given: "paper" takes Algorithm 1 as printed, with views that are drawn at
    every visit of a graph, raw weights, batches of one graph, and the temperature of Table I, 1."""
    weighting: Weighting = "even"
    """What a party's weights are weighted by: evenly (as in the paper), its training items, or all its items."""
    local: LocalTraining = LocalTraining(epochs=1, batch_size=32)
    """Training at the parties; the paper streams graphs: batch_size = 1."""
    mechanism: Literal["laplace", "gaussian", "randomized-response"] = "laplace"
    """Noise on the edges."""
    epsilons: Annotated[list[float], AfterValidator(budgets)] = Field([1.0, 1.0], min_length=1, max_length=2)
    """Privacy budget of each view, one or two; a run spends their sum."""
    delta: float = Field(1e-5, gt=0, lt=1)
    """Probability with which Gaussian noise may exceed its budget."""
    post: PostProcessing = PostProcessing()
    """Processing of the noisy weights."""
    features: Literal["safe", "all"] = "safe"
    """Leave out features that follow from edges, such as degrees; or use all, and claim no privacy."""
    redraw: Literal["never", "epoch"] = "never"
    """Draw views once; or in every epoch, that is, at every visit of a graph, as in Algorithm 1 (line 6), which spends
    their budget every time."""
    gamma: float = Field(0.1, ge=0)
    """Weight of the contrast."""
    temperature: float = Field(0.1, gt=0)
    """Temperature of the contrast (tau). The paper has 1; 0.1 is better on validation molecules of BACE."""
    negatives: int = Field(10, ge=1)
    """Graphs of other labels to contrast a graph with (k)."""
    stack: int = Field(100, ge=1)
    """Graphs to draw these from: the last ones trained on (N), with their present views."""
    evaluated_on: Literal["views", "first", "graphs"] = "views"
    """Evaluate the mean over a graph's views, its first view, or the graph itself, on which no privacy is claimed."""

    def left_out(self, parties: Sequence[Party]) -> Sequence[str]:
        columns = parties[0].structural
        if not self.hides_structural or columns is None or not columns.numel():
            return ()
        return (f"leaves out {columns.numel()} of {parties[0].features} features, which follow from edges",)

    def check(self, module: nn.Module) -> None:
        bits = self.post.threshold is not None or self.mechanism == "randomized-response"
        bits = bits and self.post.keep != "degrees"
        if not isinstance(module, Readout) or not (bits or uses_edge_weights(module)):
            raise IsthmusError(
                "method 'fgcl' needs an encoder that weighs edges: gcn, graphconv, tag, lightgcn, or gat or sage with "
                "model.weighted = true; for another encoder of Isthmus set post.threshold"
            )
        raw = not self.post.clamp and not bits
        if raw and any(isinstance(layer, ChebFixed) for layer in module.modules()):
            raise IsthmusError("method 'fgcl': encoder 'cheb' needs weights of at least 0: set post.clamp = true")

    def mechanisms(self) -> list[Mechanism]:
        """The mechanism of each view."""
        kind = Mechanism.named(self.mechanism)
        more = {"delta": self.delta} if "delta" in kind.model_fields else {}
        return [kind.read({"epsilon": epsilon, **more}, "method 'fgcl'") for epsilon in self.epsilons]

    @property
    def hides_structural(self) -> bool:
        return self.features != "all"

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        state.start(weights=model.weights())
        if state.once("protect"):
            state.draws = dict.fromkeys(federation.ask("protect"), 1)
        for state.round in state.rounds(self.rounds):
            chosen = [party for party in federation.sample(self.fraction) if party in state.draws]
            if not chosen:  # all parties drawn failed in the set-up
                yield state
                continue
            total = federation.total("train", {"weights": state.weights}, of=chosen)
            new, took_part = total.mean("weights", default=state.weights), len(chosen) - len(total.missing)
            share = took_part / len(federation.parties)
            state.weights = {name: torch.lerp(old, new[name], share) for name, old in state.weights.items()}  # (11)
            if self.redraw == "epoch":
                state.draws |= {party: state.draws[party] + self.local.epochs for party in chosen}
            yield state

    def account(self, state: State) -> Account | None:
        """The spending of the party whose views were drawn most often; none if no privacy is claimed."""
        if self.evaluated_on == "graphs" or self.features == "all":
            return None
        return self.spent_by(max(state.draws.values(), default=0))

    def most_spent(self) -> float | None:
        if self.evaluated_on == "graphs" or self.features == "all":
            return None
        return self.spent_by(self.planned_draws()).cost().epsilon

    def planned_draws(self) -> int:
        """How often a run draws all views, at most."""
        return 1 + (self.rounds * self.local.epochs if self.redraw == "epoch" else 0)

    def spent_by(self, draws: int) -> Account:
        """The cost of drawing all views so many times."""
        account = Account()
        for mechanism in self.mechanisms():
            account.add("edge", mechanism.cost, draws, "a view of each graph")
        return account

    def calls(self, module: nn.Module) -> dict[str, int]:
        return {**super().calls(module), "protect": 1}

    class AtParty(Prepared, FedAvg.AtParty):
        method: FGCL

        def __init__(self, method: FGCL, parties: Sequence[Party], task: Task, module: nn.Module, **where: Any):
            if method.hides_structural:
                parties = [safe(party) for party in parties]
            super().__init__(method, parties, task, module, **where)
            self.pairs = [NodePairs.of_graphs(_sizes(party)) for party in parties]
            self._stacks: list[Tensor] = []
            self._has_negatives: Tensor | None = None
            views = [str(view) for view in range(len(method.epsilons))]
            nothing = [dict.fromkeys(views, torch.zeros(len(pairs))) for pairs in self.pairs]  # released: no edge
            stack = [torch.empty(0, dtype=torch.long) for _ in self.pairs]
            self.begin(prepared=nothing, stack=stack, drawn=[1] * len(parties))

        @action("ask", silent=True)
        def protect(self, request: Payload) -> Answer:
            """Draw views of all graphs (3), and start the stack with the last graphs."""
            self._draw([1] * len(self.cohort))
            self.kept["stack"] = [
                _last(party, min(self.method.negatives, self.method.stack)) for party in self.held.parties
            ]
            return Answer({})

        def _draw(self, numbers: Sequence[int]) -> None:
            """Draw noise for every pair of nodes of every graph of the parties asked, for each view.

            A draw is known by its number, whatever else was asked before, so no order of requests gives another one.

            Arguments:
                numbers: by party which of its draws in a run this is, from 1.
            """
            if max(numbers) > (most := self.method.planned_draws()):
                raise IsthmusError(f"refused: the study plans {most:,} draws of noise, and all of them were drawn")
            asked = [self.pairs[at] for at in self.positions]
            bits = [
                pairs.bits(party.graph.edge_index, party.graph.x.dtype)
                for pairs, party in zip(asked, self.held.parties, strict=True)
            ]
            views: list[dict[str, Tensor]] = [{} for _ in asked]
            for view, mechanism in enumerate(self.method.mechanisms()):
                for at, (party, number) in enumerate(zip(self.held.parties, numbers, strict=True)):
                    whose = party.name, number, "noise", view
                    what = mechanism.name, *mechanism.model_dump().values(), digest(bits[at])
                    # equal or proportional noise in two releases would disclose both bits
                    released = mechanism.release(bits[at], self.noise.bits(*whose, *what))
                    views[at][str(view)] = self.method.post.apply(released, asked[at], mechanism.unbiased(released))
            self.kept["prepared"] = views
            self.invalidate()

        def trained_on(self, party: Party, prepared: Any) -> Party:
            """All views of all graphs, view after view; only items of the first view are trained on and evaluated."""
            pairs, views = self.pairs[self.hosted.names.index(party.name)], len(self.method.epsilons)
            graph, graphs = party.graph, party.items
            drawn = [pairs.graph(prepared[str(view)].cpu()) for view in range(views)]
            stacked = Data(
                x=rows.take(graph.x, torch.arange(party.nodes).repeat(views)),
                edge_index=torch.cat([index + view * party.nodes for view, (index, _) in enumerate(drawn)], dim=1),
                edge_weight=torch.cat([weight for _, weight in drawn]),
                y=torch.cat([graph.y] * views),
                batch=torch.cat([_batch(party) + view * graphs for view in range(views)]),
                num_nodes=views * party.nodes,
            )
            stacked.num_graphs = views * graphs
            none = torch.zeros((views - 1) * graphs, dtype=torch.bool)
            masks: dict[str, Any] = {split: torch.cat([getattr(party, split), none]) for split in SPLITS}
            return replace(party, graph=stacked, ids=None, **masks)

        def fit(self, **how: Any) -> Tensor:
            """Local training (lines 4 to 13)."""
            self._stacks = [stack.cpu() for stack in self.kept.each("stack")]
            steps = self.method.local.fit(
                self, self._loss, read=self._read, embed=len(self.method.epsilons) == 2, **how
            )
            self.kept["stack"] = self._stacks
            return steps

        def _read(self, chosen: Tensor, epoch: int, at: int) -> tuple[Block, Tensor]:
            """The graphs of a step: by party first views, second views, and second views of negatives, each once.

            Returns:
                the block, and the output's rows of each graph's views and negatives: `[items, 1]`, or `[items, 2 + k]`.
                A graph without negatives has its own second view in their place, and False in `_has_negatives`.
            """
            if self.method.redraw == "epoch" and at == 0:
                self.kept["drawn"] = [number + 1 for number in self.kept.each("drawn")]
                self._draw(self.kept.each("drawn"))
                self.cohort = self.cohort_of(self.positions)
            order, where, there, first, before = [], [], [], 0, 0
            for which, draws in enumerate(self.draws("negatives", epoch, at)):
                items = self.cohort.items[which]
                own = chosen[(chosen >= first) & (chosen < first + items)].cpu() - first
                read, rows_of = own, torch.arange(own.numel()).unsqueeze(1)
                if len(self.method.epsilons) == 2:
                    read, rows_of = self._contrasted(which, own, items // 2, draws)
                    there.append((rows_of[:, 2:] != rows_of[:, 1:2]).any(1, keepdim=True))
                order.append(read + first)
                where.append(rows_of + before)
                first, before = first + items, before + read.numel()
            device = self.cohort.device
            self._has_negatives = torch.cat(there).to(device) if there else None
            return self.cohort.graphs_of(torch.cat(order).to(device)), torch.cat(where).to(device)

        def _contrasted(self, which: int, own: Tensor, graphs: int, draws: Draws) -> tuple[Tensor, Tensor]:
            """The graphs that a party reads in a step on `own`, and each graph's rows among them."""
            stack, y = self._stacks[which], self.held.parties[which].graph.y
            drawn = _drawn(_differ(y[own], y[stack]), self.method.negatives, draws)
            there = drawn >= 0
            met, at = torch.unique(stack[drawn[there]], return_inverse=True)
            count = torch.arange(own.numel())
            negatives = (count + own.numel()).unsqueeze(1).repeat(1, self.method.negatives)
            negatives[there] = 2 * own.numel() + at
            self._stacks[which] = torch.cat([stack, own])[-self.method.stack :]
            rows_of = torch.cat([count.unsqueeze(1), (count + own.numel()).unsqueeze(1), negatives], dim=1)
            return torch.cat([own, own + graphs, met + graphs]), rows_of

        def _loss(self, step: Step) -> Tensor:
            """The loss (10); without negatives (6) is 0."""
            views = range(len(self.method.epsilons))
            tasks = [self.task.loss(replace(step, output=step.output[:, view])) for view in views]
            loss = torch.stack(tasks).mean(0)  # (9)
            if self._has_negatives is None or step.embedding is None:
                return loss
            h = F.normalize(step.embedding, dim=2)
            score = (h * h[:, 1:2]).sum(2) / self.method.temperature  # with the second view
            score = torch.cat([score[:, :1], score[:, 2:].masked_fill(~self._has_negatives, -torch.inf)], dim=1)
            return loss + self.method.gamma * step.mean(score.logsumexp(1) - score[:, 0])

        def predict(self, request: Payload) -> Tensor:
            outputs = super().predict(request)
            if self.method.evaluated_on != "views":
                return outputs
            views = len(self.method.epsilons)
            of_parties = (each.view(views, -1, self.task.outputs) for each in outputs.split(self.cohort.items))
            return torch.cat([each.mean(0).repeat(views, 1) for each in of_parties])

        @action("total", "ask")
        def evaluate(self, request: Payload) -> Answer:
            if self.method.evaluated_on == "graphs":
                self.cohort = self.held
            return super().evaluate(request)


def safe(party: Party) -> Party:
    """The party with zeros in place of features that follow from its edges."""
    return party.without_structural("give others, or set features = 'all' and promise nothing")


def _batch(party: Party) -> Tensor:
    batch: Tensor | None = party.graph.get("batch")
    return torch.zeros(party.nodes, dtype=torch.long) if batch is None else batch


def _sizes(party: Party) -> list[int]:
    sizes: list[int] = torch.bincount(_batch(party), minlength=party.items).tolist()
    return sizes


def _last(party: Party, count: int) -> Tensor:
    """Positions of the party's last training graphs."""
    return party.train.nonzero().squeeze(1)[-count:]


def _differ(y: Tensor, others: Tensor) -> Tensor:
    """Whether labels differ, `[items, others]`; of several tasks, in one that both have a label for."""
    if y.dim() == 1:
        return y.unsqueeze(1) != others.unsqueeze(0)
    one, other = y.unsqueeze(1), others.unsqueeze(0)
    return ((one != other) & ~one.isnan() & ~other.isnan()).any(2)


def _drawn(differ: Tensor, count: int, draws: Draws) -> Tensor:
    """Draw `count` differing columns for every row, repeating them if there are fewer; -1 if there is none."""
    order = draws.uniform(differ.shape[:1], differ.size(1)).masked_fill(~differ, -1).argsort(1, descending=True)
    there = differ.sum(1, keepdim=True)
    place = torch.arange(count).unsqueeze(0) % there.clamp(min=1)
    if not order.size(1):
        return torch.full((differ.size(0), count), -1)
    return torch.where(there > 0, order.gather(1, place), -1)
