"""What an administrator sees of a federation."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console

from isthmus.errors import IsthmusError
from isthmus.federation.ledger import PartyStanding
from isthmus.progress.standing import parties_table, party_cells, status_of

AT = "2026-05-04T09:30:{:02}.000+00:00"
NORTH = {"round": 3, "seconds": 12.0, "sent": 1200, "received": 800, "seen": AT.format(1), "asked": "", "absent": ""}
SOUTH = {**NORTH, "round": None, "seen": "", "asked": AT.format(2)}
WEST = {**NORTH, "round": 0, "absent": "no answer within 60 s"}


def seen(state: str = "running", **more: Any) -> dict[str, Any]:
    line = {"method": "fedavg", "seed": 0, "at": 3, "rounds": 30, "metrics": {"val_accuracy": 0.815, "test_loss": 1.0}}
    study = {
        "job": "j1", "methods": ["fedavg"], "started": AT.format(0), "state": state, "why": "too few", "lines": [line],
        "fetched": False, "left": 150.0, "parties": {"north": NORTH, "south": SOUTH, "west": WEST}, **more,
    }  # fmt: skip
    older = {**study, "job": "j0", "state": "finished", "fetched": True, "started": AT.format(59), "parties": {}}
    refused = {"north": {"place": "10.0.0.9", "at": "09:00", "why": "revoked"}}
    return {"parties": {"north": True, "west": False}, "refused": refused, "studies": [study, older]}


def printed(told: dict[str, Any], lost: bool = False, width: int = 100, **options: Any) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    for each in status_of(told, lambda job: lost, **options):
        console.print(each)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_a_running_study_has_its_time_left_its_runs_and_its_parties() -> None:
    lines = printed(seen())
    assert lines[:3] == ["north: connected", "west: not connected", "refused 'north' from 10.0.0.9 at 09:00: revoked"]
    assert lines[3] == "2026-05-04T09:30:00  fedavg: running, about 2 min left"
    assert lines[4] == "  fedavg, seed 0: round 3 of 30, validation 81.5%"
    rows = {words[0]: words[1:] for words in map(str.split, lines) if words}
    assert rows["party"] == ["answered", "took", "sent", "received", "last", "reply", "now"]
    assert rows["north"] == ["round", "3", "12", "s", "1.2", "kB", "800", "B", "09:30:01"]
    assert rows["south"][0] == "-"
    assert rows["south"][-3:] == ["-", "asked", "09:30:02"]
    assert " ".join(rows["west"]).startswith("set-up 12 s")
    assert " ".join(rows["west"]).endswith("out: no answer within 60 s")


def test_a_study_that_has_ended_says_how_and_who_was_missing() -> None:
    lines = printed(seen("stopped"))
    assert lines[3].endswith("fedavg: stopped: too few")
    assert "  party 'west' was not there at the end: no answer within 60 s" in lines
    assert not any("answered" in line for line in lines)
    assert printed(seen("finished"))[3].endswith("finished; fetch the results with isthmus federation run --resume")
    assert "its job or server was killed" in printed(seen(), lost=True)[3]


def test_who_follows_a_study_sees_the_newest_one_and_who_is_not_connected() -> None:
    lines = printed(seen(), follow=True)
    assert lines[0] == "west: not connected"
    assert not any("09:30:59" in line for line in lines)


def test_a_table_fits_80_columns_and_a_name_is_no_markup() -> None:
    lines = printed(seen(parties={"[red]bank[/red]": {**WEST, "absent": "long " * 50}}), width=80)
    assert max(map(len, lines)) <= 80
    assert any(line.lstrip().startswith("[red]bank[/red]") for line in lines)
    assert sum(line.count("long") for line in lines) == 50


def test_of_many_parties_those_that_are_out_or_late_are_shown() -> None:
    parties = {f"party-{at}": PartyStanding(1) for at in range(9)}
    parties["party-7"], parties["party-8"] = PartyStanding(asked=AT.format(1)), PartyStanding(absent="gone")
    table = parties_table(parties, 3)
    assert [str(cell) for cell in table.columns[0].cells] == ["party-0", "party-7", "party-8"]
    assert table.caption == "3 of 9 parties"


@pytest.mark.parametrize("change", [{"parties": None}, {"lines": [{}]}, {"left": "soon"}, {"methods": 7}])
def test_a_record_that_cannot_be_read_is_one_line(change: dict[str, Any]) -> None:
    with pytest.raises(IsthmusError, match="run the same version of isthmus everywhere"):
        status_of(seen(**change), lambda job: False)


def test_a_party_that_has_not_replied_has_no_figures() -> None:
    assert party_cells("north", PartyStanding()) == ("north", "-", "0 s", "0 B", "0 B", "-", "")


def test_the_status_loads_no_torch() -> None:
    code = "import sys, isthmus.progress.standing; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120).stdout == "False\n"
