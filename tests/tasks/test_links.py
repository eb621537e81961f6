"""Pairs are scored by the dot product wherever their ends are; training sees own pairs alone."""

from dataclasses import replace

import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

import isthmus
from isthmus.data.cohort import Cohort
from isthmus.data.datasets.banks import Banks
from isthmus.data.folder.writing import write_parties
from isthmus.data.partition.labels import Random
from isthmus.data.pooled import pool_parties
from isthmus.data.rows import to_dense
from isthmus.errors import IsthmusError
from isthmus.federation.actions import action
from isthmus.federation.local import LocalTransport
from isthmus.federation.verbs import Federation
from isthmus.methods.base import Method
from isthmus.nn.encoders import Encoder
from isthmus.study.loop import Run
from isthmus.study.setup import module_for
from isthmus.tasks.base import Step
from isthmus.tasks.links import LinkPrediction

TASK = LinkPrediction(width=6, val=0.2, test=0.2)


def make_parties(parties=3, nodes=60, task=TASK, edges="coupled"):
    banks = Banks(nodes=nodes).load(0)
    return task.make_parties(banks, lambda pool: Random(edges=edges).cut(pool, parties, 0), 0)


def run(method, parties, task=TASK, encoder="sgc", **ways):
    method = method if isinstance(method, Method) else Method.named(method)(rounds=3, select="last")
    module = module_for(Encoder.named(encoder)(hidden=8), parties, task, 0)
    return Run(method, parties, task, module, seed=0, **ways)


def make_step(sizes=(50, 0, 150, 1), width=5, seed=0):
    source = torch.Generator().manual_seed(seed)
    items = sum(sizes)
    output = torch.randn(items, 2, width, generator=source)
    y = (output.prod(1).sum(1) + torch.randn(items, generator=source) > 0.5).long()
    return Step(output, y, sizes, torch.arange(items))


def summed(counts):
    return {name: count.sum(0) for name, count in counts.items()}


@pytest.mark.parametrize("seed", range(3))
def test_counts_of_all_parties_sum_to_sklearns_metrics(seed):
    step = make_step(seed=seed)
    task = LinkPrediction(width=5)
    scores = (step.output[:, 0] * step.output[:, 1]).sum(1)
    found = task.metrics(summed(task.counts(step)))
    assert found["accuracy"] == accuracy_score(step.y, scores >= 0)
    assert found["loss"] == pytest.approx(log_loss(step.y, scores.double().sigmoid()), rel=1e-5)
    assert found["auc"] == pytest.approx(roc_auc_score(step.y, scores), abs=0.002)
    apart = [
        roc_auc_score(y, z)
        for y, z in zip(step.y.split(step.sizes), scores.split(step.sizes), strict=True)
        if len(y) > 1
    ]
    assert len(apart) == 2, "the party with one pair has no area"
    assert found["party_auc"] == pytest.approx(sum(apart) / 2, abs=0.003)
    assert task.score(found) == found["auc"]


def test_the_loss_of_a_party_is_the_mean_over_its_pairs():
    step, task = make_step(), LinkPrediction(width=5)
    scores = (step.output[:, 0] * step.output[:, 1]).sum(1)
    losses = torch.nn.functional.binary_cross_entropy_with_logits(scores, step.y.float(), reduction="none").split(
        step.sizes
    )
    torch.testing.assert_close(
        task.loss(step), torch.stack([each.mean() if len(each) else torch.tensor(0.0) for each in losses])
    )


def test_outputs_of_single_nodes_are_refused():
    with pytest.raises(IsthmusError, match="a pair needs outputs"):
        TASK.loss(Step(torch.ones(3, 6), torch.ones(3).long(), (3,), torch.arange(3)))


class Seen(LinkPrediction):
    """Keeps the scores of the last evaluation, by the ids of both nodes."""

    def watch(self, parties):
        names = [(p.name, torch.stack([p.ids[p.pairs.first], p.pairs.second], dim=1).tolist()) for p in parties]
        every = [(name, frozenset(ends)) for name, pairs in names for ends in pairs]
        object.__setattr__(self, "seen", {})
        object.__setattr__(self, "every", every)
        return self

    def counts(self, step):
        scores = (step.output[:, 0] * step.output[:, 1]).sum(1).tolist()
        self.seen.update({self.every[at][1]: score for at, score in zip(step.items.tolist(), scores, strict=True)})
        return super().counts(step)


