"""Compares the coordinator's ledger of a run with what every party's own ledger says of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from isthmus.deploy.remote import RemoteTransport
from isthmus.federation.ledger import DELIVERY, Ledger

READABLE = ("none", "sealed")
"""Protections under which both sides count the bytes of the same payloads; masks and ciphertexts take several steps."""

Counts = dict[tuple[str, str, str], tuple[int, int]]
"""By verb, action and eyes: how often a party answered, and how many bytes; -1 where they cannot be compared."""


def reconcile(transport: RemoteTransport, ledger: Ledger, run: str) -> dict[str, Any]:
    """Ask the parties for accounts of a run; return the differences, a line each, and the heads of their ledgers.

    Arguments:
        run: what the lines call it.
    """
    accounts = transport.accounts()
    lines, heads = list[str](), dict[str, Any]()
    for party in transport.parties:
        account = accounts.get(party, "absent")
        try:
            if isinstance(account, str):
                raise ValueError(account)
            theirs = of_party(account["totals"])
            heads[party] = {"entries": int(account["head"]["entries"]), "hash": str(account["head"]["hash"])[:64]}
        except ValueError as error:
            lines.append(f"{run}: no account of the ledger of party '{party}' ({error})")
        except (KeyError, TypeError, AttributeError, OverflowError):
            lines.append(f"{run}: party '{party}' sent an account of its ledger that cannot be read")
        else:
            lines += [
                f"{run}: party '{party}', {each}" for each in differences(of_server(ledger.rows(), party), theirs)
            ]
    return {"differences": lines, "heads": heads}


def differences(server: Counts, party: Counts) -> list[str]:
    """List where two counts of one party's answers differ.

    >>> differences({("total", "train", "server sees the sum"): (2, 80)}, {})
    ["train (total, server sees the sum): answered 0 times by its own ledger, 2 times by the server's"]
    """
    lines = []
    for key in sorted(server.keys() | party.keys()):
        verb, action, eyes = key
        (said, sent), (answered, size) = server.get(key, (0, 0)), party.get(key, (0, 0))
        if answered != said:
            how = f"answered {answered} times by its own ledger, {said} times by the server's"
        elif size != sent and -1 not in (size, sent):
            how = f"sent {size:,} bytes by its own ledger, {sent:,} bytes by the server's"
        else:
            continue
        lines.append(f"{action} ({verb}, {eyes}): {how}")
    return lines


def of_server(rows: Iterable[Mapping[str, Any]], party: str) -> Counts:
    """Count a party's answers in rows of the server's ledger, which may be a result folder's."""
    found: Counts = {}
    for row in rows:
        if row["party"] != party or row["status"] != "answered" or row["action"].endswith(DELIVERY):
            continue
        size = row["sent"] if row["protection"] in READABLE else -1
        _add(found, (row["verb"], row["action"], row["eyes"]), 1, size)
    return found


def of_party(totals: Any) -> Counts:
    """Count a party's answers in the totals of its own ledger, which it may have sent."""
    found: Counts = {}
    for row in totals:
        if answers := int(row["answers"]):
            size = int(row["sent"]) if row["protection"] in READABLE else -1
            _add(found, (str(row["verb"])[:9], str(row["action"])[:99], str(row["eyes"])[:99]), answers, size)
    return found


def _add(found: Counts, key: tuple[str, str, str], answers: int, size: int) -> None:
    before, sent = found.get(key, (0, 0))
    found[key] = before + answers, -1 if -1 in (size, sent) else sent + size
