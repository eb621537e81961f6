"""Signatures of dossiers: with the key of a kit, checked with its certificate.

The signature lies beside the JSON and holds the signer's certificate. Whose certificate that is, is known only from a
kit of the same federation, whose authority signed the roster, or from a certificate that the reader has already.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus import store
from isthmus.errors import IsthmusError, missing_extra

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import NameOID
except ImportError as error:
    raise missing_extra("cryptography", "federation", "signatures") from error

if TYPE_CHECKING:
    from isthmus.deploy.kits import Kit

FORMAT = 1
"""Format number of a signature's file."""
PADDING = PSS(mgf=MGF1(SHA256()), salt_length=PSS.MAX_LENGTH)


def signer(kit: Kit) -> dict[str, str]:
    """Who signs with a kit, as the dossier states it."""
    certificate = x509.load_pem_x509_certificate(_read(kit, "crt"))
    about = {"subject": _subject(certificate), "role": kit.role, "federation": kit.federation}
    return {**about, "certificate": _fingerprint(certificate)}


def sign(data: bytes, kit: Kit, path: Path) -> None:
    """Sign the bytes of a dossier with a kit's key, and write the signature."""
    key = load_pem_private_key(_read(kit, "key"), None)
    if not isinstance(key, RSAPrivateKey):
        raise IsthmusError(f"{kit.folder} has no RSA key: make the kit again with isthmus federation new")
    signature = base64.b64encode(key.sign(data, PADDING, SHA256())).decode()
    content = {"format": FORMAT, "signature": signature, "certificate": _read(kit, "crt").decode()}
    store.write(path, json.dumps(content, indent=1) + "\n")


def check_signature(data: bytes, content: Any, path: Path, kit: Kit | None, known: Path | None) -> None:
    """Raise an error if a dossier is not signed by whom it names, or if that is not who may sign it.

    Arguments:
        data: the bytes of the dossier; `content` is what they say.
        path: of the signature.
        kit: of a role of the same federation; without it and without `known`, only the signature itself is checked.
        known: a file with the signer's certificate, or with that of the authority that signed it.
    """
    named = content["signed_by"]
    certificate = _signature_of(data, path)
    subject, party = _subject(certificate), content["party"]
    if (named["subject"], named["certificate"]) != (subject, _fingerprint(certificate)):
        raise IsthmusError(
            f"{path}: it is signed with the certificate of '{subject}', not the one that the dossier names"
        )
    if subject in (content["study"]["parties"] if kit is None else kit.parties) and subject != party:
        raise IsthmusError(f"{path}: party '{subject}' signed it, and a party may sign only its own dossier")
    if kit is not None:
        _check_roster(certificate, kit, path)
    if known is not None:
        _check_known(certificate, known, party, path)


def _signature_of(data: bytes, path: Path) -> x509.Certificate:
    """The certificate of a signature that is right."""
    try:
        content = store.parse_json(store.read(path))
        store.check_format(path, content, FORMAT, "make the dossier again")
        certificate = x509.load_pem_x509_certificate(content["certificate"].encode())
        key = certificate.public_key()
        if not isinstance(key, RSAPublicKey):
            raise ValueError("no RSA key")
        key.verify(base64.b64decode(content["signature"], validate=True), data, PADDING, SHA256())
    except FileNotFoundError as error:
        raise IsthmusError(f"{path}: the signature is missing") from error
    except InvalidSignature as error:
        raise IsthmusError(f"{path}: the signature is not of this dossier") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise IsthmusError(f"{path}: it is no signature ({' '.join(str(error).split())[:100]})") from error
    return certificate


def _check_roster(certificate: x509.Certificate, kit: Kit, path: Path) -> None:
    """Refuse a certificate that is not the present one of its subject in the kit's federation."""
    subject = _subject(certificate)
    if kit.roster().certificates.get(subject) != _fingerprint(certificate):
        raise IsthmusError(
            f"{path}: the certificate of '{subject}' is not the one that the roster of {kit.folder} names: it is of "
            "another federation, or was replaced; if you kept it, give --certificate"
        )


def _check_known(certificate: x509.Certificate, known: Path, party: str, path: Path) -> None:
    """Refuse a certificate that is neither the known one nor signed by it; of the latter only the party's own."""
    try:
        given = x509.load_pem_x509_certificate(store.read(known))
    except (OSError, ValueError) as error:
        raise IsthmusError(f"--certificate {known}: it is no certificate in PEM") from error
    if given == certificate:
        return
    subject = _subject(certificate)
    try:
        certificate.verify_directly_issued_by(given)
    except (InvalidSignature, ValueError, TypeError) as error:
        raise IsthmusError(f"{path}: '{subject}' signed it, with another certificate than {known}") from error
    if subject != party:
        raise IsthmusError(f"{path}: '{subject}' signed it: give its own certificate, or --kit, to know that it may")


def _read(kit: Kit, ending: str) -> bytes:
    name = "server" if kit.role == "server" else "client"
    path = kit.folder / "startup" / f"{name}.{ending}"
    try:
        return store.read(path, within=kit.folder)
    except OSError as error:
        raise IsthmusError(
            f"cannot read {path}: {error.strerror or error}; copy the kit again from who made it"
        ) from error


def _subject(certificate: x509.Certificate) -> str:
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def _fingerprint(certificate: x509.Certificate) -> str:
    return certificate.fingerprint(SHA256()).hex()
