"""The wheel works where there is no checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PAPERS = ROOT / "benchmarks" / "papers"
SHORT = ROOT / "tests" / "docs" / "short.py"
FIRST_PAGES = [f"docs/{name}.md" for name in ("start", "folders", "studies", "tuning", "using")]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def call(*command: object, cwd: Path) -> str:
    """Run a command that sees no package by its environment alone, and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ISTHMUS_DATA"))}
    words = [str(each) for each in command]
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `make wheel` makes: it is built from the source archive, not from the checkout."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment with the wheel and what it needs."""
    return environment(wheel, tmp_path_factory.mktemp("fresh"), "isthmus")


def environment(wheel: Path, folder: Path, *packages: str) -> Path:
    """Make an environment with the wheel, and return its programs.

    Other packages, which take minutes, are those of this environment, but only what `packages` say that they need, and
    what that needs.
    """
    call(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    programs = folder / "bin"
    pip = (sys.executable, "-m", "pip", "--python", programs / "python")
    call(*pip, "install", "--no-index", "--no-deps", wheel, cwd=folder)
    (installed,) = folder.glob("lib/*/site-packages")
    there = Path(sysconfig.get_path("purelib"))
    for name in needed_by(*packages, there=there):
        (installed / name).symlink_to(there / name)
    where = call(programs / "python", "-c", "import isthmus; print(isthmus.__file__)", cwd=folder)
    assert Path(where.strip()) == installed / "isthmus" / "__init__.py"
    return programs


def needed_by(*packages: str, there: Path) -> set[str]:
    """The files and folders in site-packages of these packages but Isthmus, and of all that they need."""
    found, seen, todo = set[str](), set[str](), [*map(Requirement, packages)]
    while todo:
        requirement = todo.pop()
        name, extras = canonicalize_name(requirement.name), ["", *sorted(requirement.extras)]
        if f"{name} {extras}" in seen:
            continue
        seen.add(f"{name} {extras}")
        installed = distribution(name)
        found |= {path.parts[0] for path in installed.files or () if name != "isthmus"}
        needs = map(Requirement, installed.requires or ())
        todo += [each for each in needs if not each.marker or any(each.marker.evaluate({"extra": e}) for e in extras)]
    return {name for name in found - {"..", "__pycache__"} if (there / name).exists()}


def test_the_wheel_has_the_package_and_the_tables(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        code = {f"isthmus/{path.relative_to(ROOT / 'src/isthmus').as_posix()}" for path in (ROOT / "src").rglob("*.py")}
        code |= {f"isthmus/study/protocols/{path.name}" for path in (ROOT / "src/isthmus/study/protocols").iterdir()}
        assert code | {"isthmus/py.typed", "isthmus/data/datasets/SHA256SUMS"} == {
            name for name in names if not name.startswith("isthmus/papers/tables/")
        }
        tables = {name.removeprefix("isthmus/papers/tables/"): name for name in names - code if "/tables/" in name}
        for name, packed in tables.items():
            assert archive.read(packed) == (PAPERS / name).read_bytes()
    assert {path.relative_to(PAPERS).as_posix() for path in PAPERS.glob("*/*.toml")} <= tables.keys()


def test_tables_of_papers_are_read_without_a_checkout(fresh: Path, tmp_path: Path) -> None:
    from isthmus.papers.results import count_runs
    from isthmus.papers.shelf import entries
    from isthmus.version import VERSION

    isthmus = fresh / "isthmus"
    assert call(isthmus, "--version", cwd=tmp_path).split()[-1] == VERSION
    listed = json.loads(call(isthmus, "papers", "--json", cwd=tmp_path))
    ours = entries(PAPERS)
    assert [each["name"] for each in listed] == [each.name for each in ours]
    counts = {each["name"]: (each["runs"], each["of"]) for each in listed}
    for each in [each for each in ours if each.paper == "fgl"]:  # the files are equal, as another test says
        assert counts[each.name] == count_runs(each.plan, each.results)
    assert "holds" in call(isthmus, "papers", "check", "guide/coupled", cwd=tmp_path)
    assert "fed-pub" in call(isthmus, "protocols", cwd=tmp_path)


def test_the_demo_works_without_a_checkout(fresh: Path, tmp_path: Path) -> None:
    code = f"import runpy; runpy.run_path({str(SHORT)!r}); from isthmus.__main__ import main; main()"
    call(fresh / "python", "-c", code, "demo", cwd=tmp_path)
    assert {path.name for path in (tmp_path / "runs" / "demo").iterdir()} >= {"results.json", "report.html"}


def test_the_first_pages_work_without_a_checkout(wheel: Path, tmp_path: Path) -> None:
    """They name these extras; pytest is what runs the pages."""
    folder = tmp_path / "programs"
    folder.mkdir()
    programs = environment(
        wheel, folder, "isthmus[frames,metis,mlflow,molecules,onnx,tables,tensorboard,tune]", "pytest"
    )
    call(programs / "python", ROOT / "tests" / "docs" / "test_blocks.py", *FIRST_PAGES, cwd=tmp_path)
    assert (tmp_path / "docs-start.md" / "runs" / "first" / "report.html").exists()
