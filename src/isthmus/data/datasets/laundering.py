"""Draws customers, accounts and transfers of generated banks; a few transfers launder money in known patterns."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from isthmus.data.datasets.generated import WeightedSampler, draw_activities, draw_owners
from isthmus.data.matrices import Bools, Floats, Ints

HOUR, DAY, YEAR = 3600, 86400, 365 * 86400
"""Seconds."""
CUSTOMERS = ("person", "business")
"""Kinds of customers."""
ACCOUNTS = ("current", "savings", "business")
"""Kinds of accounts."""
CURRENCIES = ("EUR", "USD", "GBP", "CHF", "SEK")
"""Currencies; each bank has one of its own, not US dollars."""
CHANNELS = ("card", "online", "instant", "standing order", "batch", "wire")
"""Ways of paying."""
REGIONS = ("north", "east", "south", "west", "abroad")
"""Where customers live."""
PATTERNS = ("fan_in", "fan_out", "cycle", "scatter_gather", "bipartite", "stack")
"""Patterns of laundering."""
CONTACTS = 6
"""Accounts that an account pays again and again."""

Legs: TypeAlias = list[tuple[int, int, int]]
"""Transfers of a pattern: the sender and the receiver, numbered within the pattern, and the step."""


@dataclass(frozen=True, eq=False)
class Customers:
    """Customers by position: their bank, kind and region, and when they became one, in seconds from the start."""

    bank: Ints
    kind: Ints
    region: Ints
    since: Ints


@dataclass(frozen=True, eq=False)
class Accounts:
    """Accounts by position: their customer, bank and kind, and when they were opened, in seconds from the start."""

    customer: Ints
    bank: Ints
    kind: Ints
    opened: Ints


@dataclass(frozen=True, eq=False)
class Transfers:
    """Transfers by position.

    Arguments:
        time: seconds from the start.
        sender, receiver: positions of accounts.
        amount: in the currency.
        currency, channel: positions in `CURRENCIES` and `CHANNELS`.
        pattern: the position in `PATTERNS`; -1 for ordinary transfers.
    """

    time: Ints
    sender: Ints
    receiver: Ints
    amount: Floats
    currency: Ints
    channel: Ints
    pattern: Ints

    def take(self, at: Ints | Bools) -> Transfers:
        """Some of the transfers."""
        return Transfers(*(column[at] for column in vars(self).values()))


class Town:
    """All customers and accounts, and who pays whom.

    Arguments:
        banks: number of banks.
        customers: customers of all banks together.
        seconds: length of the period.
        across: share of the ordinary payees that are at another bank.
    """

    def __init__(self, banks: int, customers: int, seconds: int, across: float, draw: np.random.Generator) -> None:
        self.banks, self.seconds, self.draw = banks, seconds, draw
        bank = draw_owners(customers, banks, draw)
        kind = (draw.random(customers) < 0.12).astype(np.int64)
        for each in range(banks):  # every bank has a shop and somebody who buys there
            kind[np.flatnonzero(bank == each)[:2]] = (1, 0)[: (bank == each).sum()]
        since = -draw.exponential(6 * YEAR, customers).astype(np.int64)
        self.customers = Customers(
            bank, kind, draw.choice(len(REGIONS), customers, p=(0.3, 0.25, 0.25, 0.15, 0.05)), since
        )
        further = np.where(kind == 1, draw.poisson(0.8, customers), draw.random(customers) < 0.4).astype(np.int64)
        owner = np.concatenate([np.arange(customers), np.repeat(np.arange(customers), further)])
        first = np.arange(owner.size) < customers
        young = draw.random(owner.size) < 0.15
        waited = (draw.random(owner.size) * -since[owner]).astype(np.int64)
        opened = np.where(first, since[owner], since[owner] + waited)
        opened = np.where(young, (draw.random(owner.size) * 0.8 * seconds).astype(np.int64), opened)
        kinds = np.where(kind[owner] == 1, 2, np.where(first, 0, 1))
        self.accounts = Accounts(owner, bank[owner], kinds, opened)
        self.activity = draw_activities(owner.size, 2.3, draw)
        self.across = across
        self.person, self.business = np.flatnonzero(kinds == 0), np.flatnonzero(kinds == 2)
        self.contacts = np.stack([self.partners(np.arange(owner.size), kinds == 2) for _ in range(CONTACTS)], axis=1)

    def partners(self, payer: Ints, business: Bools) -> Ints:
        """An account for each payer, drawn by activity: of a business or not, and at its own or at another bank."""
        found = np.empty_like(payer)
        elsewhere = self.draw.random(payer.size) < (self.across if self.banks > 1 else 0)
        for wanted in (False, True):
            pool = self.business if wanted else self.person
            anyone = np.flatnonzero(business == wanted)
            found[anyone] = self.chosen(pool, anyone.size)
            for bank in range(self.banks):
                own = pool[self.accounts.bank[pool] == bank]
                here = anyone[(self.accounts.bank[payer[anyone]] == bank) & ~elsewhere[anyone]]
                if own.size and here.size:
                    found[here] = self.chosen(own, here.size)
        return found

    def chosen(self, pool: Ints, count: int) -> Ints:
        return pool[WeightedSampler(self.activity[pool]).sample(count, self.draw)]

    def usual(self, payer: Ints) -> Ints:
        """One of the contacts of each payer, the first ones most often."""
        return self.contacts[payer, np.minimum(self.draw.geometric(0.4, payer.size) - 1, CONTACTS - 1)]

    def moments(self, count: int) -> Ints:
        """Moments in the period: fewer at weekends, few at night."""
        days = self.seconds // DAY
        weights = np.where(np.arange(days) % 7 >= 5, 0.6, 1.0)
        day = WeightedSampler(weights).sample(count, self.draw)
        return day * DAY + self.times_of_day(count)

    def times_of_day(self, count: int) -> Ints:
        """Seconds since midnight, most of them by day."""
        return (self.draw.normal(14 * HOUR, 3.8 * HOUR, count) % DAY).astype(np.int64)

    def amounts(self, median: float, spread: float, count: int) -> Floats:
        """Amounts in cents' steps; every fifth one is rounded to tens."""
        amount = np.maximum(self.draw.lognormal(np.log(median), spread, count), 0.5)
        return np.where((self.draw.random(count) < 0.2) & (amount > 20), np.round(amount, -1), np.round(amount, 2))

    def finished(
        self, time: Ints, sender: Ints, receiver: Ints, amount: Floats, channel: Ints, pattern: int
    ) -> Transfers:
        """Transfers with a currency, without those outside the period or before an account was opened."""
        home = np.delete(np.arange(len(CURRENCIES)), 1)[self.accounts.bank[sender] % (len(CURRENCIES) - 1)]
        away = np.delete(np.arange(len(CURRENCIES)), 1)[self.accounts.bank[receiver] % (len(CURRENCIES) - 1)]
        part = self.draw.random(sender.size)
        currency = np.where(part < 0.9, home, np.where(part < 0.97, away, 1))
        whole = Transfers(time, sender, receiver, amount, currency, channel, np.full(time.size, pattern))
        opened = np.maximum(self.accounts.opened[sender], self.accounts.opened[receiver])
        return whole.take((time >= opened) & (time < self.seconds) & (sender != receiver))


