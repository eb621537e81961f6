"""A dossier is three files; the same run and day give the same bytes."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from isthmus.dossier.writing import write_dossier
from isthmus.errors import IsthmusError


def test_the_same_run_and_day_give_the_same_bytes(run: Path, tmp_path: Path) -> None:
    again = write_dossier(run, made="2026-05-04", out=tmp_path / "again" / "dossier.json")
    for ending in (".json", ".html"):
        assert again.with_suffix(ending).read_bytes() == (run / "dossier.json").with_suffix(ending).read_bytes()
    assert not list(again.parent.glob("*.sig"))


def test_the_page_states_the_hash_and_that_nobody_signed(run: Path) -> None:
    digest = hashlib.sha256((run / "dossier.json").read_bytes()).hexdigest()
    page = (run / "dossier.html").read_text()
    assert digest in page
    assert "It is not signed" in page
    assert "No purpose was stated" in page


def test_the_day_is_today_unless_given(run: Path) -> None:
    before = datetime.now(UTC).date()
    path = write_dossier(run, purpose="Find fraud.")
    content = json.loads(path.read_text())
    assert before <= datetime.fromisoformat(content["made"]).date() <= datetime.now(UTC).date()
    assert content["purpose"] == "Find fraud."
    with pytest.raises(IsthmusError, match="--date is 'soon': give a day, such as 2026-05-04"):
        write_dossier(run, made="soon")


def test_what_does_not_go_together_is_refused(run: Path, federation: Path) -> None:
    kits = federation / "kits"
    for more, line in (
        ({"party": "party-1", "kit": kits / "party-0"}, "--party is 'party-1', and the kit is that of 'party-0'"),
        ({"study": "ab"}, "--study chooses in a kit's ledger"),
        ({"data": run}, "--data is the folder of the party whose kit makes the dossier"),
        ({"out": run / "page.html"}, "give a name that ends in .json"),
        ({"kit": kits / "party-0"}, "the ledger in .* knows no run of"),
    ):
        with pytest.raises(IsthmusError, match=line):
            write_dossier(run, **more)  # type: ignore[arg-type]
    for folder, kit in ((kits / "admin", None), (kits / "party-0", kits / "party-1")):
        with pytest.raises(IsthmusError, match="is a kit: give a party's kit alone, or a result folder and --kit"):
            write_dossier(folder, kit=kit)
