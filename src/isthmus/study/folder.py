"""The result folder of a study: who writes to it, which study it belongs to, and what resuming it may change."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from isthmus import result_files, store
from isthmus.errors import IsthmusError, format_option
from isthmus.result_files import STATE
from isthmus.study.settings import flatten

MARK = "study"
"""File in it that says which study it belongs to."""
DATA = "fingerprint of the data"
"""Entry of that file: a seed and the digest of the data with it."""


@contextmanager
def hold_folder(out: Path) -> Iterator[None]:
    """Lock a result folder for the duration of the `with` block: two studies in one folder would mix their files."""
    existed = out.exists()
    if existed and not out.is_dir():
        raise IsthmusError(f"{out} is a file: choose a folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        folder = None if sys.platform == "win32" else os.open(out, os.O_RDONLY)  # Windows opens no folders
    except OSError as error:
        raise IsthmusError(f"cannot create the folder {out}: {error.strerror or error}; choose another") from error
    try:
        if folder is not None:
            store.hold(folder, wait=False)
        yield
    except BlockingIOError as error:
        raise IsthmusError(f"{out} is in use by another study: wait for it, or stop it first") from error
    finally:
        if folder is not None:
            os.close(folder)
        if not existed:
            with suppress(OSError):  # it has content
                out.rmdir()


def prepare_folder(
    out: Path,
    resolved: Mapping[str, Any],
    *,
    resume: bool,
    force: bool,
    settings: Sequence[Mapping[str, Any]] | None = None,
    fingerprint_of: Callable[[int], str | None] | None = None,
    comparable: bool = True,
) -> None:
    """Check that the result folder may be written, and save which study it belongs to.

    Arguments:
        settings: methods with their options; a resumed study may have others and other seeds, but none with a label
            that has had other options. Without them it must be the same.
        fingerprint_of: of the data with a seed; a resumed study must have those that it was started with.
        comparable: whether results have the study as it is here; those of a federation have it as its parties say.
    """
    mark = out / STATE / MARK
    started = dict(resolved)
    if settings is not None:
        started = {key: value for key, value in resolved.items() if key != "grid"} | {"methods": list(settings)}
    if resume:
        if (out / "results.json").exists() and not mark.exists():
            differ = _differences(_finished_study(out), _as_loaded(resolved), added=True) if comparable else []
            found = ", ".join(differ)
            raise IsthmusError(
                f"{out} holds a finished study: there is nothing to resume"
                f"{f' (this one differs in {found})' if found else ''}; use {format_option('force', True)} to run "
                "it again, or run more methods, seeds or rounds in a folder of their own and compare the two"
            )
        if not mark.exists():
            raise IsthmusError(f"{out} holds no started study: run it without {format_option('resume', True)}")
        before = store.load(mark)
        data = before.pop(DATA, None)
        _check_same(out, before, _as_loaded(started), ("methods", "seeds", "code") if settings is not None else ())
        if data is not None and fingerprint_of is not None and fingerprint_of(data["seed"]) != data["digest"]:
            raise IsthmusError(
                f"{out}: the data have changed since this study was started: give it the data as they were, or start "
                f"over with {format_option('force', True)}"
            )
        if settings is not None:  # runs of what is left out now may be taken up later
            labels = set(map(_label, settings))
            left_out = [each for each in before["methods"] if _label(each) not in labels]
            code = {**before.get("code", {}), **started.get("code", {})}
            started |= {"methods": [*settings, *left_out], **({"code": code} if code else {})}
        store.save(mark, _as_loaded({**started, DATA: data}))
        return
    if out.exists() and any(out.iterdir()):
        if not force:
            go_on, over = format_option("resume", True), format_option("force", True)
            raise IsthmusError(f"{out} is not empty: use {go_on} to continue, {over} to start over, or a new folder")
        if not (mark.exists() or _holds_results(out)):
            raise IsthmusError(f"{out} holds files that are not results: choose another folder")
        for name in (
            "results.json",
            "study.toml",
            "history.parquet",
            "ledger.parquet",
            "set-up.parquet",
            "places.parquet",
            "report.html",
            *(path.name for ending in (".json", ".html", ".sig") for path in out.glob(f"dossier*{ending}")),
            store.SUMS,
            STATE,
            "weights",
            "graphs",
        ):
            path = out / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    existed = out.exists()
    data = None
    if fingerprint_of is not None:
        data = {"seed": resolved["seeds"][0], "digest": fingerprint_of(resolved["seeds"][0])}
    try:
        store.save(mark, _as_loaded({**started, DATA: data}))
    except IsthmusError:
        shutil.rmtree(out / STATE if existed else out, ignore_errors=True)
        raise


def _label(method: Mapping[str, Any]) -> str:
    return str(method.get("label") or method["name"])


def _check_same(out: Path, before: Mapping[str, Any], now: Mapping[str, Any], may_differ: Sequence[str]) -> None:
    """Raise an error if a study differs from the one that was started; of `may_differ`, only in what both have."""

    differ = _differences(before, now, may_differ)
    if differ:
        more = "; methods, seeds and values of the grid may be added or left out" if may_differ else ""
        raise IsthmusError(
            f"{out} holds another study, which differs in {', '.join(differ)}: resume it with the options it was "
            f"started with{more}"
        )


def _differences(
    before: Mapping[str, Any], now: Mapping[str, Any], but: Sequence[str] = ("methods", "code"), *, added: bool = False
) -> list[str]:
    """Name what differs between two studies, an option of a method with its method.

    Arguments:
        but: parts that are not compared as a whole; of methods and code, only what both have.
        added: also name the methods that only the second study has.
    """

    def entries(study: Mapping[str, Any]) -> dict[str, Any]:
        methods = {f"method '{_label(each)}'": each for each in study.get("methods", [])}
        return methods | {f"the code of '{name}'": source for name, source in study.get("code", {}).items()}

    own, others = entries(now), entries(before)
    found = [f"'{key}'" for key in {**before, **now} if key not in but and before.get(key) != now.get(key)]
    for name, each in own.items():
        if name not in others:
            found += [name] if added else []
        elif not isinstance(each, Mapping):
            found += [name] if each != others[name] else []
        else:
            new, old = flatten(each), flatten(others[name])
            found += [f"'{path}' of {name}" for path in {**old, **new} if old.get(path) != new.get(path)]
    return found


def _finished_study(out: Path) -> Mapping[str, Any]:
    """The study of which a folder holds results; nothing if they cannot be read."""
    try:
        return dict(store.parse_json(store.read_text(out / result_files.RESULTS))["study"])
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def discard_unless_started(out: Path, existed: bool) -> None:
    """Delete what a study wrote that failed before there was anything to resume."""
    parts = {path.name for path in (out / STATE).iterdir() if path.suffix != ".part"}  # of processes that were killed
    if parts == {MARK}:
        shutil.rmtree(out / STATE if existed else out, ignore_errors=True)


def _holds_results(out: Path) -> bool:
    """Whether a study wrote this folder; other programs have files called results.json too."""
    try:
        return "isthmus" in store.parse_json(store.read_text(out / result_files.RESULTS))
    except (OSError, ValueError, TypeError):  # damaged results count too
        return False


def _as_loaded(value: Any) -> Any:
    """Return a value as `store.load` returns it, with lists for tuples."""
    return store.unpack(store.pack(value))