@pytest.mark.parametrize(("name", "encoder", "options"), [("fedcog", "sgc", {"lnnc": False}), ("fedgcn", "gcn", {})])
def test_pairs_across_parties_score_what_the_pooled_model_says(name, encoder, options):
    parties = make_parties()
    task = Seen(width=6).watch(parties)
    method = Method.named(name)(rounds=3, select="last", **options)
    result = run(method, parties, task, encoder).go()
    assert sum(int((p.pairs.owner >= 0)[p.test].sum()) for p in parties) > 5
    whole = pool_parties(parties)
    module = module_for(Encoder.named(encoder)(hidden=8), parties, TASK, 0).eval()
    module.load_state_dict(result.weights)
    with torch.no_grad():
        z = module(to_dense(whole.graph.x), whole.graph.edge_index)
    ends = torch.stack([whole.pairs.first, torch.searchsorted(whole.ids, whole.pairs.second)], dim=1)
    scores = z[ends].prod(1).sum(1)
    asked = (whole.val | whole.test).nonzero().flatten().tolist()
    due = {frozenset(whole.ids[ends[at]].tolist()): float(scores[at]) for at in asked}
    assert task.seen.keys() == due.keys()
    for pair, score in due.items():
        assert task.seen[pair] == pytest.approx(score, rel=1e-5, abs=1e-5)
    exact = roc_auc_score(whole.graph.y[whole.test], scores[whole.test])
    assert result.metrics["test_auc"] == pytest.approx(exact, abs=0.02)


def test_of_a_federation_the_other_end_is_the_owners_own_embedding():
    parties = make_parties()
    task = Seen(width=6).watch(parties)
    result = run("local", parties, task).go()
    module = module_for(Encoder.named("sgc")(), parties, TASK, 0)
    z = {}
    with torch.no_grad():
        for party in parties:
            module.load_state_dict(result.models["parties"][party.name])
            rows = module(to_dense(party.graph.x), party.graph.edge_index)
            z |= {(party.name, node): row for node, row in zip(party.ids.tolist(), rows, strict=True)}
    checked = 0
    for party in parties:
        for at in (party.val | party.test).nonzero().flatten().tolist():
            first, second = int(party.ids[party.pairs.first[at]]), int(party.pairs.second[at])
            owner = int(party.pairs.owner[at])
            other = z[party.name if owner < 0 else party.pairs.owners[owner], second]
            assert task.seen[frozenset((first, second))] == pytest.approx(float(z[party.name, first] @ other), abs=1e-5)
            checked += owner >= 0
    assert checked > 5


def test_bytes_change_nothing_for_cohorts_of_one():
    parties = make_parties()
    for name in ("fedavg", "fedcog"):
        apart, wired = (run(name, parties, side_by_side=False, wire=wire).go() for wire in (False, True))
        together = run(name, parties).go()
        assert apart.history == wired.history
        assert all(torch.equal(weight, wired.weights[key]) for key, weight in apart.weights.items())
        for key, weight in together.weights.items():
            torch.testing.assert_close(weight, apart.weights[key], rtol=1e-5, atol=1e-5)


def flipped(parties, mask_of):
    """The parties with the labels of some pairs told wrong."""
    made = []
    for party in parties:
        graph = party.graph.clone()
        mask = mask_of(party)
        assert bool(mask.any())
        graph.y = torch.where(mask, 1 - graph.y, graph.y)
        made.append(replace(party, graph=graph))
    return made


@pytest.mark.parametrize("name", ["fedavg", "fedcog", "local", "centralized"])
def test_only_pairs_within_a_party_are_trained_on_and_only_the_pooled_reference_has_them_all(name):
    parties = make_parties()

    def trained(of):
        models = run(name, of).go().models
        every = [models["shared"]] if "shared" in models else models["parties"].values()
        return [weight for weights in every for weight in weights.values()]

    clean = trained(parties)
    across = trained(flipped(parties, lambda party: party.train & (party.pairs.owner >= 0)))
    within = trained(flipped(parties, lambda party: party.training_mask))
    asked = trained(flipped(parties, lambda party: party.val | party.test))
    same = [all(map(torch.equal, clean, other)) for other in (across, within, asked)]
    assert same == [name != "centralized", False, True]


