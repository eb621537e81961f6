"""Compare what finds laundering in the generated banks `ledgers`: graphs or columns, alone, together, or pooled.

OMP_NUM_THREADS=1 python benchmarks/ledgers/ledgers.py                   # a small trial: one seed, 8 small banks
OMP_NUM_THREADS=1 python benchmarks/ledgers/ledgers.py --full            # all rows that results/ledgers.json lacks
OMP_NUM_THREADS=1 python benchmarks/ledgers/ledgers.py --full --write    # and the tables of README.md

Each row is kept as soon as it is there; a call that was stopped goes on with the next row.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded

import argparse
import functools
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import average_precision_score, roc_curve
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1]))  # figures.py is there
from figures import added, keep, kept_cells, markdown, named, origin, print_table
from isthmus import run
from isthmus.data.datasets.laundering import DAY, Town, Transfers
from isthmus.data.datasets.ledgers import Ledgers
from isthmus.data.datasets.payments import features, one_hot
from isthmus.data.history import histories
from isthmus.data.party import Party
from isthmus.data.pool import Pool
from isthmus.data.pooled import pool_parties
from isthmus.study.results import Results

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results" / "ledgers.json", HERE / "README.md"
MARKS = ("<!-- figures: written by ledgers.py --write -->", "<!-- end of figures of ledgers.py -->")
CUSTOMERS = {8: 500, 30: 135}
"""By number of banks the customers of each, so that all data together are about as large."""
RATES = (0.01, 0.001)
LARGEST_RATE = 0.001
"""The false-positive rate at which recall is measured."""
ALERTS = 100
"""Length of the list that is looked through every day, of all banks together."""
TRAINING = {"select": "validation", "local": {"lr": 0.01, "optimizer": "adam"}, "device": "cpu"}
MODELS = {"graph": {"encoder": "hetero-sage", "hidden": 32, "layers": 2}, "columns": {"encoder": "mlp", "hidden": 32}}

Scores = tuple[Tensor, Tensor]
"""Ids of test transfers, and their scores."""


@dataclass(frozen=True)
class World:
    """One draw of the banks."""

    data: Ledgers
    town: Town
    transfers: Transfers
    pool: Pool
    seed: int

    @functools.cached_property
    def pooled(self) -> Party:
        assert self.pool.parties is not None
        return pool_parties(self.pool.parties)

    @functools.cached_property
    def bordered(self) -> tuple[Party, ...]:
        """The banks when each joins transfers by its own accounts only."""
        parties = self.data.model_copy(update={"borders": True}).load(self.seed).parties
        assert parties is not None
        return parties


# ---- what is compared


def neural(world: World, method: str, model: str, seed: int, rounds: int) -> Scores:
    """A network that Isthmus trains: on typed graphs, or on a transfer's own columns."""
    parties = world.pool.parties
    assert parties is not None
    results = results_of(parties, method, model, seed, rounds)
    if method == "centralized":
        return tested([(world.pooled, results.model(method).outputs(world.pooled))])
    personal = method in ("local", "ditto")
    found = []
    for party in parties:
        trained = results.model(method, party=party.name) if personal else results.model(method)
        found.append((party, trained.outputs(party)))
    return tested(found)


def summed(world: World, seed: int, rounds: int) -> Scores:
    """The same on sums over the transfers that other banks know: a bank scores transfers with the sums that it got."""
    results = results_of(world.bordered, "fedgcn", "graph", seed, rounds)
    outputs = results.model("fedgcn").outputs(list(world.bordered))
    sizes = [int(party.labelled_type.sum()) for party in world.bordered]
    return tested(list(zip(world.bordered, outputs.split(sizes), strict=True)))


def results_of(parties: Sequence[Party], method: str, model: str, seed: int, rounds: int) -> Results:
    task = {"name": "node-classification", "class_weights": "balanced", "metric": "average_precision"}
    return run(method, parties, model=MODELS[model], task=task, seed=seed, rounds=rounds, **TRAINING)


def tested(found: Sequence[tuple[Party, Tensor]]) -> Scores:
    """Ids of the test items of some parties, and their log odds of laundering; outputs are those of all transfers."""
    ids, scores = [], []
    for party, outputs in found:
        assert party.ids is not None
        ids.append(party.ids[party.test])
        scores.append((outputs[:, 1] - outputs[:, 0])[party.test[party.labelled_type]])
    return torch.cat(ids), torch.cat(scores)


