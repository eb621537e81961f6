"""The page on architecture says what is: rooms, and which of them may import which."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "isthmus"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
MODULES = sorted(SOURCE.rglob("*.py"))


def room_of(file: Path) -> str:
    """The folder of a module, or its own name where it lies beside the rooms."""
    first = file.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def imports_of(file: Path) -> list[tuple[str, ...]]:
    """Every import of this package, wherever it stands, as the parts of its name."""
    found: list[tuple[str, ...]] = []
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "isthmus":
            found += ((*node.module.split(".")[1:], alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            found += (tuple(alias.name.split(".")[1:]) for alias in node.names if alias.name.startswith("isthmus."))
    return found


@cache
def module_of(parts: tuple[str, ...]) -> Path | None:
    """The file that an import reads."""
    for at in (parts, parts[:-1]):
        for file in (SOURCE.joinpath(*at).with_suffix(".py") if at else SOURCE, SOURCE.joinpath(*at) / "__init__.py"):
            if file.is_file():
                return file
    return None


def test_the_tree_of_rooms_is_that_of_the_folders() -> None:
    tree = re.search(r"```text\nsrc/isthmus/\n(.*?)```", PAGE, re.DOTALL)
    assert tree is not None
    rooms, told = "", []
    for line in tree[1].splitlines():
        depth, name = (len(line) - len(line.lstrip())) // 2, line.split()[0].rstrip("/")
        rooms = name if depth == 1 else rooms
        told.append(name if depth == 1 else f"{rooms}/{name}")
    folders = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_dir() and (path / "__init__.py").exists()
    ]
    assert sorted(told) == sorted(folders)


def test_single_modules_are_named() -> None:
    text = PAGE[PAGE.index("Beside the rooms") : PAGE.index("Imports point one way")]
    single = {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__"}
    assert set(re.findall(r"`(\w+)`", text)) == single


@cache
def allowed() -> dict[str, set[str]]:
    """By room what the table lets it import."""
    start = PAGE.index("| room | may import |")
    rows = re.findall(r"^\| (`[^|]+`) \| ([^|]*) ?\|$", PAGE[start : PAGE.index("\n\n", start)], re.MULTILINE)
    found: dict[str, set[str]] = {}
    for names, rooms in rows:
        for name in re.findall(r"`(\w+)`", names):
            found[name] = set(re.findall(r"`(\w+)`", rooms)) if "everything" not in rooms else {"everything"}
    return found


@pytest.mark.parametrize("room", sorted({room_of(file) for file in MODULES} - {"__init__", "__main__"}))
def test_a_room_imports_only_what_the_table_allows(room: str) -> None:
    may = allowed()[room]
    for file in (file for file in MODULES if room_of(file) == room):
        for parts in imports_of(file):
            other = parts[0]
            assert other == room or other in may or "everything" in may, f"{file.relative_to(SOURCE)} imports {other}"


def test_rooms_do_not_import_each_other_in_circles() -> None:
    may = {room: rooms - {"everything"} for room, rooms in allowed().items()}
    while may:
        free = [room for room, rooms in may.items() if not rooms & may.keys()]
        assert free, f"a circle among {sorted(may)}"
        may = {room: rooms for room, rooms in may.items() if room not in free}


def test_modules_do_not_import_each_other_in_circles() -> None:
    needs = {file: {module_of(parts) for parts in imports_of(file)} - {None, file} for file in MODULES}
    while needs:
        free = [file for file, others in needs.items() if not others & needs.keys()]
        circle = ", ".join(str(file.relative_to(SOURCE)) for file in needs)
        assert free, f"a circle among {circle}"
        needs = {file: others for file, others in needs.items() if file not in free}


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.relative_to(SOURCE).as_posix())
def test_no_module_imports_an_underscore_name_of_another(file: Path) -> None:
    hidden = [parts for parts in imports_of(file) if parts[-1].startswith("_") and not parts[-1].startswith("__")]
    assert not hidden


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.relative_to(SOURCE).as_posix())
def test_every_module_has_a_test_module_of_its_name(file: Path) -> None:
    code = [node for node in tree_of(file).body if not isinstance(node, ast.ImportFrom)]
    if file.name == "__init__.py" and len(code) <= 1:
        return  # a docstring, and names for others to import
    place = file.relative_to(SOURCE)
    name = "init" if place.stem == "__init__" else place.stem
    assert (ROOT / "tests" / place.parent / f"test_{name}.py").is_file()
