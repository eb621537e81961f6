"""Error classes. An error is one line that says what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
import re
import shlex
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any


class IsthmusError(Exception):
    """An error that the caller can fix. Its text is one line; the command line prints it and exits with code 2."""


class PayloadError(IsthmusError):
    """A payload has a field that is not allowed, or lacks one that is needed."""


class NotFinite(PayloadError):  # noqa: N818 - reads as what is wrong
    """Numbers are NaN or infinite, as after a training that diverged."""

    HINT = "if training diverged, lower its learning rate"
    """Part of the reason of a party whose numbers are not finite: reasons travel as texts."""


class PartyFailed(IsthmusError):  # noqa: N818 - reads as what happened
    """A party could not answer an action."""

    def __init__(self, party: str, reason: str) -> None:
        super().__init__(f"party '{party}': {reason}")
        self.party = party
        self.reason = reason


class TooFewAnswers(IsthmusError):  # noqa: N818
    """Fewer parties answered than the method needs."""


class Diverged(TooFewAnswers):
    """Fewer parties answered than the method needs, because the numbers of the others are not finite."""


DIVERGED = (NotFinite, Diverged)
"""How a training that diverges ends: at the server, or at the parties."""


class SeveralErrors(IsthmusError):  # noqa: N818
    """Errors that were found together; the command line prints a line for each."""

    def __init__(self, errors: Sequence[IsthmusError]) -> None:
        super().__init__("; ".join(map(str, errors)))
        self.errors = errors


class Errors:
    """Collects the errors of checks that do not depend on each other, so that a user sees all of them at once.

    >>> errors = Errors()
    >>> for name in ("one", "two"):
    ...     with errors.collected():
    ...         raise IsthmusError(f"no {name}")
    >>> errors.check()
    Traceback (most recent call last):
    isthmus.errors.SeveralErrors: no one; no two
    """

    def __init__(self) -> None:
        self.found: list[IsthmusError] = []

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Keep an error of this block for later."""
        try:
            yield
        except IsthmusError as error:
            self.found += error.errors if isinstance(error, SeveralErrors) else [error]

    def check(self) -> None:
        """Raise what was found, if anything was."""
        if len(self.found) > 1:
            raise SeveralErrors(self.found)
        for error in self.found:
            raise error


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint for a mistyped name: the most similar known name, whatever its case, or all known names.

    Of similar names, one of the same letters comes first.

    >>> did_you_mean("fedavgg", ["fedavg", "local"]), did_you_mean("acount", ["ID", "Account"])
    ("did you mean 'fedavg'?", "did you mean 'Account'?")
    >>> did_you_mean("gnc", ["gcn", "sgc"])
    "did you mean 'gcn'?"
    """
    names = sorted(known)
    lower = {each.lower(): each for each in reversed(names)}
    close = difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.6)
    if close:
        swapped = [each for each in close if sorted(each) == sorted(name.lower())]
        return f"did you mean '{lower[(swapped or close)[0]]}'?"
    shown = map(repr, names) if any("," in each for each in names) else names
    return f"known: {', '.join(shown)}" if names else "there are none"


FLAGS = {
    "data.name": "--data",
    "partition.name": "--partition",
    "partition.split": "--split",
    "model.encoder": "--encoder",
    "model.hidden": "--hidden",
    "task.metric": "--metric",
    "task.select_by": "--select-by",
    **{name: f"--{name}" for name in ("method", "rounds", "parties", "seeds", "seed", "unlabelled", "device", "wire")},
    **{name: f"--{name}" for name in ("out", "resume", "force", "jobs", "grid", "import", "party", "key", "range")},
    "protocol": "--protocol",
}
"""The flags of `isthmus run` and other commands, by the path of their option in a study; others are set by `--set`."""

ARGUMENTS = {
    "data.name": "data",
    "partition.name": "partition",
    "model.encoder": "model",
    "task.name": "task",
    "task.metric": "metric",
    "task.select_by": "select_by",
}
"""The arguments of `isthmus.run` by the path of their option in a study, where they are called otherwise."""

_flags_in_messages = False


@contextmanager
def flags_in_messages() -> Iterator[None]:
    """In this block messages write options as flags of the command line; elsewhere, as arguments in Python."""
    global _flags_in_messages
    before, _flags_in_messages = _flags_in_messages, True
    try:
        yield
    finally:
        _flags_in_messages = before


def writes_flags() -> bool:
    """Whether messages write options as flags."""
    return _flags_in_messages


def format_option(path: str, value: Any) -> str:
    """Return how the caller sets an option of a study: by an argument in Python, by a flag on the command line.

    >>> format_option("task.class_weights", "balanced"), format_option("model.encoder", "sage")
    ("task={'class_weights': 'balanced'}", "model='sage'")
    >>> with flags_in_messages():
    ...     format_option("task.class_weights", "balanced"), format_option("resume", True)
    ...     format_option("method", "fedavg local.lr=0.1")
    ('--set task.class_weights=balanced', '--resume')
    "--method 'fedavg local.lr=0.1'"
    """
    if _flags_in_messages:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if path not in FLAGS:
            return f"--set {shlex.quote(f'{path}={text}')}"
        return FLAGS[path] if value is True else f"{FLAGS[path]} {shlex.quote(text)}"
    first, *keys = [ARGUMENTS[path]] if path in ARGUMENTS else path.split(".")
    for key in reversed(keys):
        value = {key: value}
    return f"{first}={value!r}"


def format_options(values: Mapping[str, Any]) -> str:
    """Return how the caller sets several options of a study, given by their paths.

    >>> format_options({"task.metric": "macro_f1", "task.positive": 0, "task.class_weights": "balanced"})
    "metric='macro_f1', task={'positive': 0, 'class_weights': 'balanced'}"
    """
    if _flags_in_messages:
        return " ".join(format_option(path, value) for path, value in values.items())
    tables: dict[str, Any] = {}
    for path, value in values.items():
        table, _, key = path.rpartition(".")
        if table and path not in ARGUMENTS:
            tables.setdefault(table, {})[key] = value
        else:
            tables[path] = value
    return ", ".join(format_option(path, value) for path, value in tables.items())


def how_to_import() -> str:
    """How the caller makes code of their own known."""
    return format_option("import", "FILE.py") if writes_flags() else "import the file that defines it"


OTHERS_NAMES = {
    "learning_rate": "lr", "wd": "weight_decay", "batchsize": "batch_size", "num_layers": "layers",
    "num_epochs": "epochs", "local_epochs": "epochs", "num_rounds": "rounds", "hidden_channels": "hidden",
    "hidden_dim": "hidden", "num_clients": "parties", "n_clients": "parties",
}  # fmt: skip
"""What other libraries call options of ours."""


def closest_path(key: str, paths: Sequence[str], cutoff: float = 0.6) -> tuple[float, str]:
    """Return how similar the most similar path's last part is to that of `key`, and the path; 0 and "" if none is.

    Of paths that are equally similar by that, the first one is returned; for a `key` of several parts, the one that
    is most similar as a whole.

    >>> closest_path("lr", ["rounds", "local.lr", "server.lr"]), closest_path("epoch", ["rounds"])
    ((1.0, 'local.lr'), (0.0, ''))
    >>> closest_path("learning_rate", ["rounds", "local.lr"])
    (1.0, 'local.lr')
    """

    def similarity(one: str, other: str) -> float:
        return difflib.SequenceMatcher(None, one.lower(), other.lower()).ratio()

    def leaf(path: str) -> str:
        return path.rpartition(".")[2]

    key = key.removesuffix(leaf(key)) + OTHERS_NAMES.get(leaf(key).lower(), leaf(key))

    def fit(path: str) -> tuple[float, float]:
        return similarity(leaf(key), leaf(path)), similarity(key, path) if "." in key else 0.0

    found = max(paths, key=fit, default="")
    close = similarity(leaf(key), leaf(found))
    return (close, found) if found and close >= cutoff else (0.0, "")


def path_of(value: Any, what: str) -> Path:
    """Return a path that a caller gave; anything that is none is an error.

    Arguments:
        what: the argument, and whose it is.

    >>> path_of(3, "load_model: folder")
    Traceback (most recent call last):
    isthmus.errors.IsthmusError: load_model: folder is 3: give a path
    """
    if not isinstance(value, str | PathLike):
        raise IsthmusError(f"{what} is {value!r}: give a path")
    return Path(value)


def similar_path(path: Path) -> str:
    """Return ": did you mean 'there'?" if a folder is not there, but one of a similar name is; else an empty text."""
    if path.exists() or not path.parent.is_dir():
        return ""
    names = [each.name for each in path.parent.iterdir() if each.is_dir()]
    close = did_you_mean(path.name, names)
    found = next((name for name in names if close == f"did you mean '{name}'?"), None)
    return f": did you mean '{path.parent / found}'?" if found else ""


def missing_extra(package: str, extra: str, purpose: str) -> IsthmusError:
    """Return the error for an optional dependency that is not installed."""
    return IsthmusError(f"{purpose} needs {package}: install it with pip install 'isthmus[{extra}]'")


def out_of_memory(error: Exception) -> str:
    """Say in one line that memory ran out, if that is what a library's error means; else nothing.

    >>> out_of_memory(MemoryError("Unable to allocate 7.28 TiB for an array with shape (999999999996,)"))[:34]
    'out of memory (asked for 7.28 TiB)'
    >>> out_of_memory(ValueError("no 3"))
    ''
    """
    text = " ".join(str(error).split())
    says_so = re.search("(allocate|enough|out of) memory|bad_alloc|ALLOC_FAILED", text, re.IGNORECASE)
    if not isinstance(error, MemoryError) and not (isinstance(error, RuntimeError | OSError) and says_so):
        return ""
    asked = re.search(r"allocate (\d[\d.]*) (bytes|[KMGTPE]i?B)", text)
    size = f" (asked for {_size(float(asked[1]), asked[2])})" if asked else ""
    return f"out of memory{size}: use less data, a smaller model or smaller batches; see the page on large graphs"


def _size(number: float, unit: str) -> str:
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB") if unit == "bytes" else ():
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return f"{number:.3g} {unit}"


def ignore_library_warnings() -> None:
    """Hide the warnings of libraries that a user cannot do anything about."""
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    warnings.filterwarnings("ignore", message=".*torch_geometric.distributed.*")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
