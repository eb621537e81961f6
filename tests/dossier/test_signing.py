"""Who signed a dossier is known from a kit or a certificate, and a party signs only its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from isthmus.deploy.kits import AUTHORITY, ROSTER, Kit, renew_kit
from isthmus.dossier.signing import check_signature, sign, signer
from isthmus.errors import IsthmusError


def signed(federation: Path, by: str, of: str = "", to: str = "d.sig") -> tuple[bytes, dict[str, object], Path]:
    """A dossier of a party that somebody signed."""
    kit = Kit.read(federation / "kits" / by, None)
    content = {"party": of, "signed_by": signer(kit), "study": {"parties": ["party-0", "party-1", "party-2"]}}
    data = json.dumps(content).encode()
    sign(data, kit, federation / to)
    return data, content, federation / to


def certificate(federation: Path, name: str) -> Path:
    return federation / "kits" / name / "startup" / ("server.crt" if name == "server" else "client.crt")


@pytest.mark.parametrize(("by", "of"), [("party-1", "party-1"), ("admin", ""), ("admin", "party-1"), ("server", "")])
def test_a_right_signature_is_accepted(by: str, of: str, federation: Path) -> None:
    one = signed(federation, by, of)
    kit = Kit.read(federation / "kits" / "party-0", "party")
    check_signature(*one, None, None)
    check_signature(*one, kit, None)
    check_signature(*one, None, certificate(federation, by))
    if by == of:
        check_signature(*one, None, federation / "kits" / "party-0" / "startup" / "rootCA.pem")


def test_a_signature_of_other_bytes_or_none_is_refused(federation: Path) -> None:
    data, content, path = signed(federation, "admin")
    with pytest.raises(IsthmusError, match=r"d\.sig: the signature is not of this dossier"):
        check_signature(data + b" ", content, path, None, None)
    path.write_text("{}")
    with pytest.raises(IsthmusError, match="no format number"):
        check_signature(data, content, path, None, None)
    path.write_text('{"format": 1, "certificate": "x", "signature": ""}')
    with pytest.raises(IsthmusError, match="it is no signature"):
        check_signature(data, content, path, None, None)
    path.unlink()
    with pytest.raises(IsthmusError, match="the signature is missing"):
        check_signature(data, content, path, None, None)


def test_a_party_cannot_sign_for_another_one_or_for_all(federation: Path) -> None:
    kit = Kit.read(federation / "kits" / "party-0", "party")
    for of in ("party-0", ""):
        with pytest.raises(IsthmusError, match="party 'party-1' signed it, and a party may sign only its own dossier"):
            check_signature(*signed(federation, "party-1", of), kit, None)


def test_a_certificate_of_somebody_else_is_refused(federation: Path, untouched_kits_of_others: Path) -> None:
    others = federation.parent / "others"
    shutil.copytree(untouched_kits_of_others, others / "kits")
    strangers = signed(others, "north", "north")
    kit = Kit.read(federation / "kits" / "party-0", "party")
    with pytest.raises(IsthmusError, match=r"certificate of 'north' is not the one that the roster of .* names"):
        check_signature(*strangers, kit, None)
    with pytest.raises(IsthmusError, match="'north' signed it, with another certificate than"):
        check_signature(*strangers, None, kit.folder / "startup" / "rootCA.pem")
    with pytest.raises(IsthmusError, match="'party-1' signed it, with another certificate than"):
        check_signature(*signed(federation, "party-1", "party-1"), None, certificate(federation, "party-0"))
    data, content, path = signed(federation, "party-1", "party-1")
    (federation / "d.sig").write_text((others / "d.sig").read_text())
    with pytest.raises(IsthmusError, match="the signature is not of this dossier"):
        check_signature(data, content, path, None, None)
    with pytest.raises(IsthmusError, match="give its own certificate, or --kit"):  # the root knows no roles
        check_signature(*signed(federation, "admin"), None, kit.folder / "startup" / "rootCA.pem")


def test_a_signature_by_a_certificate_that_the_dossier_does_not_name_is_refused(federation: Path) -> None:
    data, content, path = signed(federation, "party-1", "party-1")
    sign(data, Kit.read(federation / "kits" / "party-0", "party"), path)
    with pytest.raises(IsthmusError, match="certificate of 'party-0', not the one that the dossier names"):
        check_signature(data, content, path, None, None)


def test_a_kit_that_was_replaced_signs_no_more(federation: Path) -> None:
    one = signed(federation, "party-1", "party-1")
    renew_kit(federation / "kits" / AUTHORITY, "party-1", federation / "new")
    shutil.copy(federation / "new" / ROSTER, federation / "kits" / "party-0" / ROSTER)
    kit = Kit.read(federation / "kits" / "party-0", "party")
    with pytest.raises(IsthmusError, match="was replaced; if you kept it, give --certificate"):
        check_signature(*one, kit, None)
    check_signature(*one, None, certificate(federation, "party-1"))