def evaluated(parties, silent=()):
    """What evaluation counts where some parties do not lend."""
    method = Method.named("fedavg")(rounds=1)

    class AtParty(method.AtParty):
        @action("exchange", protected=True)
        def lend(self, request):
            if set(self.cohort.names) & set(silent):
                raise RuntimeError("disk on fire")
            return super().lend(request)

    module = module_for(Encoder.named("sgc")(), parties, TASK, 0)
    transport = LocalTransport([AtParty(method, parties, TASK, module, seed=0)])
    federation = Federation(transport, quorum=0.0)
    weights = {"weights": dict(module.state_dict())}
    receipt = federation.exchange("lend", weights)
    return receipt, federation.total("evaluate", weights), federation.ledger


def test_only_what_is_needed_is_lent_and_the_ledger_shows_it():
    parties = make_parties()
    receipt, total, ledger = evaluated(parties)
    assert total.sum("test")["scores"].sum() == sum(int(party.test.sum()) for party in parties)
    for party in parties:
        for at, name in enumerate(party.pairs.owners):
            lent = int((party.pairs.borrower == at).sum())
            assert lent * (6 * 4 + 8) <= receipt.sizes[party.name, name] < lent * (6 * 4 + 8) + 300
    rows = [row for row in ledger.rows() if row["action"] == "lend"]
    assert {row["party"] for row in rows} == {party.name for party in parties}
    assert {(row["verb"], row["eyes"]) for row in rows} == {("exchange", "the addressed party")}
    assert all("output" in row["fields"] for row in rows)


def test_pairs_whose_other_end_is_not_lent_are_not_counted(caplog):
    parties = make_parties()
    silent = parties[1].name
    receipt, total, _ = evaluated(parties, silent=[silent])
    assert set(receipt.missing) == {silent}
    due = 0
    for party in parties:
        needs = torch.tensor([at >= 0 and party.pairs.owners[at] == silent for at in party.pairs.owner.tolist()])
        due += int((party.test & ~needs).sum())
    assert total.sum("test")["scores"].sum() == due < sum(int(party.test.sum()) for party in parties)


@pytest.mark.parametrize("wrong", [{"ids": 1}, {"output": 1}])
def test_outputs_of_other_nodes_than_agreed_are_refused(wrong):
    parties = make_parties()
    method = Method.named("fedavg")(rounds=1)
    module = module_for(Encoder.named("sgc")(), parties, TASK, 0)
    site = method.AtParty(method, parties, TASK, module, seed=0)
    borrowed = Cohort(tuple(parties)).borrowed[0]
    letters = {owner: {"ids": ids, "output": torch.zeros(ids.numel(), 6)} for owner, ids in borrowed.items()}
    owner = next(iter(letters))
    for key in wrong:
        letters[owner][key] = letters[owner][key][1:]
    site.deliver("lend", {parties[0].name: letters})
    reply = site.answer("evaluate", {"weights": dict(module.state_dict())}, [parties[0].name])
    assert f"party '{owner}' lent outputs of other nodes" in reply.failures[parties[0].name]


def test_a_method_that_does_not_know_pairs_says_so():
    with pytest.raises(IsthmusError, match="method 'fedcog-gcn' is for node tasks, the parties hold pairs"):
        run("fedcog-gcn", make_parties())