def draw_transfers(town: Town, wanted: int, rate: float, shares: Mapping[str, float], across: float) -> Transfers:
    """All transfers, sorted by time.

    Arguments:
        wanted: how many.
        rate: share that launders.
        shares: weights of the patterns.
        across: share of the laundering accounts that are at another bank than the first one of their pattern.
    """
    laundered = round(rate * wanted) if sum(shares.values()) else 0
    dirty = _laundering(town, laundered, shares, across)
    clean = _ordinary(town, wanted - dirty.time.size)
    whole = _joined([clean, dirty])
    return whole.take(np.lexsort((whole.sender, whole.time)))


def _joined(parts: list[Transfers]) -> Transfers:
    return Transfers(
        *(np.concatenate(columns) for columns in zip(*(vars(part).values() for part in parts), strict=True))
    )


def _ordinary(town: Town, wanted: int) -> Transfers:
    """Salaries and periodic payments as they fall due, and the rest at random."""
    due = _joined([_salaries(town), _periodic(town)])
    if due.time.size > wanted // 2:
        due = due.take(np.sort(town.draw.permutation(due.time.size)[: wanted // 2]))
    parts, missing = [due], wanted - due.time.size
    while missing > 0:
        more = _joined([each(town, max(8, round(share * missing))) for each, share in _RANDOM])
        more = more.take(town.draw.permutation(more.time.size)[:missing])
        parts.append(more)
        missing -= more.time.size
    return _joined(parts)


def _salaries(town: Town) -> Transfers:
    """Every month from employers to about half of the persons: many from one account on one day."""
    employed = town.person[town.draw.random(town.person.size) < 0.55]
    employer = town.partners(employed, np.ones(employed.size, dtype=bool))
    payday = town.draw.integers(20, 28, town.accounts.bank.size)[employer]
    base = town.amounts(2400, 0.45, employed.size)
    return _repeated(town, employer, employed, payday, 30, base, CHANNELS.index("batch"), 0.02)


def _periodic(town: Town) -> Transfers:
    """Rents, bills and subscriptions of persons, and their savings: the same amount every month or every week."""
    payer = np.repeat(town.person, town.draw.integers(0, 4, town.person.size))
    payee = town.partners(payer, np.ones(payer.size, dtype=bool))
    every = np.where(town.draw.random(payer.size) < 0.8, 30, 7)
    first = town.draw.integers(0, every)
    return _repeated(
        town, payer, payee, first, every, town.amounts(90, 1.1, payer.size), CHANNELS.index("standing order"), 0.0
    )


def _repeated(
    town: Town, payer: Ints, payee: Ints, first: Ints, every: Ints | int, base: Floats, channel: int, noise: float
) -> Transfers:
    """Payments every so many days; their amounts vary by a share of `noise`."""
    days = town.seconds // DAY
    times = np.maximum(-(-(days - first) // every), 0)
    at = np.repeat(np.arange(payer.size), times)
    turn = np.arange(at.size) - np.repeat(times.cumsum() - times, times)
    day = first[at] + turn * np.broadcast_to(every, payer.shape)[at]
    time = day * DAY + 6 * HOUR + town.draw.integers(0, 4 * HOUR, at.size)
    amount = np.round(base[at] * (1 + noise * town.draw.normal(size=at.size)), 2)
    return town.finished(time, payer[at], payee[at], amount, np.full(at.size, channel), -1)


def _purchases(town: Town, count: int) -> Transfers:
    """Persons pay shops; few shops get most."""
    payer = town.chosen(town.person, count)
    payee = town.partners(payer, np.ones(count, dtype=bool))
    return town.finished(
        town.moments(count), payer, payee, town.amounts(38, 1.1, count), np.full(count, CHANNELS.index("card")), -1
    )


def _contacts(town: Town, count: int) -> Transfers:
    """Persons pay those whom they often pay, from small debts to a used car."""
    payer = town.chosen(town.person, count)
    return town.finished(
        town.moments(count), payer, town.usual(payer), town.amounts(110, 1.6, count), _by_hand(town, count), -1
    )


def _suppliers(town: Town, count: int) -> Transfers:
    """Businesses pay businesses."""
    payer = town.chosen(town.business, count)
    return town.finished(
        town.moments(count), payer, town.usual(payer), town.amounts(1300, 1.4, count), _by_hand(town, count), -1
    )


def _payouts(town: Town, count: int) -> Transfers:
    """Businesses such as insurers and market places pay persons."""
    payer = town.chosen(town.business, count)
    payee = town.partners(payer, np.zeros(count, dtype=bool))
    return town.finished(town.moments(count), payer, payee, town.amounts(250, 1.3, count), _by_hand(town, count), -1)


def _forwarded(town: Town, count: int) -> Transfers:
    """Persons and businesses pass on what they received a little earlier: a rent, a shared bill, a commission."""
    source = _joined(
        [_contacts(town, -(-count // 2)), _suppliers(town, -(-count // 2)), _payouts(town, -(-count // 4))]
    )
    source = source.take(town.draw.permutation(source.time.size)[:count])
    part = np.where(
        town.draw.random(source.time.size) < 0.35,
        town.draw.uniform(0.9, 1, source.time.size),
        town.draw.uniform(0.1, 0.9, source.time.size),
    )
    time = _by_day(town, source.time + HOUR // 4 + town.draw.exponential(14 * HOUR, source.time.size).astype(np.int64))
    onward = town.finished(
        time,
        source.receiver,
        town.usual(source.receiver),
        np.round(source.amount * part, 2),
        _by_hand(town, time.size),
        -1,
    )
    return _joined([source, onward])


def _collections(town: Town, count: int) -> Transfers:
    """Within some days several persons pay one account: a present, a trip, a club."""
    each = 3 + town.draw.geometric(0.2, max(1, count // 8))
    host = np.repeat(town.chosen(np.arange(town.activity.size), each.size), each)
    begin = np.repeat(town.moments(each.size), each)
    time = _by_day(town, begin + town.draw.exponential(1.5 * DAY, host.size).astype(np.int64))
    guest = town.partners(host, np.zeros(host.size, dtype=bool))
    base = np.repeat(town.amounts(150, 1.3, each.size), each)
    amount = np.round(base * town.draw.lognormal(0, 0.35, host.size), 2)
    return town.finished(time, guest, host, amount, _by_hand(town, host.size), -1)


_RANDOM = (
    (_purchases, 0.44),
    (_contacts, 0.2),
    (_suppliers, 0.13),
    (_payouts, 0.07),
    (_forwarded, 0.1),
    (_collections, 0.06),
)
"""Ordinary transfers at random, and the share of each kind."""


def _by_hand(town: Town, count: int) -> Ints:
    """A channel of those that people use by hand, for ordinary transfers and for laundering alike."""
    channels = [CHANNELS.index(name) for name in ("online", "instant", "wire")]
    return np.array(channels)[town.draw.choice(3, count, p=(0.55, 0.3, 0.15))]


def _by_day(town: Town, time: Ints) -> Ints:
    """Move most moments at night to the next day."""
    hour = time % DAY // HOUR
    night = ((hour < 7) | (hour >= 21)) & (town.draw.random(time.size) < 0.85)
    return np.where(night, time + 10 * HOUR + town.draw.integers(0, 4 * HOUR, time.size), time)


def _laundering(town: Town, wanted: int, shares: Mapping[str, float], across: float) -> Transfers:
    """Patterns one after the other, until there are enough transfers; the last pattern may be cut short."""
    nothing = np.zeros(0, dtype=np.int64)
    parts = [Transfers(nothing, nothing, nothing, nothing.astype(np.float64), nothing, nothing, nothing)]
    weights = np.array([shares[name] for name in PATTERNS], dtype=np.float64)
    mules, missing = WeightedSampler(np.sqrt(town.activity)), wanted
    for _ in range(20 * wanted):
        if missing <= 0:
            break
        pattern = int(WeightedSampler(weights).sample(1, town.draw)[0])
        part = _one_pattern(town, pattern, mules, across)
        part = part.take(np.arange(part.time.size) < missing)
        parts.append(part)
        missing -= part.time.size
    return _joined(parts)


def _one_pattern(town: Town, pattern: int, mules: WeightedSampler, across: float) -> Transfers:
    draw = town.draw
    legs = _legs(PATTERNS[pattern], int(min(3 + draw.geometric(0.25), 14)), draw)
    sender, receiver, step = np.array(legs).T
    accounts = _mules(town, int(max(sender.max(), receiver.max())) + 1, mules, across)
    begin = int(draw.integers(0, town.seconds))
    spread = draw.uniform(0.3, 4) * DAY
    time, held = np.zeros(sender.size, dtype=np.int64), np.full(accounts.size, begin, dtype=np.int64)
    amount: Floats = np.zeros(sender.size)
    purse: Floats = np.zeros(accounts.size)
    base = float(town.amounts(900, 1.0, 1)[0])
    for now in range(int(step.max()) + 1):
        legs_now = np.flatnonzero(step == now)
        payer, payee = sender[legs_now], receiver[legs_now]
        delay = spread * draw.random(payer.size) if now == 0 else HOUR // 6 + draw.exponential(12 * HOUR, payer.size)
        time[legs_now] = _by_day(town, held[payer] + delay.astype(np.int64))
        fresh = base * draw.lognormal(0, 0.3, payer.size)
        passed = purse[payer] / np.bincount(payer, minlength=accounts.size)[payer] * draw.uniform(0.9, 1, payer.size)
        amount[legs_now] = fresh if now == 0 else passed
        np.maximum.at(held, payee, time[legs_now])
        purse = np.bincount(payee, weights=amount[legs_now], minlength=accounts.size).astype(np.float64)
    amount = np.maximum(np.where(draw.random(amount.size) < 0.2, np.round(amount, -1), np.round(amount, 2)), 0.5)
    return town.finished(time, accounts[sender], accounts[receiver], amount, _by_hand(town, time.size), pattern)


def _mules(town: Town, count: int, mules: WeightedSampler, across: float) -> Ints:
    """Different accounts; the banks of all but the first are its own, or others with probability `across`."""
    found = [int(mules.sample(1, town.draw)[0])]
    bank = town.accounts.bank[found[0]]
    for _ in range(50 * count):
        if len(found) == count:
            break
        elsewhere = town.draw.random() < across and town.banks > 1
        drawn = mules.sample(64, town.draw)
        fitting = drawn[((town.accounts.bank[drawn] != bank) == elsewhere) & ~np.isin(drawn, found)]
        found += fitting[:1].tolist()
    return np.array(found + found[:1] * (count - len(found)))  # a town with too few accounts repeats one


def _legs(pattern: str, size: int, draw: np.random.Generator) -> Legs:
    """The transfers of a pattern.

    >>> _legs("cycle", 3, np.random.default_rng(0))
    [(0, 1, 0), (1, 2, 1), (2, 0, 2)]
    >>> _legs("scatter_gather", 2, np.random.default_rng(0))
    [(0, 2, 0), (0, 3, 0), (2, 1, 1), (3, 1, 1)]
    """
    if pattern == "fan_in":
        return [(each, 0, 0) for each in range(1, size + 1)]
    if pattern == "fan_out":
        return [(0, each, 0) for each in range(1, size + 1)]
    if pattern == "cycle":
        return [(at, (at + 1) % size, at) for at in range(size)]
    if pattern == "scatter_gather":
        middle = range(2, size + 2)
        return [(0, each, 0) for each in middle] + [(each, 1, 1) for each in middle]
    layers = [int(each) for each in draw.integers(2, 5, 2 if pattern == "bipartite" else 3)]
    starts = np.cumsum([0, *layers]).tolist()
    rows = [range(begin, end) for begin, end in itertools.pairwise(starts)]
    pairs = enumerate(itertools.pairwise(rows))
    return [(payer, payee, step) for step, (upper, lower) in pairs for payer in upper for payee in lower]