def trees(world: World, together: bool, seed: int) -> Scores:
    """Gradient-boosted trees on joined columns and counts over the past: a model of each bank, or one of all rows.

    Validation items choose between two learning rates, with and without weights that make the classes equal.
    """
    bank = world.town.accounts.bank
    banks = (
        [(None, np.arange(world.transfers.time.size))]
        if together
        else [
            (each, np.flatnonzero((bank[world.transfers.sender] == each) | (bank[world.transfers.receiver] == each)))
            for each in range(world.town.banks)
        ]
    )
    ids, scores = [], []
    for own, at in banks:
        rows = world.transfers.take(at)
        x = joined_columns(world.town, rows, own)
        sent = np.ones(at.size, dtype=bool) if own is None else bank[rows.sender] == own
        first, second = (
            share * world.data.days * DAY for share in (world.data.train, world.data.train + world.data.val)
        )
        train, val = sent & (rows.time < first), sent & (rows.time >= first) & (rows.time < second)
        test = sent & (rows.time >= second)
        score = best_trees(x, rows.pattern >= 0, train, val, test, seed)
        ids.append(torch.from_numpy(at[test]))
        scores.append(torch.from_numpy(score))
    return torch.cat(ids), torch.cat(scores)


def best_trees(x: Any, y: Any, train: Any, val: Any, test: Any, seed: int) -> Any:
    if not y[train].any():
        return np.zeros(int(test.sum()))
    early = "auto" if y[train].sum() > 1 else False  # trees that stop early set rows of both classes aside
    best, chosen = -1.0, None
    for rate, weight in itertools.product((0.03, 0.1), (None, "balanced")):
        model = HistGradientBoostingClassifier(
            learning_rate=rate, class_weight=weight, early_stopping=early, random_state=seed
        )
        model.fit(x[train], y[train])
        score = average_precision_score(y[val], model.predict_proba(x[val])[:, 1]) if y[val].any() else 0.0
        if score > best:
            best, chosen = score, model
    assert chosen is not None
    return chosen.decision_function(x[test])


def joined_columns(town: Town, rows: Transfers, bank: int | None) -> Any:
    """A transfer's columns, those of its accounts that the bank holds, and counts over the past that it knows."""
    crosses = town.accounts.bank[rows.sender] != town.accounts.bank[rows.receiver]
    columns = [features(rows.time, rows.amount, crosses, (rows.currency, 5), (rows.channel, 6))]
    for account in (rows.sender, rows.receiver):
        known = (np.ones(account.size, dtype=bool) if bank is None else town.accounts.bank[account] == bank)[:, None]
        customer = town.accounts.customer[account]
        own = [one_hot(town.accounts.kind[account], 3), one_hot(town.customers.region[customer], 5)]
        own += [(rows.time - town.accounts.opened[account])[:, None], town.customers.since[customer][:, None]]
        columns.append(np.where(known, np.concatenate(own, axis=1), np.nan))
    for earlier, now in histories(rows.time, {"from": rows.sender, "to": rows.receiver}, last=20).values():
        ago = rows.time[now] - rows.time[earlier]
        for days in (1, 7):
            recent = ago < days * DAY
            sums = (np.bincount(now[recent], each, rows.time.size) for each in (None, rows.amount[earlier[recent]]))
            columns.extend(each[:, None] for each in sums)
        last = np.full((rows.time.size, 2), np.nan)
        last[now] = np.stack([ago, rows.amount[now] / rows.amount[earlier]], axis=1)  # of several, the latest stays
        columns.append(last)
    return np.concatenate(columns, axis=1)


COMPARED: dict[str, Callable[[World, int, int], Scores]] = {
    "trees, local": lambda world, seed, _: trees(world, False, seed),
    "trees, pooled": lambda world, seed, _: trees(world, True, seed),
    "MLP, FedAvg": lambda world, seed, rounds: neural(world, "fedavg", "columns", seed, rounds),
    "graph, local": lambda world, seed, rounds: neural(world, "local", "graph", seed, rounds),
    "graph, FedAvg": lambda world, seed, rounds: neural(world, "fedavg", "graph", seed, rounds),
    "graph, Ditto": lambda world, seed, rounds: neural(world, "ditto", "graph", seed, rounds),
    "sums over crossing edges": lambda world, seed, rounds: summed(world, seed, rounds),
    "graph, centralized": lambda world, seed, rounds: neural(world, "centralized", "graph", seed, rounds),
}


# ---- figures


