"""Start-up kits: who is in a federation, with which keys, and how one of them gets new ones.

The authority is the key that signs the certificates of all kits. It signs the roster too: for every kit the certificate
that it has now, and for every party the public key that messages to it are sealed with. A renewed kit comes with a
roster of a higher number, so the kit before it is of no use, and nobody but the authority can say whose key is whose.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from isthmus import store
from isthmus.errors import IsthmusError, missing_extra
from isthmus.version import VERSION

try:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509 import load_pem_x509_certificate
    from nvflare.lighter.utils import load_private_key, sign_content, verify_content
except ImportError as error:
    raise missing_extra("NVIDIA FLARE", "federation", "a federation") from error

if TYPE_CHECKING:
    from isthmus.protect.sealing import Keyring

FORMAT = 2
"""Format number of a kit. Raise it when kits of other versions can no longer be used, such as when a class moves."""
KIT = "kit.json"
"""The file in a kit that says whose kit it is."""
ROSTER = "roster.json"
"""The file in a kit, signed by the authority, that says which keys are whose."""
SEAL = "seal.key"
"""The file in a party's kit with its private key to seal messages with."""
AUTHORITY = "authority"
"""The folder with the authority's key, and the file in it that describes the federation."""
ADMIN = "admin@isthmus.local"
ORGANISATION = "isthmus"
COPY_AGAIN = "copy the kit again from whoever made it"
ROOT, ROOT_KEY = "rootCA.pem", "root.key"
"""The files in the authority's folder with its certificate and its key."""

Role = Literal["server", "party", "admin"]


@dataclass(frozen=True)
class Roster:
    """Which keys are whose, as the authority signed it.

    Arguments:
        number: of two rosters of a federation the one with the higher number counts.
        seals: the public key of each party, to seal messages for it.
        certificates: by the name in it the fingerprint of each kit's certificate.
    """

    federation: str
    number: int
    seals: Mapping[str, str]
    certificates: Mapping[str, str]

    def sign(self, key: Any) -> str:
        """Return the text of the roster's file."""
        content = json.dumps(asdict(self))
        return json.dumps({"content": content, "signature": sign_content(content, key)})

    @classmethod
    def open(cls, text: str, root: bytes) -> Roster:
        """Return a roster, or raise an error if the owner of this certificate has not signed it."""
        try:
            signed = json.loads(text)
            key = load_pem_x509_certificate(root).public_key()
            verify_content(signed["content"], signed["signature"], key)
            return cls(**json.loads(signed["content"]))
        except (InvalidSignature, UnsupportedAlgorithm, ValueError, KeyError, TypeError, AttributeError,
                RecursionError) as error:  # fmt: skip
            raise IsthmusError(f"this {ROSTER} is not signed by the authority of this federation") from error


@dataclass(frozen=True)
class Kit:
    """A start-up kit: whose it is, and of which federation."""

    federation: str
    role: Role
    name: str
    host: str
    port: int
    parties: tuple[str, ...]
    folder: Path

    @classmethod
    def read(cls, folder: Path, role: Role | None) -> Kit:
        """Read the kit in a folder, and check its format and, if one is expected, its role."""
        remedy = "make new kits for all parties with isthmus federation new"
        try:
            content = store.read_json(folder / KIT, within=folder)
            store.check_format(folder / KIT, content, FORMAT, remedy)
            for key in ("format", "isthmus"):
                content.pop(key)
            kit = cls(**{**content, "parties": tuple(content["parties"]), "folder": folder.resolve()})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise IsthmusError(f"{folder} is no start-up kit: {remedy}") from error
        if role is not None and kit.role != role:
            raise IsthmusError(f"{folder} is the kit of the federation's {kit.role}: give the kit of its {role}")
        return kit

    @property
    def state(self) -> Path:
        """Where a party keeps what a restart needs, its models, its ledger, and the studies that it approved."""
        return self.folder / "state"

    def roster_text(self) -> str:
        """Return the text of the kit's roster."""
        try:
            return store.read_text(self.folder / ROSTER, within=self.folder)
        except (OSError, ValueError) as error:
            raise IsthmusError(f"cannot read {self.folder / ROSTER}: copy it from whoever made the kit") from error

    def roster(self) -> Roster:
        """Return the kit's roster, once its signature is checked."""
        return self._open(self.roster_text())

    def adopt(self, text: str) -> bool:
        """Take a roster into the kit if it is newer than the kit's own; return whether it is."""
        if self._open(text).number <= self.roster().number:
            return False
        store.write(self.folder / ROSTER, text)
        return True

    def _open(self, text: str) -> Roster:
        try:
            root = store.read(self.folder / "startup" / "rootCA.pem", within=self.folder)
        except OSError as error:
            raise IsthmusError(f"{error}: {COPY_AGAIN}") from error
        roster = Roster.open(text, root)
        if roster.federation != self.federation:
            raise IsthmusError(f"this {ROSTER} is of another federation, '{roster.federation}'")
        return roster

    def ring(self) -> Keyring:
        """Return the party's own key and the public keys of all parties."""
        from isthmus.protect.sealing import Keyring, public_key

        path, seals = self.folder / SEAL, self.roster().seals
        try:
            own = bytes.fromhex(store.read_text(path, within=self.folder).strip())
            publics = {party: bytes.fromhex(public) for party, public in seals.items()}
            if public_key(own) != publics[self.name]:
                raise ValueError("not this party's key")
        except (OSError, ValueError, KeyError) as error:
            raise IsthmusError(
                f"{path} is not the key of party '{self.name}': use its newest kit, or {COPY_AGAIN}"
            ) from error
        return Keyring(self.name, own, publics)


def fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate in PEM."""
    return hashlib.sha256(load_pem_x509_certificate(certificate).public_bytes(Encoding.DER)).hexdigest()


# ---- making kits


@dataclass(frozen=True)
class Authority:
    """What the authority knows of its federation.

    Arguments:
        days: how long certificates are valid.
    """

    federation: str
    host: str
    port: int
    parties: tuple[str, ...]
    days: int

    def owners(self) -> list[tuple[Role, str, str]]:
        """Return of every kit its role, the name of its folder, and the name in its certificate."""
        parties: list[tuple[Role, str, str]] = [("party", party, party) for party in self.parties]
        return [("server", "server", self.host), ("admin", "admin", ADMIN), *parties]

    def finish(self, role: Role, name: str, provisioned: Path, folder: Path, seal: bytes | None) -> Kit:
        """Turn a folder that FLARE provisioned into a kit."""
        kit = Kit(self.federation, role, name, self.host, self.port, self.parties, folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(provisioned, folder)
        for script in folder.glob("startup/*.sh"):  # kits are started with isthmus
            script.unlink()
        for each in ("readme.txt", "startup/readme.txt", "startup/system_info.ipynb"):
            (folder / each).unlink(missing_ok=True)
        content = {key: value for key, value in asdict(kit).items() if key != "folder"}
        store.write_json(folder / KIT, {"format": FORMAT, "isthmus": VERSION, **content})
        if seal is not None:
            store.write(folder / SEAL, seal.hex(), private=True)
        for key in folder.rglob("*.key"):
            key.chmod(0o600)
        folder.chmod(0o700)
        return kit


def make_kits(name: str, parties: Sequence[str], host: str, port: int, out: Path, *, days: int = 360) -> list[Kit]:
    """Make start-up kits for the server, every party and the administrator, and the authority's folder."""
    from isthmus.protect.sealing import generate_keyrings

    check_parties(parties, host)
    _check_host(host)
    authority = Authority(name, host, port, tuple(parties), days)
    with _new_folder(out), tempfile.TemporaryDirectory() as temporary:
        provisioned, root, key = _provision(authority, Path(temporary))
        rings = generate_keyrings(authority.parties)
        kits, certificates = [], {}
        for role, owner, subject in authority.owners():
            certificates[subject] = _certificate(provisioned / subject)
            seal = rings[owner].private_key if role == "party" else None
            kits.append(authority.finish(role, owner, provisioned / subject, out / owner, seal))
        seals = {party: ring.public_keys[party].hex() for party, ring in rings.items()}
        text = Roster(name, 1, seals, certificates).sign(load_private_key(key))
        for kit in kits:
            store.write(kit.folder / ROSTER, text)
        folder = out / AUTHORITY
        folder.mkdir(mode=0o700)
        store.write(folder / ROOT, root)
        store.write(folder / ROOT_KEY, key, private=True)
        store.write_json(folder / f"{AUTHORITY}.json", {"format": FORMAT, "isthmus": VERSION, **asdict(authority)})
        store.write(folder / ROSTER, text)
    return kits


def renew_kit(folder: Path, name: str, out: Path) -> Kit:
    """Make a new kit for a party or the administrator; the roster that comes with it voids the old one.

    Arguments:
        folder: of the authority.
        name: the party, or `admin`.
    """
    from isthmus.protect.sealing import generate_keyrings

    authority, root, key, roster = _read_authority(folder)
    found = next((each for each in authority.owners() if each[1] == name and each[0] != "server"), None)
    if found is None:
        known = ", ".join(["admin", *authority.parties])
        raise IsthmusError(f"no kit of '{name}' can be renewed: this federation has {known}")
    role, owner, subject = found
    with _new_folder(out), tempfile.TemporaryDirectory() as temporary:
        provisioned, _, _ = _provision(authority, Path(temporary), (root, key))
        ring = generate_keyrings((owner,))[owner]
        renewed = Roster(
            authority.federation,
            roster.number + 1,
            {**roster.seals, owner: ring.public_keys[owner].hex()} if role == "party" else roster.seals,
            {**roster.certificates, subject: _certificate(provisioned / subject)},
        )
        text = renewed.sign(load_private_key(key))
        out.rmdir()
        kit = authority.finish(role, owner, provisioned / subject, out, ring.private_key if role == "party" else None)
        store.write(kit.folder / ROSTER, text)
        store.write(folder / ROSTER, text)
    return kit


