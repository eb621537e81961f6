"""Code that users bring: importing it, naming a class as `module:Class`, and telling one version of it from another."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import logging
import sys
import sysconfig
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from isthmus.errors import IsthmusError

log = logging.getLogger(__name__)

_PLACE = "_isthmus_place"
"""The attribute in which an error carries its place from one process to another."""

imported: set[str] = set()
"""The modules that `import_files` has imported: code that the user named, which may run."""


def import_files(files: Iterable[str | Path]) -> None:
    """Import Python files, each as the module of its name; the classes that they define are registered by that."""
    for each in files:
        path = Path(each)
        if path.suffix != ".py" or not path.stem.isidentifier():
            raise IsthmusError(f"import '{path}': give a Python file whose name is that of a module, such as mine.py")
        if not path.is_file():
            raise IsthmusError(f"import '{path}': there is no such file in {Path.cwd()}: give its path from here")
        folder = str(path.resolve().parent)
        if folder not in sys.path:
            sys.path.append(folder)  # last, so that nothing that is installed is hidden by a file beside it
        module = _imported(path.stem, f"import '{path}'")
        found = getattr(module, "__file__", None)
        if found is None or Path(found).resolve() != path.resolve():
            raise IsthmusError(f"import '{path}': another module is called '{path.stem}': rename the file")
        imported.add(path.stem)


def object_at(reference: str) -> Any:
    """The class or function that `package.module:Class` names."""
    module, _, name = reference.partition(":")
    found = _imported(module, f"'{reference}'")
    for part in name.split("."):
        if not hasattr(found, part):
            raise IsthmusError(f"'{reference}': module '{module}' has no '{name}': name what it defines")
        found = getattr(found, part)
    return found


def reference_of(thing: Any) -> str:
    """`module:Class` of a class or function, or of an object's class; `object_at` finds it again if it can."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}:{named.__qualname__}"


def can_be_found(thing: Any) -> bool:
    """Whether another process finds this class or function by its reference."""
    module, _, name = reference_of(thing).partition(":")
    if module == "__main__" or "<" in name or not hasattr(thing, "__qualname__"):
        return False
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is thing


def is_own(thing: Any) -> bool:
    """Whether its code comes from elsewhere than Isthmus."""
    return reference_of(thing).partition(":")[0].partition(".")[0] != __package__


def where_raised(error: BaseException) -> str:
    """File and line of the innermost code of the user's own that an error went through; empty if it went through none.

    Code of a notebook or an interpreter has no file: its cell's name stands for it.
    """
    folders = {*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), str(Path(__file__).parent)}
    place, at = vars(error).get(_PLACE, ""), error.__traceback__
    while at is not None:
        file = at.tb_frame.f_code.co_filename
        own = not file.startswith("<frozen") and not file.endswith(".pyx")  # compiled code has no folder
        if own and not any(Path(file).is_relative_to(folder) for folder in folders):
            place = f"{Path(file).name}:{at.tb_lineno}"
        at = at.tb_next
    return place


def keep_place(error: BaseException) -> None:
    """Note in an error where it was raised, for `where_raised` in another process, which gets no traceback."""
    vars(error)[_PLACE] = where_raised(error)


def source_hash(thing: Any) -> str:
    """SHA-256 of the file that defines a class or function, or of its own source if there is no file, as in a notebook.

    Empty if no source is known.
    """
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    try:
        try:
            source = Path(inspect.getfile(named)).read_bytes()
        except OSError:
            source = inspect.getsource(named).encode()
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(source.replace(b"\r\n", b"\n")).hexdigest()


def package_of(thing: Any) -> str:
    """The installed package that a class or function is part of, with its version; empty if it is part of none."""
    top = reference_of(thing).partition(":")[0].partition(".")[0]
    names = _packages().get(top, ())
    return f"{names[0]} {metadata.version(names[0])}" if names else ""


def identify(things: Iterable[Any]) -> dict[str, dict[str, str]]:
    """By reference the source hash and the package of what is a user's own among these."""
    return {
        reference_of(each): {"source": source_hash(each), "package": package_of(each)}
        for each in things
        if is_own(each)
    }


@cache
def load_entry_points(group: str) -> None:
    """Import what installed packages declare in a group; a package that fails is named in a warning and left out."""
    for point in metadata.entry_points(group=group):
        try:
            point.load()
        except Exception as error:  # another's package: it must not stop every command
            owner = point.dist.name if point.dist else "a package"
            log.warning(
                "%s: entry point '%s' of %s cannot be loaded (%s: %s): repair or uninstall it",
                owner, point.name, group, type(error).__name__, error,
            )  # fmt: skip


def _imported(module: str, where: str) -> Any:
    try:
        return importlib.import_module(module)
    except IsthmusError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise IsthmusError(
                f"{where}: there is no module '{module}': install its package, or name its file in `import`"
            ) from error
        raise IsthmusError(f"{where}: its code needs the module '{error.name}': install that") from error
    except (Exception, SystemExit) as error:
        raise IsthmusError(f"{where}: its code fails: {type(error).__name__}: {error}; correct it") from error


@cache
def _packages() -> dict[str, list[str]]:
    return {name: sorted(set(owners)) for name, owners in metadata.packages_distributions().items()}
