"""The questions of output checking, and the limits that follow from a run's settings."""

from __future__ import annotations

from typing import Any

from isthmus.data.description import CutDescription, PartyDescription
from isthmus.dossier.checking import Facts, known_limits, output_checks


def party(name: str, train: int, test: int, labels: tuple[int, ...]) -> PartyDescription:
    return PartyDescription(name, 100, 100, 0, 0, 0, train, 0, test, 0, labels)


def cut(*parties: PartyDescription) -> CutDescription:
    return CutDescription("node", "class", parties, 100, 0, 0)


def action(**changes: Any) -> dict[str, Any]:
    plain = {
        "action": "train",
        "verb": "total",
        "eyes": "server sees the sum",
        "fields": ["weights/a"],
        "parties": [3, 3],
    }
    return {**plain, **changes}


def content(**changes: Any) -> dict[str, Any]:
    run = {"method": "m", "seed": 0}
    return {
        "of": "federation",
        "sent": {"actions": [action()], "sides": {"differences": []}},
        "models": [{**run, "what": "model", "numbers": 50}],
        "privacy": [{**run, "epsilon": None, "unit": ""}],
        "metrics": [],
        "counted": [run],
        "protections": {"total": {"name": "masks", "threshold": 0.5}, "exchange": "sealed", "noise": "own"},
        **changes,
    }


def asked(question: str, whole: dict[str, Any], facts: Facts) -> tuple[str, bool | None]:
    (found,) = (each for each in output_checks(whole, facts) if question in each["question"])
    return found["answer"], found["look"]


GOOD = Facts([cut(party("a", 40, 20, (30, 30)), party("b", 60, 20, (30, 30)), party("c", 50, 20, (30, 30)))], 3, True)


def test_enough_items_in_every_group_need_no_look() -> None:
    for question in ("How many items", "Is a group", "Does one party", "Over how many"):
        assert asked(question, content(), GOOD)[1] is False, question


def test_few_test_items_of_a_party_matter_where_its_figure_is_given() -> None:
    few = Facts([cut(party("a", 40, 5, (30,)), party("b", 60, 20, (30,)))], 2, True)
    assert asked("How many items", content(), few)[1] is False
    text, look = asked("How many items", content(metrics=[{"worst": {}}]), few)
    assert (text, look) == (
        "25 test items in all; the smallest party, a, has 5, and figures of single parties are given.", True
    )  # fmt: skip


def test_a_small_class_and_a_dominant_party_are_named() -> None:
    facts = Facts([cut(party("a", 90, 20, (30, 4)), party("b", 10, 20, (30, 0)))], 2, True)
    text, look = asked("Is a group", content(), facts)
    assert (text, look) == (
        "The smallest class of a party is class 1 at a: 4. Classes of a party with under 10: 1.", True
    )  # fmt: skip
    assert asked("Does one party", content(), facts) == ("The largest party, a, has 90 % of the training items.", True)
    assert asked("Does one party", content(), Facts([cut(party("a", 90, 20, (30,)))], 2, True))[1] is None


def test_what_is_not_known_is_said() -> None:
    facts = Facts([], 3, True)
    for question in ("How many items", "Is a group", "Does one party"):
        text, look = asked(question, content(), facts)
        assert text.startswith("Not known here")
        assert look is None


def test_sums_over_few_parties_and_single_answers_are_named() -> None:
    pair = {"actions": [action(parties=[2, 3])], "sides": {"differences": []}}
    assert asked("Over how many", content(sent=pair), GOOD) == (
        "Over at least 2. Of a sum over two, each can subtract its own part.", True
    )  # fmt: skip
    ask = action(verb="ask", eyes="server sees each answer", action="size", fields=["nodes"])
    read = {"actions": [ask], "sides": {"differences": []}}
    assert asked("Did the server read", content(sent=read), GOOD) == ("Yes: size (nodes).", True)
    assert asked("Did the server read", content(), GOOD) == ("No.", False)


def test_a_model_could_memorise_unless_there_is_none() -> None:
    assert "nothing bounds what they remember: 1" in asked("model that could memorise", content(), GOOD)[0]
    noisy = content(privacy=[{"method": "m", "seed": 0, "epsilon": 1.0, "unit": "one edge"}])
    assert "with noise" in asked("model that could memorise", noisy, GOOD)[0]
    assert asked("model that could memorise", content(models=[]), GOOD)[1] is False


def test_limits_follow_from_the_settings() -> None:
    def said(facts: Facts = GOOD, **changes: Any) -> str:
        return " ".join(known_limits(content(**changes), facts))

    assert "more than 50 % of a sum's parties" in said()
    bare = {"total": {"name": "none"}, "exchange": "none", "noise": "own"}
    assert "could read it" in said(protections=bare)
    assert "Messages between parties were not sealed" in said(protections=bare)
    assert "CKKS" in said(protections={"total": {"name": "ckks"}})
    assert "All data lay in one process" in said(Facts(GOOD.cuts, 3, apart=False))
    assert "With two parties" in said(Facts(GOOD.cuts, 2, apart=True))
    assert "Masks" not in said(Facts(GOOD.cuts, 3, apart=False))
    assert "No audit was run" in said()
    assert "A failed attack proves little" in said(Facts(GOOD.cuts, 3, True, audited=True))
    spent = [{"method": "m", "seed": 0, "epsilon": 1.0, "unit": "one edge"}]
    assert "What the noise hides is one edge." in said(privacy=spent)
    assert "Without noise" not in said(privacy=spent)
    assert "no epsilon covers them" in said(Facts(GOOD.cuts, 3, apart=False), privacy=spent)
    own = {"protections": {"total": {"name": "masks"}, "noise": "study"}}
    assert ("study's seed" in said(**own), "study's seed" in said(**own, privacy=spent)) == (False, True)
    with_ids = {"sent": {"actions": [action(fields=["ids"])], "sides": {"differences": []}}}
    assert "Ids were hashed" in said(**with_ids)
    assert "Ids were matched" in said(**with_ids, protections={"matching": "oblivious"})
    assert "two sides of the ledger differ" in said(sent={"actions": [], "sides": {"differences": ["one"]}})
