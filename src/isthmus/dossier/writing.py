"""Writes a dossier: its JSON, which is the truth, its page, and its signature if a kit is at hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from isthmus import store
from isthmus.dossier.contents import content_of_run
from isthmus.dossier.page import render
from isthmus.errors import IsthmusError
from isthmus.result_files import DOSSIER

if TYPE_CHECKING:
    from isthmus.deploy.kits import Kit

SIGNATURE = ".sig"
"""How the name of a signature's file ends, in place of .json."""
KIT = "kit.json"
"""The file by which a start-up kit is known."""


def write_dossier(
    folder: Path,
    *,
    kit: Path | None = None,
    party: str = "",
    study: str = "",
    data: Path | None = None,
    purpose: str = "",
    made: str = "",
    out: Path | None = None,
) -> Path:
    """Write the dossier of a result folder, or of a party from its kit, and return the path of its JSON.

    Arguments:
        folder: a result folder, or the kit of a party.
        kit: whose key signs; a party's kit also makes the dossier that of the party, with its own ledger.
        party: the party that it is for.
        study: of a kit's ledger with several studies, how the hash of one begins.
        data: of a kit, the party folder, to count what the party holds.
        made: the day, such as 2026-05-04; by default, today in UTC.
        out: the JSON file; by default `dossier.json` in the folder, or `dossier-PARTY.json` in a result folder.
    """
    try:
        made = date.fromisoformat(made).isoformat() if made else datetime.now(UTC).date().isoformat()
    except ValueError as error:
        raise IsthmusError(f"--date is '{made}': give a day, such as 2026-05-04") from error
    own = (folder / KIT).exists()
    signed_by = read_kit(folder if own and kit is None else kit)
    at_party = signed_by is not None and signed_by.role == "party"
    _check_choice(folder, own, signed_by, party, study, data)
    if own or at_party:
        from isthmus.dossier.party import content_of_party  # needs POSIX

        assert signed_by is not None
        more: dict[str, Any] = {"study": study, "data": data, "purpose": purpose, "run": None if own else folder}
        content = content_of_party(signed_by.folder, signed_by.name, made, **more)
    else:
        content = content_of_run(folder, made, party=party, purpose=purpose)
    stem = Path(DOSSIER).stem
    name = DOSSIER if own or not content["party"] else f"{stem}-{quote(content['party'], safe='')}.json"
    path = folder / name if out is None else out
    if path.suffix != ".json":
        raise IsthmusError(f"--out is {path}: give a name that ends in .json; the page and the signature lie beside it")
    _write(content, signed_by, path)
    return path


def _check_choice(folder: Path, own: bool, kit: Kit | None, party: str, study: str, data: Path | None) -> None:
    """Refuse what does not go together."""
    at_party = kit is not None and kit.role == "party"
    if own and (kit is None or not at_party or kit.folder != folder.resolve()):
        raise IsthmusError(f"{folder} is a kit: give a party's kit alone, or a result folder and --kit")
    if at_party and kit is not None and party not in ("", kit.name):
        raise IsthmusError(f"--party is '{party}', and the kit is that of '{kit.name}': a party signs only its own")
    if study and not own:
        raise IsthmusError("--study chooses in a kit's ledger: leave it out, the results are of one study")
    if data is not None and not at_party:
        raise IsthmusError("--data is the folder of the party whose kit makes the dossier: add --kit, or leave it out")


def read_kit(folder: Path | None) -> Kit | None:
    """The kit in a folder, whoever's it is."""
    if folder is None:
        return None
    from isthmus.deploy.kits import Kit  # needs an extra

    return Kit.read(folder, None)


def _write(content: Mapping[str, Any], kit: Kit | None, path: Path) -> None:
    if kit is not None:
        from isthmus.dossier.signing import signer  # needs an extra

        content = {**content, "signed_by": signer(kit)}
    data = (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
    store.write(path, data)
    store.write(path.with_suffix(".html"), render(json.loads(data), hashlib.sha256(data).hexdigest()))
    path.with_suffix(SIGNATURE).unlink(missing_ok=True)  # of an older dossier
    if kit is not None:
        from isthmus.dossier.signing import sign

        sign(data, kit, path.with_suffix(SIGNATURE))