def _read_authority(folder: Path) -> tuple[Authority, str, str, Roster]:
    remedy = f"give the folder '{AUTHORITY}' that isthmus federation new made"
    try:
        content = store.read_json(folder / f"{AUTHORITY}.json", within=folder)
        store.check_format(folder / f"{AUTHORITY}.json", content, FORMAT, "make new kits with isthmus federation new")
        known = {key: value for key, value in content.items() if key not in ("format", "isthmus")}
        authority = Authority(**{**known, "parties": tuple(known["parties"])})
        root, key = ((folder / name).read_text(encoding="ascii") for name in (ROOT, ROOT_KEY))
        load_private_key(key)
        roster = Roster.open((folder / ROSTER).read_text(encoding="utf-8"), root.encode())
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise IsthmusError(f"{folder} is not the folder of an authority: {remedy}") from error
    return authority, root, key, roster


@contextmanager
def _new_folder(out: Path) -> Iterator[None]:
    """Create a folder, or take an empty one; leave things as they were if anything goes wrong."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise IsthmusError(f"{out} is not empty: choose another folder for the kits")
    existed = out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        if existed:
            out.mkdir()
        raise


def check_parties(parties: Sequence[str], host: str = "") -> None:
    """Refuse names that no kit can have."""
    from nvflare.apis.utils.format_check import name_check

    for party in parties:
        if name_check(party, "client")[0] or party in ("server", "admin", AUTHORITY, host):
            raise IsthmusError(
                f"party '{party}': use the letters a to z, digits, '-' and '_', and not the name of a role or host"
            )
    if len(set(parties)) < len(parties) or not parties:
        raise IsthmusError("no party, or one twice: name every party of the federation once, --parties bank-a,bank-b")


def _check_host(host: str) -> None:
    from nvflare.apis.utils.format_check import name_check

    if name_check(host, "host_name")[0] or host.replace(".", "").isdigit():
        raise IsthmusError(f"server '{host}' is not a host name, which its certificate needs: give --server HOST:PORT")


def _provision(authority: Authority, folder: Path, root: tuple[str, str] | None = None) -> tuple[Path, str, str]:
    """Have FLARE make a folder for every kit; return where they are, and the authority's certificate and key.

    Arguments:
        root: the authority's certificate and key; without, new ones.
    """
    import nvflare.lighter
    from nvflare.lighter.entity import Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.signature import SignatureBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner
    from nvflare.lighter.utils import load_yaml

    given: dict[str, Any] = {}
    if root is not None:
        given = {"serialized_root_cert": root[0].encode(), "root_private_key": load_private_key(root[1])}
    project = Project(authority.federation, "a federation", props={"api_version": 3}, **given)
    ports = {"fed_learn_port": authority.port, "admin_port": authority.port}
    project.set_server(authority.host, ORGANISATION, ports)
    for party in authority.parties:
        project.add_client(party, ORGANISATION, {})
    project.add_admin(ADMIN, ORGANISATION, {"role": "project_admin"})
    builders = [WorkspaceBuilder(), StaticFileBuilder(scheme="grpc"), CertBuilder(authority.days), SignatureBuilder()]
    provisioner = Provisioner(str(folder), builders)
    templates = Path(nvflare.lighter.__file__).parent / "templates" / "master_template.yml"
    provisioner.add_template(load_yaml(str(templates)))
    with captured_output() as output:
        context = provisioner.provision(project)
    if context.get("build_error") or "current_prod_dir" not in context:
        raise IsthmusError(f"cannot make the kits: {' '.join(output.getvalue().split())[-300:]}")
    if root is None:
        made = json.loads((folder / authority.federation / "state" / "cert.json").read_text(encoding="utf-8"))
        root = made["root_cert"], made["root_pri_key"]
    return Path(context["current_prod_dir"]), *root


def _certificate(provisioned: Path) -> str:
    """Return the fingerprint of the certificate in a folder of FLARE's."""
    file = next(each for each in (provisioned / "startup").glob("*.crt"))
    return fingerprint(file.read_bytes())


def write_json(path: Path, value: Any) -> None:
    store.write(path, json.dumps(value, indent=1))


@contextmanager
def captured_output() -> Iterator[StringIO]:
    """Capture what FLARE's tools print; it is only of use when something fails."""
    output = StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        yield output
