"""What a dossier asks of the outputs, and what it says that nothing protects.

The questions are those of statistical output checking (the SATRE specification's safe outputs): enough items behind a
figure, no small groups, nobody who dominates a sum, and whether an output is a model that could memorise. The limits
are those of the threat model that apply to the run's settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isthmus.report import wording

FEW = 10
"""Fewer items than this are few: the usual threshold of output checking."""
DOMINANT = 0.5
"""Share of the training items from which on one party dominates."""
TWO = 2
"""With so many parties in a sum, each can subtract its own part."""
UNKNOWN = "Not known here"

Answer = tuple[str, bool | None]
"""A text, and whether a person should look at it; None if it is not known."""


@dataclass(frozen=True)
class Facts:
    """What the answers need beside the content.

    Attributes:
        cuts: what the parties held; empty where that is not known.
        parties: their number.
        apart: whether they had machines of their own.
        more: other results that may have a row for each item.
        audited: whether audits were run.
    """

    cuts: Sequence[Any]
    parties: int
    apart: bool
    more: Sequence[str] = ()
    audited: bool = False


def output_checks(content: Mapping[str, Any], facts: Facts) -> list[dict[str, Any]]:
    """Return the questions of output checking with their answers.

    Arguments:
        content: the dossier so far.
        facts: what the content does not say.
    """
    answers = {
        "How many items are behind a figure?": _smallest_test_set(content, facts.cuts),
        "Is a group so small that somebody may be recognised?": _smallest_class(facts.cuts),
        "Does one party dominate?": _dominance(facts.cuts, facts.parties),
        "Over how many parties are sums?": _sums(content),
        "Did the server read answers of single parties?": _single_answers(content),
        "Is an output a model that could memorise?": _models(content),
        "Does an output have a row for each item?": _rows(facts.more),
        "Do several releases add up?": _releases(content),
    }
    return [{"question": each, "answer": text, "look": look} for each, (text, look) in answers.items()]


def _smallest_test_set(content: Mapping[str, Any], cuts: Sequence[Any]) -> Answer:
    counts = [(party.test, party.name) for cut in cuts for party in cut.parties if party.test]
    if not counts:
        return f"{UNKNOWN}: only a party knows how many test items it has.", None
    single = any("worst" in each or "own" in each for each in content["metrics"])
    (few, name), total = min(counts), max(sum(party.test for party in cut.parties) for cut in cuts)
    whose = "figures of single parties are given" if single else "no figure of a single party is given"
    if all(len(cut.parties) == 1 for cut in cuts):
        return f"{name} has {few:,} test items, and {whose}.", few < FEW
    text = f"{total:,} test items in all; the smallest party, {name}, has {few:,}, and {whose}."
    return text, total < FEW or (single and few < FEW)


def _smallest_class(cuts: Sequence[Any]) -> Answer:
    groups = [
        (count, cut.label(at), party.name)
        for cut in cuts
        for party in cut.parties
        for at, count in enumerate(party.labels)
        if count
    ]
    if not groups:
        return f"{UNKNOWN}: no counts of classes are in the results.", None
    few, label, name = min(groups)
    small = sum(count < FEW for count, _, _ in groups)
    text = (
        f"The smallest class of a party is {label} at {name}: {few:,}. Classes of a party with under {FEW}: {small:,}."
    )
    return text, small > 0


def _dominance(cuts: Sequence[Any], parties: int) -> Answer:
    shares = []
    for cut in cuts:
        total = sum(party.train for party in cut.parties)
        shares += [(party.train / total, party.name) for party in cut.parties] if total else []
    if not shares or any(len(cut.parties) < parties for cut in cuts):
        return f"{UNKNOWN}: only all parties together know the share of each.", None
    share, name = max(shares)
    return f"The largest party, {name}, has {100 * share:.0f} % of the training items.", share > DOMINANT


def _sums(content: Mapping[str, Any]) -> Answer:
    counts = [
        each["parties"][0] for each in content["sent"]["actions"] if each["verb"] == "total" and each["parties"][0]
    ]
    if not counts:
        return "Nothing was summed.", False
    alone = " A sum over one party is that party's own." if min(counts) == 1 else ""
    pair = " Of a sum over two, each can subtract its own part." if min(counts) == TWO else ""
    return f"Over at least {min(counts)}.{alone}{pair}", min(counts) <= TWO


def _single_answers(content: Mapping[str, Any]) -> Answer:
    read = [each for each in content["sent"]["actions"] if each["eyes"] == "server sees each answer"]
    if not read:
        return "No.", False
    fields = list(dict.fromkeys(f"{each['action']} ({', '.join(each['fields'][:4]) or 'no field'})" for each in read))
    return f"Yes: {'; '.join(fields)}.", any(each["fields"] for each in read)


def _models(content: Mapping[str, Any]) -> Answer:
    found = [each for each in content["models"] if each["what"] in ("model", "graph") and each["numbers"]]
    if not found:
        return "No model is among the outputs.", False
    noise = {(each["method"], each["seed"]) for each in content["privacy"] if each["epsilon"] is not None}
    bare = [each for each in found if (each["method"], each["seed"]) not in noise]
    largest = max(each["numbers"] for each in found)
    text = (
        f"Yes, {len(found):,} (models or graphs), of up to {largest:,} numbers; weights depend on the training data. "
    )
    if not bare:
        return text + "All were made from data with noise; the section on privacy says what that bounds.", True
    return text + f"Made without noise, so that nothing bounds what they remember: {len(bare):,}.", True


def _rows(more: Sequence[str]) -> Answer:
    what = {"places.parquet": "the coordinates of all items", "graphs": "made graphs, whose nodes are synthetic"}
    texts = [what[name] for name in more if name in what]
    return (f"Yes: {wording.join_words(texts)}.", "places.parquet" in more) if texts else ("No.", False)


def _releases(content: Mapping[str, Any]) -> Answer:
    runs = len({(each["method"], each["seed"]) for each in content["counted"] if each["seed"] is not None})
    if runs == 1:
        return "One run. Other studies of the same data add to it, and this document does not know of them.", False
    return f"Yes: {runs:,} runs of the same data. What each tells adds up, and so does what other studies tell.", True


# ---- known limits


def known_limits(content: Mapping[str, Any], facts: Facts) -> list[str]:
    """What the run does not protect against, given its settings."""
    return [*_of_place(content, facts), *_of_totals(content, facts), *_of_outputs(content, facts), *_of_all()]


def _of_place(content: Mapping[str, Any], facts: Facts) -> Iterator[str]:
    if not facts.apart:
        yield "All data lay in one process. The run shows what each role would see; it hid nothing from who ran it."
    else:
        yield "Nothing protects a party from whoever can read the files or the memory of its machine."
        yield "A party's ledger shows changes only to somebody who holds a later head of it."
        yield "Against a server that runs parties of its own, only the list of parties in the kits helps: know them."


def _of_totals(content: Mapping[str, Any], facts: Facts) -> Iterator[str]:
    if not facts.apart:
        return
    protections = content["protections"]
    total = protections.get("total") or {}
    kind = total.get("name", "masks")
    if kind == "none":
        yield "Totals were not protected: the server held every party's part for a moment, and could read it."
    if kind == "masks":
        share = 100 * float(total.get("threshold", 0.5))
        yield f"Masks: a server and more than {share:.0f} % of a sum's parties, working together, can open one part."
    if kind == "ckks":
        yield "CKKS protects from a server that follows the protocol only, and from no party that helps the server."
    if protections.get("exchange") == "none":
        yield "Messages between parties were not sealed: the server could read them."
    if protections.get("noise") == "study" and any(each["epsilon"] is not None for each in content["privacy"]):
        yield "Noise was drawn from the study's seed, which the server knows: it hides nothing from the server."
    if facts.parties <= TWO:
        yield "With two parties, each can subtract its own part from every sum."
    if any("ids" in each["fields"] for each in content["sent"]["actions"]):
        if protections.get("matching") == "oblivious":
            yield (
                "Ids were matched under pseudonyms: the server saw which parties share how many, and each party could "
                "test as many guesses as it sent points."
            )
        else:
            yield "Ids were hashed, not hidden: whoever has the key and can list all ids can test who is in the union."


def _of_outputs(content: Mapping[str, Any], facts: Facts) -> Iterator[str]:
    units = sorted({each["unit"] for each in content["privacy"] if each["epsilon"] is not None})
    for unit in units:
        yield f"What the noise hides is {unit}. Runs with other seeds or methods, and other studies, spend again."
    if units and not facts.apart:
        yield "Metrics and files of a study in one process were measured on the data: no epsilon covers them."
    if any(each["epsilon"] is None for each in content["privacy"]) or not units:
        yield "Without noise, nothing limits what models, sums and metrics may reveal about a single item."
    if facts.audited:
        yield "A failed attack proves little: audits are lower bounds, and a better attack may find more."
    elif content["of"] != "party":
        yield "No audit was run: how well known attacks do against these models was not measured."
    if content["sent"]["sides"]["differences"]:
        yield "The two sides of the ledger differ. Ask both before you rely on what was sent."


def _of_all() -> Iterator[str]:
    yield "A party that lies within bounds, with poisoned data or slightly wrong weights, is not recognised."
    yield "Figures hold for data like these; a change in the data is a change in the figures."
    yield "A signature says who made this document and that it was not changed, not that what it says is right."
