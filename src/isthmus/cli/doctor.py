"""The command that says what is installed, where data are, and what is missing for which feature."""

from __future__ import annotations

import json
import os
import platform
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import typer

from isthmus.cli.common import Json
from isthmus.cli.console import console
from isthmus.version import VERSION

NEEDED = (
    "torch", "torch_geometric", "networkx", "numpy", "scipy", "scikit-learn", "pydantic", "typer", "rich", "pyarrow",
    "safetensors", "matplotlib",
)  # fmt: skip
"""The packages that Isthmus always needs."""

EXTRAS = {
    "metis": ("the partition metis", ("pymetis",)),
    "molecules": ("MoleculeNet, SMILES, the partition scaffold", ("rdkit",)),
    "similar": ("a faster search for similar nodes", ("faiss-cpu",)),
    "tables": ("isthmus party new --tables", ("duckdb",)),
    "federation": ("parties on machines of their own", ("nvflare", "cryptography", "rbcl")),
    "he": ("encrypted totals (ckks)", ("tenseal",)),
    "privacy": ("the account of sampled noise, privacy.epsilon", ("dp-accounting",)),
    "ray": ("--ray: studies larger than one machine", ("ray",)),
    "tensorboard": ("--tensorboard", ("tensorboard",)),
    "mlflow": ("--mlflow", ("mlflow-skinny",)),
    "wandb": ("--wandb", ("wandb",)),
    "tune": ("isthmus tune", ("optuna",)),
    "frames": ("data frames of results: frame()", ("pandas",)),
    "onnx": ("isthmus export --out model.onnx", ("onnx", "onnxscript", "onnxruntime")),
}
"""By extra what it is for, and its packages."""


def doctor_command(as_json: Json = False) -> None:
    """Say what is installed, where data are kept, and what is missing for which feature."""
    found = examine()
    if as_json:
        typer.echo(json.dumps(found))
    else:
        _print(found)
    if found["problems"]:
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    """Look at versions, extras, the device, threads and folders; problems are sentences with their remedy."""
    packages = {name: _version(name) for name in NEEDED}
    missing = [name for name, version in packages.items() if version is None]
    problems = [f"{', '.join(missing)}: not installed; pip install isthmus"] if missing else []
    extras = {name: _extra(name) for name in EXTRAS}
    device: dict[str, Any] = {}
    folders: dict[str, Any] = {}
    try:
        import torch

        from isthmus.data.cache import cache_root
        from isthmus.data.datasets.public import data_root

        ready = [name for name, module in (("cuda", torch.cuda), ("mps", torch.backends.mps)) if module.is_available()]
        device = {
            "available": ["cpu", *ready],
            "gpus": [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())],
        }
        folders = {
            "data": _folder(data_root(), "ISTHMUS_DATA"),
            "cache": _folder(cache_root(), "ISTHMUS_CACHE"),
        }
    except Exception as error:  # a package that is broken raises anything
        problems.append(
            f"PyTorch or PyTorch Geometric cannot be imported ({' '.join(str(error).split())}): install it again"
        )
    for name, each in folders.items():
        if each["exists"] and not each["writable"]:
            problems.append(f"the {name} folder {each['path']} cannot be written: set {each['variable']} to another")
    return {
        "isthmus": VERSION,
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": f"{platform.system()} {platform.machine()}",
        "packages": packages,
        "extras": extras,
        "device": device,
        "threads": {"cores": os.cpu_count(), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS")},
        "folders": folders,
        "problems": problems,
    }


def _version(package: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def _extra(name: str) -> dict[str, Any]:
    feature, packages = EXTRAS[name]
    versions = {package: _version(package) for package in packages}
    whole = all(versions.values())
    return {"for": feature, "packages": versions, "install": None if whole else f"pip install 'isthmus[{name}]'"}


def _folder(path: Path, variable: str) -> dict[str, Any]:
    exists = path.is_dir()
    return {
        "path": str(path), "variable": variable, "set": variable in os.environ, "exists": exists,
        "writable": exists and os.access(path, os.W_OK),
    }  # fmt: skip


def _print(found: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))

    def row(name: str, *cells: str) -> None:
        grid.add_row(f"[bold]{name}[/bold]", *map(escape, cells))

    row("isthmus", f"{found['isthmus']}, Python {found['python']}, {found['system']}")
    row("packages", ", ".join(f"{name} {version or 'missing'}" for name, version in found["packages"].items()))
    if found["device"]:
        row("device", ", ".join([*found["device"]["available"], *found["device"]["gpus"]]))
    threads = found["threads"]
    chosen = threads["OMP_NUM_THREADS"]
    row(
        "threads", f"{threads['cores']} cores; " + (f"OMP_NUM_THREADS={chosen}" if chosen else "studies use one thread")
    )
    for name, each in found["folders"].items():
        how = "" if each["set"] else f" (set {each['variable']} to move it)"
        row(name, f"{each['path']}{'' if each['exists'] else ', not there yet'}{how}")
    screen = console()
    screen.print(grid, highlight=False)
    extras = Table.grid(padding=(0, 2))
    for name, each in found["extras"].items():
        versions = ", ".join(f"{package} {version}" for package, version in each["packages"].items())
        extras.add_row(f"[bold]{name}[/bold]", escape(each["for"]), escape(each["install"] or versions))
    screen.print("\nextras, what they are for, and what is installed or how to install it:", highlight=False)
    screen.print(extras, highlight=False)
    for problem in found["problems"]:
        screen.print(f"problem: {problem}", markup=False, highlight=False)
