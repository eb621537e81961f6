"""Environments of other packages: each peer has a virtual environment of its own, outside the repository."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
SHARED = ("torch", "torch_geometric", "numpy", "scipy", "scikit-learn")
"""Packages that a peer takes in the version that Isthmus runs on here, so that both sides stand on the same ground."""


@dataclass(frozen=True)
class Peer:
    """Another package that trains federations of graphs.

    Arguments:
        name: as its authors write it.
        packages: what pip installs, the peer first.
        script: of this folder, the one that serves the peer's rounds (see `side.py`); none where nobody wrote it.
        environment: variables that its process needs.
    """

    name: str
    packages: tuple[str, ...]
    script: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return self.name.lower()


PEERS = (
    Peer(
        "OpenFGL",
        (
            "openfgl-lib==1.1.0", "torch_geometric", "scipy", "scikit-learn", "scikit-network", "dtaidistance",
            "torchmetrics", "ogb", "pymetis", "munkres",
        ),
        script="openfgl_side.py",
        environment={"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},  # it loads its own pickled graphs
    ),
    Peer("FederatedScope", ("federatedscope",)),
    Peer("fedgraph", ("fedgraph",)),
)  # fmt: skip


class NotInstalled(Exception):  # noqa: N818 - says what is the case
    """pip could not install a peer; the text says why, in one line."""


def build(peer: Peer, folder: Path) -> Path:
    """Make the peer's environment if it is not there, and return its Python."""
    home = folder / peer.key
    python, kept = home / "bin" / "python", home / "packages.json"
    pins = [f"{name}=={version(name).partition('+')[0]}" for name in SHARED]
    wanted = json.dumps([*peer.packages, *pins])
    if kept.exists() and kept.read_text() == wanted:
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
    constraints = home / "constraints.txt"
    constraints.write_text("\n".join(pins) + "\n")
    print(f"{peer.name}: pip installs {', '.join(peer.packages)}", file=sys.stderr, flush=True)
    # one call: pip resolves everything before it installs anything, so a peer that cannot be installed fails early
    words = [python, "-m", "pip", "install", "--disable-pip-version-check", "-c", constraints, pins[0], *peer.packages]
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise NotInstalled(why(done.stdout))
    kept.write_text(wanted)
    return python


def why(output: str) -> str:
    """The line of pip's output that says what is wrong.

    >>> why("Collecting x\\n  ModuleNotFoundError: No module named 'torch'\\nerror: subprocess-exited-with-error")
    "ModuleNotFoundError: No module named 'torch'"
    """
    lines = [line.strip() for line in output.splitlines()]
    for form in (r"\w+Error: ", r"ERROR: ", r"error: ", r""):
        found = [line for line in lines if line and re.match(form, line)]
        if found:
            return found[0]
    return "pip said nothing"


def installed_version(python: Path, package: str) -> str:
    """The version of a package in an environment."""
    words = [str(python), "-c", f"from importlib.metadata import version; print(version({package!r}))"]
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