def test_in_python_the_task_poses_the_pairs_itself_or_parties_hold_them():
    own = isthmus.run("fedavg", task=TASK, rounds=1, model="sgc")
    shares = {"val": 0.2, "test": 0.2, "train": 1.0}
    assert own.study["task"] == {
        "name": TASK.name,
        "metric": "auc",
        "select_by": "auc",
        "width": 6,
        "relation": "",
        "disjoint": None,
        **shares,
    }
    assert {"test_auc", "test_party_auc"} <= own.metrics.keys()
    assert own.cuts[0].level == "pair"
    given = isthmus.run("fedavg", make_parties(), task=TASK, rounds=1, model="sgc")
    assert given.runs[0].weights["linear.weight"].size(0) == 6
    inferred = isthmus.run("fedavg", make_parties(), rounds=1, model="sgc")
    assert inferred.runs[0].weights["linear.weight"].size(0) == 100
    nodes = Random().cut(Banks(nodes=60).load(0), 3, 0)
    with pytest.raises(
        IsthmusError, match="is for pairs, the parties hold nodes: make the parties with its `make_part"
    ):
        run("fedavg", nodes)


def test_a_study_names_its_task():
    table = {"data": {"name": "banks", "nodes": 80}, "task": {"name": "link-prediction", "width": 8}, "seeds": [3]}
    study = isthmus.Study.of(table)
    loaded = study.load(3)
    assert (loaded.task.name, loaded.task.outputs, loaded.classes) == ("link-prediction", 8, 2)
    assert study.resolved(loaded)["task"]["test"] == 0.1
    assert isthmus.Study.of({}).resolved()["task"] == {}
    with pytest.raises(IsthmusError, match="task 'link-prediction': unknown option 'wide': did you mean 'width'"):
        isthmus.Study.of({"task": {"name": "link-prediction", "wide": 8}})
    with pytest.raises(IsthmusError, match="unknown task 'link'"):
        isthmus.Study.of({"task": {"name": "link"}})
    with pytest.raises(IsthmusError, match="task 'node-classification': unknown option 'width'"):
        isthmus.Study.of({"data": {"name": "banks", "nodes": 80}, "task": {"width": 8}}).load(3)
    with pytest.raises(IsthmusError, match=r"task 'link-prediction': links .* of one graph .* many graphs"):
        isthmus.Study.of({"data": {"name": "motifs"}, "task": {"name": "link-prediction"}}).load(0)


def test_another_task_than_the_labels_ask_for_is_refused():
    nodes = {"data": {"name": "banks", "nodes": 80}}
    assert isthmus.Study.of({**nodes, "task": {"name": "node-classification", "classes": 5}}).load(0).task.outputs == 5
    with pytest.raises(IsthmusError, match="labels go up to 3: classes must be at least 4"):
        isthmus.Study.of({**nodes, "task": {"name": "node-classification", "classes": 2}}).load(0)
    with pytest.raises(IsthmusError, match="task 'node-regression': the labels are those of 'node-classification'"):
        isthmus.Study.of({**nodes, "task": {"name": "node-regression", "tasks": 9}}).load(0)
    with pytest.raises(IsthmusError, match="is for graphs, the parties hold nodes"):
        isthmus.Study.of({**nodes, "task": {"name": "graph-classification", "classes": 4}}).load(0)


def test_pairs_are_not_written_to_folders(tmp_path):
    with pytest.raises(IsthmusError, match="holds pairs, which no folder can hold"):
        write_parties(tmp_path / "folders", make_parties(), 2)
    assert not list(tmp_path.iterdir())


def test_where_every_training_pair_crosses_only_the_pooled_reference_learns():
    parties = [replace(each, train=each.train & (each.pairs.owner >= 0)) for each in make_parties()]
    with pytest.raises(IsthmusError, match="no link to train on has both ends at one party"):
        run("fedavg", parties)
    assert run("centralized", parties).go().metrics["test_auc"] > 0


@pytest.mark.parametrize("named", [True, False])
def test_links_are_held_out_of_ones_own_parties(named):
    banks = Random(edges="coupled" if named else "broken").cut(Banks(nodes=60).load(0), 2, 0)
    banks = banks if named else [replace(party, ids=None, border=None) for party in banks]
    results = isthmus.run(["fedavg", "centralized"], banks, task=TASK, rounds=2, seeds=[0, 1])
    assert all(0 <= run.metrics["test_auc"] <= 1 for run in results.runs)
    assert all(cut.level == "pair" for cut in results.cuts.values())
    assert results.cuts[0].parties != results.cuts[1].parties or results.runs[0].metrics != results.runs[2].metrics
    assert all(party.level == "node" for party in banks)
