"""Runs a study: every method with every seed, into a folder that a killed run can go on from."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from isthmus import result_files, store
from isthmus.data.describe import CutDescription, describe
from isthmus.data.party import Party
from isthmus.errors import IsthmusError, did_you_mean
from isthmus.methods.base import Method
from isthmus.nn.encoders import Encoder
from isthmus.study.config import Loaded, Study, check_once, merged
from isthmus.study.loop import OnRound, Run, RunResult
from isthmus.study.results import Results, ordered
from isthmus.study.setup import check_labelled, module_for, task_of
from isthmus.tasks.base import Task

if TYPE_CHECKING:
    from isthmus.deploy.hosts import Hosts

STATE = ".state"
"""Folder inside the result folder with what a killed run needs to go on; gone once the study is done."""


class Watcher:
    """Told what happens; the command line draws it. This one keeps silent."""

    def study_started(self, study: Mapping[str, Any]) -> None:
        """What is run, all of it spelled out."""

    def cut_made(self, seed: int, cut: CutDescription) -> None:
        """The parties of the runs with this seed are there."""

    def run_started(self, method: Method, seed: int) -> None: ...

    def round_done(self, method: Method, seed: int, at: int, metrics: Mapping[str, float]) -> None: ...

    def run_done(self, result: RunResult) -> None: ...

    def run_restored(self, result: RunResult) -> None:
        """A run that had ended before this study was gone on with."""


class Several(Watcher):
    """Tells several watchers."""

    def __init__(self, *watchers: Watcher) -> None:
        self.watchers = watchers

    def study_started(self, study: Mapping[str, Any]) -> None:
        for each in self.watchers:
            each.study_started(study)

    def cut_made(self, seed: int, cut: CutDescription) -> None:
        for each in self.watchers:
            each.cut_made(seed, cut)

    def run_started(self, method: Method, seed: int) -> None:
        for each in self.watchers:
            each.run_started(method, seed)

    def round_done(self, method: Method, seed: int, at: int, metrics: Mapping[str, float]) -> None:
        for each in self.watchers:
            each.round_done(method, seed, at, metrics)

    def run_done(self, result: RunResult) -> None:
        for each in self.watchers:
            each.run_done(result)

    def run_restored(self, result: RunResult) -> None:
        for each in self.watchers:
            each.run_restored(result)


def run_study(
    study: Study,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    force: bool = False,
    watcher: Watcher | None = None,
    save_every: float = 2.0,
    hosts: Hosts | None = None,
) -> Results:
    """Run all of a study.

    Arguments:
        out: the result folder; none writes nothing.
        resume: go on with what `out` holds; results equal those of an uninterrupted run bit for bit.
        force: start anew although `out` holds results.
        save_every: seconds between checkpoints, at least; 0 saves after every round.
        hosts: machines that the parties are spread over; without, all are in this process.
    """
    watcher = watcher or Watcher()
    out = None if out is None else Path(out)
    methods = study.method_list()
    first = study.load(study.seeds[0])  # wrong input shows before anything is written
    resolved = study.resolved(first)
    there_before = out is not None and out.exists()
    if out is not None:
        prepare(out, resolved, resume=resume, force=force)
    watcher.study_started(resolved)
    try:
        runs, cuts = _all(study, methods, first, out, watcher, save_every, hosts)
    except IsthmusError:
        if out is not None:
            _forget(out, there_before)
        raise
    results = Results(resolved, ordered(runs, [method.name for method in methods]), cuts)
    if out is not None:
        results.save(out)
        shutil.rmtree(out / STATE, ignore_errors=True)
    return results


def _all(
    study: Study,
    methods: Sequence[Method],
    first: Loaded,
    out: Path | None,
    watcher: Watcher,
    save_every: float,
    hosts: Hosts | None,
) -> tuple[list[RunResult], dict[int, CutDescription]]:
    """Every method with every seed, those that had ended before as they were; and what parties held, by seed."""
    runs: list[RunResult] = []
    cuts: dict[int, CutDescription] = {}
    for seed in study.seeds:
        loaded = first if seed == study.seeds[0] else study.load(seed)
        cuts[seed] = describe(loaded.parties, loaded.classes, loaded.note, loaded.labels)
        watcher.cut_made(seed, cuts[seed])
        for method in methods:
            done = None if out is None else out / STATE / f"{method.name}-{seed}.run"
            if done is not None and done.exists():
                runs.append(RunResult.of_dump(store.load(done)))
                watcher.run_restored(runs[-1])
                continue
            watcher.run_started(method, seed)
            result = _one(study, method, seed, loaded, out, watcher, save_every, hosts)
            if done is not None:
                store.save(done, result.dump())
                done.with_suffix(".checkpoint").unlink(missing_ok=True)
            watcher.run_done(result)
            runs.append(result)
    return runs, cuts


def _one(
    study: Study,
    method: Method,
    seed: int,
    loaded: Loaded,
    out: Path | None,
    watcher: Watcher,
    save_every: float,
    hosts: Hosts | None,
) -> RunResult:
    parties = loaded.parties
    task = loaded.task
    away = None if method.role == "pooled" else hosts  # what is put together is one party, and nothing to spread
    return Run(
        method,
        parties,
        task,
        module_for(study.encoder(), parties, task, seed),
        seed=seed,
        device=study.torch_device(),
        wire=study.wire,
        checkpoint=None if out is None else out / STATE / f"{method.name}-{seed}.checkpoint",
        save_every=save_every,
        on_round=lambda at, metrics: watcher.round_done(method, seed, at, metrics),
        transport=None if away is None else away.transport(study, method, seed, loaded),
    ).go()


def prepare(out: Path, resolved: Mapping[str, Any], *, resume: bool, force: bool) -> None:
    """Make sure that the folder is ours to write to, and remember which study it belongs to."""
    mark = out / STATE / "study"
    if resume:
        if (out / "results.json").exists() and not mark.exists():
            raise IsthmusError(f"{out} holds a finished study: there is nothing to resume; use --force to run it anew")
        if not mark.exists():
            raise IsthmusError(f"{out} holds no started study: run it without --resume first")
        if store.load(mark) != _plain(resolved):
            raise IsthmusError(f"{out} was started with another study: resume it with the same options")
        return
    if out.exists() and not out.is_dir():
        raise IsthmusError(f"{out} is a file: choose a folder")
    if out.exists() and any(out.iterdir()):
        if not force:
            raise IsthmusError(f"{out} is not empty: use --resume to go on, --force to start anew, or another folder")
        if not (mark.exists() or _holds_results(out)):
            raise IsthmusError(f"{out} holds other files than results: choose another folder")
        for name in (
            "results.json",
            "study.toml",
            "history.parquet",
            "ledger.parquet",
            "set-up.parquet",
            "places.parquet",
            "report.html",
            STATE,
            "weights",
            "graphs",
        ):
            path = out / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    there_before = out.exists()
    try:
        store.save(mark, _plain(resolved))
    except IsthmusError:
        shutil.rmtree(out / STATE if there_before else out, ignore_errors=True)
        raise


def _forget(out: Path, there_before: bool) -> None:
    """Take away what a study leaves that failed before anything was worth going on from."""
    if [path.name for path in (out / STATE).iterdir()] == ["study"]:
        shutil.rmtree(out / STATE if there_before else out, ignore_errors=True)


def _holds_results(out: Path) -> bool:
    """Whether a study wrote what is in the folder: others have files called results.json and weights too."""
    try:
        return "isthmus" in result_files.load_summary(out, any_format=True)
    except IsthmusError:
        return False


def _plain(value: Any) -> Any:
    """As `store.read` gives it back: tuples as lists."""
    return store.unpack(store.pack(value))


def run(
    method: str | Method | Sequence[str | Method],
    parties: Sequence[Party] | None = None,
    *,
    model: str | Encoder | nn.Module | Callable[[int, int], nn.Module] = "gcn",
    classes: int | None = None,
    task: Task | str | None = None,
    seeds: Sequence[int] = (0,),
    seed: int | None = None,
    device: str = "cpu",
    wire: bool = False,
    on_round: OnRound | None = None,
    out: str | Path | None = None,
    unlabelled: Literal["error", "idle"] = "error",
    **options: Any,
) -> Results:
    """Train together, in this process.

    Arguments:
        method: a name, a method with its options, or several of these.
        parties: all of them; without, the generated federation of banks.
        model: an encoder by name or with its options, a PyG module of your own with `forward(x, edge_index, ...)`,
            or a function of the numbers of features and outputs that makes one.
        classes: number of classes, where the parties' labels do not show it; of labels for several tasks, of tasks.
        task: what is learned, or its name; without, what the parties' labels ask for. Parties that are given hold its
            items already.
        seeds: one run for each (or `seed`, a single one).
        wire: send every payload through bytes.
        on_round: called with the round and its metrics.
        out: folder to write the results to; it must not be there yet.
        unlabelled: parties without a training label: an error, or they take part without weight.
        options: of the methods, each takes those that it has: `rounds=10`, `local={"epochs": 5}`.

    >>> from isthmus.data.datasets.banks import Banks
    >>> results = run("fedavg", rounds=2)
    >>> sorted(results.metrics)[:2]
    ['test_accuracy', 'test_loss']
    """
    task = Task.named(task)() if isinstance(task, str) else task
    several = [method] if isinstance(method, str | Method) else list(method)
    if parties is not None and not (isinstance(parties, Sequence) and all(isinstance(p, Party) for p in parties)):
        raise IsthmusError("parties is a list of Party objects: make them with Party.of_graph or Party.of_graphs")
    if parties and task is not None:
        parties = task.set_masks(list(parties))
    if parties and unlabelled == "error":
        check_labelled(parties)
    chosen = _with_options(several, options)
    check_once([each.name for each in chosen], "run")
    encoder = Encoder.named(model)() if isinstance(model, str) else model
    if out is not None and Path(out).exists():
        raise IsthmusError(f"{out} exists: choose another folder")
    named = {} if task is None else {"name": task.name, **task.model_dump()}
    plan = Study.read(
        {"seeds": list(seeds) if seed is None else [seed], "device": device, "wire": wire, "task": named}, "run"
    )
    where = plan.torch_device()
    if out is not None:
        _make(Path(out))
    runs = []
    cuts: dict[int, CutDescription] = {}
    try:
        for at in plan.seeds:
            loaded = plan.load(at) if parties is None else None
            held = list(parties or []) if loaded is None else loaded.parties
            known = classes if loaded is None else loaded.classes
            learned = task_of(task, held, known)
            cuts[at] = describe(held, known, "" if loaded is None else loaded.note)
            for each in chosen:
                module = module_for(encoder, held, learned, at)
                runs.append(Run(each, held, learned, module, seed=at, device=where, wire=wire, on_round=on_round).go())
    except BaseException:
        if out is not None:
            Path(out).rmdir()  # made above, and nothing is in it yet
        raise
    whole = {"data": {"name": "parties given in Python"}} if loaded is None else plan.resolved(loaded)
    study = {
        "parties": len(held),
        "seeds": plan.seeds,
        "data": whole["data"],
        "partition": whole.get("partition", {}),
        "task": named,
        "model": {"encoder": encoder.name, **encoder.model_dump()} if isinstance(encoder, Encoder) else {},
        "methods": [{"name": each.name, **each.model_dump()} for each in chosen],
    }
    results = Results(study, ordered(runs, [each.name for each in chosen]), cuts)
    if out is not None:
        results.save(Path(out))
    return results


def _make(out: Path) -> None:
    """Make a folder before the work whose results it is for."""
    try:
        out.mkdir(parents=True)
    except OSError as error:
        raise IsthmusError(f"cannot make the folder {out}: {error.strerror or error}; choose another") from error


def _with_options(methods: Sequence[str | Method], options: Mapping[str, Any]) -> list[Method]:
    """Methods with the options that they have; one that none has is an error."""
    kinds = [Method.named(each) if isinstance(each, str) else type(each) for each in methods]
    known = {name for kind in kinds for name in kind.model_fields}
    for name in options:
        if name not in known:
            raise IsthmusError(f"run: no method has an option '{name}': {did_you_mean(name, known)}")
    chosen = []
    for each, kind in zip(methods, kinds, strict=True):
        given = {name: value for name, value in options.items() if name in kind.model_fields}
        if isinstance(each, Method) and not given:
            chosen.append(each)
            continue
        own = {} if isinstance(each, str) else each.model_dump()
        chosen.append(kind.read(merged(own, given), f"method '{kind.name}'"))
    return chosen
