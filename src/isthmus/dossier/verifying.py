"""Checks a dossier: its signature, its page, and the files that it names where they are at hand."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus import store
from isthmus.dossier.contents import FORMAT
from isthmus.dossier.page import HASH, render
from isthmus.dossier.writing import SIGNATURE, read_kit
from isthmus.errors import Errors, IsthmusError
from isthmus.result_files import DOSSIER, audits_in
from isthmus.version import VERSION

if TYPE_CHECKING:
    from isthmus.deploy.kits import Kit

REMEDY = "make the dossier again"


def verify_dossier(
    path: Path, *, run: Path | None = None, kit: Path | None = None, certificate: Path | None = None
) -> list[str]:
    """Check a dossier; return what was checked and what was not, a line each, or raise an error for each fault.

    Arguments:
        path: its JSON, its page, or the folder with it.
        run: the folder with the files that it names; by default, that of the dossier.
        kit: of a role of the same federation; it shows who signed, and a party's has the ledger.
        certificate: the signer's, or the authority's.
    """
    given, path = path, (path / DOSSIER if path.is_dir() else path).with_suffix(".json")
    if not given.exists() and not path.exists():
        raise IsthmusError(f"{given} does not exist: give a dossier, or the folder with it")
    data, content = _read(path)
    held = read_kit(kit)
    errors, lines = Errors(), list[str]()
    with errors.collected():
        lines.append(_signature(data, content, path, held, certificate))
    with errors.collected():
        lines.append(_page(data, content, path))
    of_kit = [] if held is None or held.name != content["party"] else [held.folder]  # others have another ledger
    folders = [run or path.parent, *of_kit]
    missing, right = [], 0
    for each in [*content["files"], *content["models"]]:
        with errors.collected():
            found = _file(each, folders)
            missing += [] if found else [each["file"]]
            right += found
    errors.check()
    lines.append(f"files: {right} are those that it names")
    named = {each["file"] for each in content["files"]}
    if new := [] if content["party"] else [each for each in audits_in(folders[0]) if each not in named]:
        lines.append(f"not in it, because it is older: {', '.join(new)}; isthmus dossier writes it again")
    return lines + ([f"not at hand, so not checked: {', '.join(missing)}"] if missing else [])


def _read(path: Path) -> tuple[bytes, Mapping[str, Any]]:
    try:
        data = store.read(path)
        content = store.parse_json(data)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise IsthmusError(f"cannot read {path}: {reason}; give what isthmus dossier wrote") from error
    store.check_format(path, content, FORMAT, REMEDY)
    with store.expected_content(path, REMEDY):
        entries = [*content["files"], *content["models"]]
        if not all(isinstance(each["file"], str) and {"sha256", "entries", "study"} & each.keys() for each in entries):
            raise ValueError("a file without its hash")
        _ = content["party"], content["isthmus"], content["study"]["parties"]
        by = content["signed_by"]
        if by is not None:
            _ = by["subject"], by["certificate"]
    return data, content


def _signature(data: bytes, content: Mapping[str, Any], path: Path, kit: Kit | None, known: Path | None) -> str:
    """Check who signed, and say so; only a kit or a certificate shows that it was who it says."""
    by, anchored = content["signed_by"], kit is not None or known is not None
    if by is None:
        if anchored:
            raise IsthmusError(f"{path}: it is not signed: ask who made it for the signed one")
        return f"signature: none, so nothing shows who made it; SHA-256 {hashlib.sha256(data).hexdigest()}"
    from isthmus.dossier.signing import check_signature  # needs an extra

    check_signature(data, content, path.with_suffix(SIGNATURE), kit, known)
    if anchored:
        return f"signature: of {by['subject']}"
    return f"signature: by a key that calls itself {by['subject']}; whose it is, only --kit or --certificate shows"


def _page(data: bytes, content: Mapping[str, Any], path: Path) -> str:
    page, digest = path.with_suffix(".html"), hashlib.sha256(data).hexdigest()
    if not page.exists():
        return f"page: {page.name} is not at hand"
    try:
        text = store.read_text(page)
    except (OSError, ValueError) as error:
        raise IsthmusError(f"cannot read {page}: {getattr(error, 'strerror', None) or error}; {REMEDY}") from error
    if HASH.format(digest) not in text:
        raise IsthmusError(f"{page}: it is not the page of {path.name}: it states another hash; {REMEDY}")
    if content["isthmus"] != VERSION:
        return "page: it states the hash of the JSON; isthmus of the version that wrote it compares the rest"
    with store.expected_content(path, REMEDY):
        right = render(content, digest)
    if text != right:
        raise IsthmusError(f"{page}: it was changed: it is not what its JSON gives; {REMEDY}")
    return "page: it is what the JSON gives"


def _file(entry: Mapping[str, Any], folders: list[Path]) -> bool:
    """Whether a file is at hand; if it is, it must be the one that the dossier names."""
    base = next((each for each in folders if (each / entry["file"]).exists()), None)
    if base is None:
        return False
    path = base / entry["file"]
    try:
        store.check_file(path, within=base)
    except OSError as error:
        raise IsthmusError(f"cannot read {path}: {error.strerror or error}; copy it again") from error
    if "entries" in entry:
        from isthmus.deploy.party_ledger import check_head, read_ledger  # needs POSIX

        lines, _ = read_ledger(path)
        check_head(lines, int(entry["entries"]), str(entry["hash"]), path)
    elif "study" in entry:
        from isthmus.deploy.approval import Approvals

        if path.stem != entry["study"]:
            raise IsthmusError(f"{path}: it is not the study that the dossier names")
        Approvals(path.parent).approved(path.stem)  # its content must have this hash
    elif store.hash_file(path) != entry["sha256"]:
        raise IsthmusError(f"{path}: it is not the {entry['what']} that the dossier names: it has another hash")
    return True