def figures_of(world: World, scores: Scores) -> dict[str, float]:
    """Average precision, recall at a false-positive rate, and the share of laundering that daily lists find."""
    ids, score = (each.numpy() for each in scores)
    y, day = world.transfers.pattern[ids] >= 0, world.transfers.time[ids] // DAY
    false, true, _ = roc_curve(y, score, drop_intermediate=False)
    order = np.lexsort((-score, day))
    starts = np.searchsorted(day[order], np.unique(day))
    rank = np.arange(day.size) - np.repeat(starts, np.diff([*starts, day.size]))
    listed = order[rank < ALERTS]
    return {
        "average_precision": float(average_precision_score(y, score)),
        "recall_at_fpr": float(true[false <= LARGEST_RATE].max()),
        "listed": float(y[listed].sum() / y.sum()),
        "precision_of_lists": float(y[listed].mean()),
        "laundering": int(y.sum()),
        "transfers": int(y.size),
    }


@functools.lru_cache(maxsize=1)
def world_of(banks: int, customers: int, rate: float, seed: int) -> World:
    data = Ledgers(parties=banks, customers=customers, laundering=rate)
    return World(data, *data.draw(seed), data.load(seed), seed)


def one_run(name: str, banks: int, customers: int, rate: float, rounds: int, seed: int) -> dict[str, Any]:
    world = world_of(banks, customers, rate, seed)
    began = time.perf_counter()
    found = figures_of(world, COMPARED[name](world, seed, rounds))
    where = (
        {} if TRAINING["device"] == "cpu" else {"device": f"{torch.cuda.get_device_name()}, torch {torch.__version__}"}
    )
    return {**found, "seconds": round(time.perf_counter() - began, 1), **where}


def lines_of(cells: Sequence[dict[str, Any]], banks: int, rate: float) -> list[list[str]]:
    shown = ("average_precision", "recall_at_fpr", "listed", "precision_of_lists")
    lines = []
    for name in COMPARED:
        own = [cell for cell in cells if (cell["compared"], cell["banks"], cell["rate"]) == (name, banks, rate)]
        if runs := [each for cell in own for each in cell["runs"]]:
            lines.append([name, *(spread([each[key] for each in runs]) for key in shown), str(len(runs))])
    return lines


def spread(values: Sequence[float]) -> str:
    more = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.1f}{more}"


HEAD = [
    "",
    "average precision",
    "recall at 0.1 % false positives",
    "found by 100 alerts a day",
    "right alerts",
    "seeds",
]


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="8 and 30 banks, both rates, five seeds")
    parser.add_argument("--seeds", type=int, default=5, help="of the full comparison")
    parser.add_argument("--rounds", type=int, default=60, help="of the full comparison")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="that trains; a run says so")
    parser.add_argument("--only", choices=list(COMPARED), action="append", help="rows, all without this option")
    parser.add_argument("--write", action="store_true", help="write the tables into README.md")
    options = parser.parse_args()
    TRAINING["device"] = options.device
    sizes = CUSTOMERS if options.full else {8: 60}
    rates, seeds, rounds = (RATES, options.seeds, options.rounds) if options.full else (RATES[:1], 1, 5)
    cells = kept_cells(RESULTS) if options.full else []
    settings = itertools.product(range(seeds), sizes.items(), rates)
    for seed, (banks, customers), rate in settings:  # the banks of one draw serve all rows
        for name in options.only or COMPARED:
            key = {"compared": name, "banks": banks, "customers": customers, "rate": rate, "rounds": rounds}
            make = functools.partial(one_run, name, banks, customers, rate, rounds)
            for found in added(cells, key, seed + 1, make, RESULTS if options.full else None):
                figures = " ".join(f"{what} {value:.4g}" for what, value in found.items())
                print(f"{name}, {banks} banks, {rate}, seed {seed}: {figures}", file=sys.stderr, flush=True)
    about = origin(torch, sklearn)
    told = [f"{about['date']}; {named(about['versions'])}; one thread; {rounds} rounds. In percent:"]
    for (banks, customers), rate in itertools.product(sizes.items(), rates):
        title = f"{banks} banks with {customers} customers in the mean, {100 * rate:g} % of transfers launder"
        if lines := lines_of(cells, banks, rate):
            print_table(title, HEAD, lines)
            told += [f"### {title}", markdown(HEAD, lines)]
    if options.full and options.write:
        keep({**about, "threads": 1, "cells": cells}, RESULTS, PAGE, MARKS, told)


if __name__ == "__main__":
    main()
