"""Runs a study, every method with every seed, into a folder from which a killed study can be resumed."""

from __future__ import annotations

import importlib
import inspect
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from torch import nn

from isthmus import store
from isthmus.data.describe import describe
from isthmus.data.description import CutDescription
from isthmus.data.level import Level
from isthmus.data.partition.given import Given
from isthmus.data.party import Party
from isthmus.data.pool import Pool as DataPool
from isthmus.data.pool import check_no_folder
from isthmus.errors import DIVERGED, IsthmusError, format_option, path_of
from isthmus.federation.ledger import PartyStanding
from isthmus.federation.transport import Transport
from isthmus.methods.base import Method
from isthmus.nn.encoders import Encoder
from isthmus.options import merge
from isthmus.own_code import identify, reference_of
from isthmus.privacy.options import Privacy
from isthmus.result_files import STATE
from isthmus.study.config import Loaded, Study, check_distinct, check_no_effect, code_table
from isthmus.study.folder import MARK, discard_unless_started, hold_folder, prepare_folder
from isthmus.study.loop import OnRound, Run, RunResult, previous_of
from isthmus.study.models import describe_model
from isthmus.study.notes import data_notes, federation_notes, model_notes, probability_notes, protocol_notes
from isthmus.study.option_hints import missing_option
from isthmus.study.own_models import OwnModel, code_of, model_table, own_models, with_model_options
from isthmus.study.private import adapted, check_no_search, privacy_of, privacy_table
from isthmus.study.processes import Pool, Processes, ProcessKilled, Send, count_processes
from isthmus.study.protocol import preset_for
from isthmus.study.results import Results, sort_runs
from isthmus.study.settings import LeftOut, combine, recorded
from isthmus.study.setup import check_labelled, module_for, needs_whole, suited
from isthmus.tasks.base import Task


class Watcher:
    """Hears what happens in a study. This one ignores it; subclasses override what they need."""

    def study_started(self, study: Mapping[str, Any]) -> None:
        """A study begins; `study` has all its options spelled out."""

    def cut_made(self, seed: int, cut: CutDescription) -> None:
        """The parties for the runs with this seed are loaded."""

    def run_started(self, method: Method, seed: int) -> None: ...

    def round_done(self, method: Method, seed: int, at: int, metrics: Mapping[str, float]) -> None: ...

    def run_done(self, result: RunResult) -> None: ...

    def run_left_out(self, method: Method, seed: int, why: str) -> None:
        """A setting of a grid diverged, with this seed or, without a reason, with one before."""

    def run_restored(self, result: RunResult) -> None:
        """A run was finished before this study was resumed."""

    def parties_seen(self, parties: Mapping[str, PartyStanding]) -> None:
        """In a federation: how each party stands, several times a second."""


class Watchers(Watcher):
    """Passes everything on to several watchers."""

    def __init__(self, *watchers: Watcher) -> None:
        def pass_on(event: str, *details: Any) -> None:
            for each in watchers:
                getattr(each, event)(*details)

        for event in vars(Watcher):
            if not event.startswith("_"):
                setattr(self, event, partial(pass_on, event))


class Machines(Protocol):
    """Machines of one owner, such as `deploy.cluster.Cluster`."""

    def load(self, study: Study, seed: int) -> Loaded:
        """The parties of a run, or the outlines of those that the machines have loaded."""

    def transport(self, study: Study, method: Method, seed: int, loaded: Loaded) -> Transport:
        """Start a run with its parties spread over the machines, and return the transport to them."""

    def pool(self, number: int) -> Pool:
        """For so many runs side by side, each on one core; 0 for as many as there are cores."""


def run_study(
    study: Study,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    force: bool = False,
    watcher: Watcher | None = None,
    save_every: float = 2.0,
    cluster: Machines | None = None,
    jobs: int = 1,
) -> Results:
    """Run all of a study.

    Arguments:
        out: the result folder; without one, nothing is written.
        resume: continue the study in `out`; results equal those of an uninterrupted run bit for bit.
        force: start over although `out` holds results.
        save_every: least seconds between checkpoints; 0 saves after every round.
        cluster: machines to spread the parties of a run over; without them, all parties are in this process.
        jobs: number of runs side by side, each in a process with one thread, here or in the cluster; 0 for one per
            core. A script must call this below `if __name__ == "__main__":`, because every process imports the script.
    """
    if not isinstance(study, Study):
        raise IsthmusError(f"run_study: study is {study!r}: give a Study, such as isthmus.Study.of({{...}})")
    count_processes(jobs)  # refuses negative ones
    watcher = watcher or Watcher()
    out = None if out is None else path_of(out, "run_study: out")
    if cluster is not None:
        study.check_importable()
    side_by_side = jobs != 1 and (cluster is not None or count_processes(jobs) > 1)
    load = study.load if cluster is None or side_by_side else partial(cluster.load, study)
    first = load(study.seeds[0])  # shows wrong input before anything is written
    if study.unlabelled == "error":
        _check_cuts(study, first)
    resolved = study.suited(first.task.level).resolved(first)
    methods, first_cut, metrics = study.method_list(), _describe(first), (first.task.judged_by, first.task.selected_by)
    held = first.fingerprint
    notes = protocol_notes(study.protocol, {"data": study.data, "partition": study.partition})
    notes += federation_notes(study)
    notes += _notes_on(first, first_cut, study, study.listed_methods(), study.trained_encoders())
    existed = out is not None and out.exists()
    state = None if out is None else out / STATE
    runs: list[RunResult] = []
    cuts: dict[int, CutDescription] = {study.seeds[0]: first_cut}
    left_out = LeftOut(study.settings())

    def train(method: Method, seed: int, **options: Any) -> RunResult:
        if cluster is not None and method.role != "pooled":  # a pooled method has one party, nothing to spread
            options["transport"] = cluster.transport(study, method, seed, loaded)
        run = build_run(study, method, seed, loaded, save_every=save_every, **options)
        try:
            return run.go()
        finally:
            run.transport.close()

    with nullcontext() if out is None else hold_folder(out):
        if out is not None:
            prepare_folder(
                out,
                resolved,
                resume=resume,
                force=force,
                settings=_settings_of(study, first.task.level),
                fingerprint_of=lambda seed: held if seed == study.seeds[0] else load(seed).fingerprint,
            )
        watcher.study_started(resolved)
        try:
            if side_by_side:
                del first  # every process loads its own
                runs = _run_side_by_side(study, jobs, cluster, cuts, watcher, state, save_every, left_out)
            else:
                for seed in study.seeds:
                    loaded = first if seed == study.seeds[0] else load(seed)
                    cuts[seed] = first_cut if seed == study.seeds[0] else _describe(loaded)
                    watcher.cut_made(seed, cuts[seed])
                    runs += run_methods(methods, seed, train, watcher, state, left_out=left_out)
        except ProcessKilled:
            raise
        except IsthmusError:
            if out is not None:
                discard_unless_started(out, existed)
            raise
        runs = sort_runs(runs, [method.label for method in methods])
        own = own_models({method.label: study.encoder(method) for method in methods})
        results = Results(resolved, runs, cuts, notes=notes, code=study.own_code(), own_models=own)
        results.fingerprint = {"seed": study.seeds[0], "digest": held}
        results.compare_settings(study.settings(), *metrics, left_out.labels)
        if out is not None:
            remedy = f"start over with {format_option('force', True)}"
            with store.expected_content(out / STATE, remedy) if resume else nullcontext():
                results.save(out)
            shutil.rmtree(out / STATE, ignore_errors=True)
        return results


def build_run(study: Study, method: Method, seed: int, loaded: Loaded, **options: Any) -> Run:
    """Return the run of one method of a study with one seed; `options` are those of `Run`."""
    parties = loaded.parties
    if loaded.by_workers and (method.role == "pooled" or needs_whole(parties, loaded.task)):
        parties = study.load(seed).parties
    options |= {"device": study.torch_device(), "wire": study.wire}
    return _run_of(method, study.encoder(method), seed, loaded, parties, study.named_privacy(), **options)


def _run_of(
    method: Method,
    model: Any,
    seed: int,
    loaded: Loaded,
    parties: Sequence[Party],
    privacy: Privacy | None,
    **options: Any,
) -> Run:
    """Return the run of a method that trains this model; of loaded outlines, `parties` may be whole."""
    method = suited(method, model, loaded.task.level)
    module = module_for(model, loaded.parties, loaded.task, seed)
    about = loaded.task, seed, loaded.parties[0].inputs, loaded.labels, loaded.encoding, privacy, loaded.parties
    description = describe_model(method, model, *about, loaded.partition.split is not None)
    return Run(method, parties, loaded.task, module, seed=seed, description=description, privacy=privacy, **options)


def run_methods(
    methods: Sequence[Method],
    seed: int,
    train: Callable[..., RunResult],
    watcher: Watcher,
    state: Path | None = None,
    saved: Callable[[], None] = lambda: None,
    *,
    left_out: LeftOut | None = None,
) -> Iterator[RunResult]:
    """Run every method with one seed and yield the results; runs that are finished already are read from `state`.

    Arguments:
        train: trains a method; called with the method, the seed and the options `checkpoint` and `on_round` of `Run`.
        state: folder for checkpoints and finished runs.
        saved: called after each run, when its result is on the disk.
        left_out: settings to leave out; those that diverge are added.
    """
    left_out = left_out or LeftOut()
    for method in methods:
        if method.label in left_out.labels:
            watcher.run_left_out(method, seed, "")
            continue
        if (restored := _restore_run(state, method, seed, watcher)) is not None:
            yield restored
            continue
        watcher.run_started(method, seed)
        on_round = partial(watcher.round_done, method, seed)
        try:
            result = train(method, seed, checkpoint=_checkpoint(state, method, seed), on_round=on_round)
        except DIVERGED as error:
            left_out.add(method.label, seed, error)
            watcher.run_left_out(method, seed, str(error))
            continue
        _finish_run(state, method, result, watcher)
        saved()
        yield result


@dataclass(frozen=True)
class Job:
    """One run of a study, as plain values from which a process starts it.

    Attributes:
        study: as JSON.
        modules: the modules that define what the study names; some may be the user's own.
        checkpoint: see `Run`, like `save_every`.
        mark: what stands in the checkpoint's folder; a machine that does not find it there keeps no checkpoint.
    """

    study: str
    modules: frozenset[str]
    method: str
    seed: int
    checkpoint: Path | None
    mark: bytes
    save_every: float

    def own_checkpoint(self) -> Path | None:
        """The checkpoint, if this machine sees its folder."""
        if self.checkpoint is None:
            return None
        with suppress(OSError):
            if (self.checkpoint.parent / MARK).read_bytes() == self.mark:
                return self.checkpoint
        return None


def _run_side_by_side(
    study: Study,
    number: int,
    cluster: Machines | None,
    cuts: dict[int, CutDescription],
    watcher: Watcher,
    state: Path | None,
    save_every: float,
    left_out: LeftOut,
) -> list[RunResult]:
    """Run every method with every seed in processes and return the results.

    The cuts that they made are added, and the settings of a grid that diverged.
    """
    methods = {method.label: method for method in study.method_list()}
    runs, todo = [], []
    mark = b"" if state is None else (state / MARK).read_bytes()
    for seed in study.seeds:
        if seed in cuts:
            watcher.cut_made(seed, cuts[seed])
        for name, method in methods.items():
            if (restored := _restore_run(state, method, seed, watcher)) is not None:
                runs.append(restored)
            else:
                checkpoint = _checkpoint(state, method, seed)
                todo.append(Job(study.model_dump_json(), study.modules(), name, seed, checkpoint, mark, save_every))

    def hear(job: Job, event: str, *details: Any) -> None:
        getattr(watcher, event)(methods[job.method], job.seed, *details)

    here = max(1, min(count_processes(number), len(todo)))
    with Processes(here) if cluster is None else cluster.pool(number) as pool:
        for job, done in pool.run(do_job, todo, hear):
            try:
                cut, saved = done.result()
            except DIVERGED as error:
                left_out.add(job.method, job.seed, error)
                watcher.run_left_out(methods[job.method], job.seed, str(error))
                continue
            if job.seed not in cuts:
                cuts[job.seed] = cut
                watcher.cut_made(job.seed, cut)
            runs.append(RunResult.of_dump(store.unpack(saved)))
            _finish_run(state, methods[job.method], runs[-1], watcher)
    for seed in set(study.seeds) - cuts.keys():  # whose runs have all been restored, or diverged
        cuts[seed] = _describe(study.load(seed))
        watcher.cut_made(seed, cuts[seed])
    return runs


def do_job(job: Job, send: Send) -> tuple[CutDescription, bytes]:
    """Run a job and return what the parties hold, and the result as bytes.

    Tensors in the result would travel through shared memory, which needs an open file for each.
    """
    for name in job.modules:
        importlib.import_module(name)
    study = Study.of(json.loads(job.study))
    method = next(each for each in study.method_list() if each.label == job.method)
    send("run_started")
    loaded, cut = _load_once(study, job.seed)
    on_round = partial(send, "round_done")
    run = build_run(
        study, method, job.seed, loaded, checkpoint=job.own_checkpoint(), save_every=job.save_every, on_round=on_round
    )
    return cut, store.pack(run.go().dump())


_loaded: dict[tuple[str, int], tuple[Loaded, CutDescription]] = {}
"""In a process that does jobs: the parties of the last one. The next job often has the same."""


def _load_once(study: Study, seed: int) -> tuple[Loaded, CutDescription]:
    key = study.model_dump_json(), seed
    if key not in _loaded:
        _loaded.clear()  # free the memory first
        loaded = study.load(seed)
        _loaded[key] = loaded, _describe(loaded)
    return _loaded[key]


def _check_cuts(study: Study, first: Loaded) -> None:
    """Refuse seeds with which a cut leaves a party without training labels, before the first run of any."""
    if isinstance(first.partition, Given) and first.partition.split is None:
        return  # what parties hold is not drawn
    for seed in study.seeds[1:] if study.data_seed is None else ():
        try:
            check_labelled(study.cut_data(seed).parties)
        except IsthmusError as error:
            raise IsthmusError(f"with seed {seed}, {error}") from error


def _describe(loaded: Loaded) -> CutDescription:
    return describe(loaded.parties, loaded.classes, loaded.note, loaded.labels)


def _notes_on(
    loaded: Loaded, cut: CutDescription, study: Study, methods: Sequence[Method], models: Sequence[Any]
) -> list[str]:
    """What a reader must know of the data of the first seed, and of models beside them."""
    notes = data_notes(methods, loaded.parties, cut, study.task, study.seeds[0] if len(study.seeds) > 1 else None)
    notes += model_notes(models, loaded.parties, loaded.task)
    return notes + ([] if loaded.by_workers else probability_notes(models, loaded.parties, loaded.task))


def _restore_run(state: Path | None, method: Method, seed: int, watcher: Watcher) -> RunResult | None:
    """Read a run that was finished before the study was resumed."""
    file = None if state is None else state / f"{method.label}-{seed}.run"
    if file is None or not file.exists():
        return None
    with store.expected_content(file):
        result = RunResult.of_dump(store.load(file))
    watcher.run_restored(result)
    return result


def _checkpoint(state: Path | None, method: Method, seed: int) -> Path | None:
    return None if state is None else state / f"{method.label}-{seed}.checkpoint"


def _finish_run(state: Path | None, method: Method, result: RunResult, watcher: Watcher) -> None:
    """Save a finished run in place of its checkpoint."""
    checkpoint = _checkpoint(state, method, result.seed)
    if checkpoint is not None:
        store.save(checkpoint.with_suffix(".run"), result.dump())
        for path in (checkpoint, previous_of(checkpoint)):
            path.unlink(missing_ok=True)
    watcher.run_done(result)


def _settings_of(study: Study, level: Level) -> list[dict[str, Any]]:
    """All that runs, with the options that it trains with and those of the model that a grid varies."""
    return [
        suited(each.method, study.encoder(each.method), level).to_dict() | ({"model": each.model} if each.model else {})
        for each in study.settings()
    ]


def run(
    method: str | Method | Sequence[str | Method],
    data: str | Path | Mapping[str, Any] | Sequence[Party] | None = None,
    *,
    partition: str | Mapping[str, Any] | None = None,
    parties: int | None = None,
    model: str | Mapping[str, Any] | Encoder | nn.Module | Callable[[int, int], nn.Module] | None = None,
    classes: int | None = None,
    task: Task | str | Mapping[str, Any] | None = None,
    metric: str | None = None,
    select_by: str | None = None,
    seeds: int | Sequence[int] | None = None,
    seed: int | None = None,
    device: str = "cpu",
    wire: bool = False,
    on_round: OnRound | None = None,
    out: str | Path | None = None,
    unlabelled: Literal["error", "idle"] = "error",
    grid: Mapping[str, Any] | None = None,
    protocol: str | None = None,
    privacy: Mapping[str, Any] | None = None,
    **options: Any,
) -> Results:
    """Train methods on parties in this process and return the results.

    Arguments:
        method: a name, a method with its options, or several of these.
        data: all parties; or the name of a data set, its name with options, or the path of a folder of party folders.
            By default, the generated banks.
        partition: how a data set is cut: the name of a partition, or its name with options.
        parties: the number of parties that a data set is cut into.
        model: an encoder by name or with its options, also `{"encoder": "sage", "hidden": 32}`; your own PyG module
            with `forward(x, edge_index, ...)`, or a class or function that makes one for given numbers of features and
            outputs, also as "module:Class". By default, a GCN.
        classes: number of classes (or of tasks, if items have several labels), if the labels do not show it.
        task: a task, its name, or its options with or without a name; by default, the task that the labels ask for. For
            links, they are held out of the parties' graphs here.
        metric, select_by: the task's options of these names.
        seeds: their number, or a list of them: one run for each (or `seed`, a single one). By default, seed 0.
        wire: encode every payload to bytes and back.
        on_round: called with the round and its metrics.
        out: new folder to write the results to.
        unlabelled: parties without a training label: "error" refuses them, "idle" lets them take part with weight 0.
        grid: values to compare, `{"local.lr": [0.01, 0.1]}`: each method runs with every combination that applies.
        protocol: a published protocol, "fed-pub", whose options stand for those that are not given here.
        privacy: differential privacy, `{"unit": "party", "epsilon": 8.0}`.
        options: options of methods, `rounds=10`, `local={"epochs": 5}`; each method takes those that it has.

    >>> from isthmus.data.datasets.banks import Banks
    >>> results = run("fedavg", rounds=2)
    >>> sorted(results.metrics)[:2]
    ['test_accuracy', 'test_balanced_accuracy']
    """
    _check_arguments(method, partition, classes, on_round, out, unlabelled, grid, protocol)
    table = _task_table(task, {"metric": metric, "select_by": select_by})
    methods = [method] if isinstance(method, str | Method) else list(method)
    given, about_data = _given_parties(data, partition, parties)
    preset = _preset(protocol, about_data, model, methods)
    if given is None:
        about_data = merge({key: preset[key] for key in ("data", "partition", "parties") if key in preset}, about_data)
    if model is None or isinstance(model, str | Mapping):
        own = {"encoder": model} if isinstance(model, str) else dict(model or {})
        model = merge(preset.get("model", {}), own)
    if seed is not None and seeds is not None:
        raise IsthmusError(f"run: seed is {seed!r} and seeds is {seeds!r}: give one of the two")
    seeds = preset.get("seeds", 1) if seeds is None else seeds
    once = {"seeds": seeds if seed is None else [seed], "device": device, "wire": wire, "task": table}
    hidden = privacy_of({} if privacy is None else privacy, "run: privacy")
    check_no_search(hidden, bool(grid))
    listed = [adapted(each, hidden) for each in _with_options(methods, options, preset.get("training", {}))]
    check_no_effect(options, grid or {}, {}, "run")
    settings = combine(listed, grid or {})
    chosen = [setting.method for setting in settings]
    check_distinct(chosen, "run")
    encoder = _given_model(model)
    models = {each.method.label: with_model_options(encoder, each.model) for each in settings}
    if out is not None and Path(out).exists():
        raise IsthmusError(f"{out} exists: choose another folder")
    plan = Study.of({**about_data, **once}, "run")
    task = plan.named_task() if not isinstance(task, Task) else type(task).read(_without_name(table), "task")
    where = {"device": plan.torch_device(), "wire": wire, "on_round": on_round}
    runs: list[RunResult] = []
    cuts: dict[int, CutDescription] = {}
    left_out = LeftOut(settings)

    def load(seed: int) -> Loaded:
        if given is None:
            found = plan.cut_data(seed)
        else:
            found = Loaded(_with_items(given, task, seed), classes or 0, Given(), "", task, plan.task_options())
        if unlabelled == "error":
            check_labelled(found.parties)
        return found

    def train(method: Method, seed: int, **_: Any) -> RunResult:
        return _run_of(method, models[method.label], seed, loaded, loaded.parties, hidden, **where).go()

    with nullcontext() if out is None else hold_folder(Path(out)):
        first = load(plan.seeds[0])
        if unlabelled == "error":
            _check_cuts(plan, first)
        for at in plan.seeds:
            loaded = first if at == plan.seeds[0] else load(at)
            cuts[at] = _describe(loaded)
            runs += run_methods(chosen, at, train, Watcher(), left_out=left_out)
        whole = plan.resolved(first) if given is None else {"data": {"name": "parties given in Python"}}
        study = {
            "parties": len(first.parties),
            "seeds": plan.seeds,
            "data": whole["data"],
            "partition": whole.get("partition", {}),
            "task": first.task.to_dict(),
            "model": model_table(encoder),
            "methods": [each.to_dict() for each in recorded(listed, encoder, first.task.level, grid or {})],
            **({"grid": dict(grid)} if grid else {}),
            **({} if hidden is None else {"privacy": privacy_table(hidden)}),
        }
        own = identify([code_of(encoder), *map(type, [*chosen, *([] if task is None else [task])])])
        runs = sort_runs(runs, [each.label for each in chosen])
        trained = [models[each.label] for each in chosen if each.role != "constant"]
        notes = [*protocol_notes(protocol, whole), *_notes_on(first, cuts[plan.seeds[0]], plan, listed, trained)]
        results = Results(
            {**study, **code_table(own)}, runs, cuts, notes=notes, code=own, own_models=own_models(models)
        )
        results.fingerprint = {"seed": plan.seeds[0], "digest": first.fingerprint}
        results.compare_settings(settings, first.task.judged_by, first.task.selected_by, left_out.labels)
        if out is not None:
            results.save(Path(out))
    return results


def _check_arguments(
    method: Any, partition: Any, classes: Any, on_round: Any, out: Any, unlabelled: Any, grid: Any, protocol: Any
) -> None:
    """Refuse arguments of `run` of wrong types; what a study has, its own checks refuse."""
    names = [method] if isinstance(method, str | Method) else method
    listed = isinstance(names, Sequence) and names and all(isinstance(each, str | Method) for each in names)
    table = "the name of a partition, or its name with options"
    for name, value, fits, what in (
        ("method", method, listed, "the name of a method, a method with its options, or a list of these"),
        ("partition", partition, partition is None or isinstance(partition, str | Mapping), table),
        ("classes", classes, classes is None or (isinstance(classes, int) and classes > 0), "their number"),
        ("on_round", on_round, on_round is None or callable(on_round), "a function of the round and its metrics"),
        ("out", out, out is None or isinstance(out, str | Path), "the path of a folder"),
        ("unlabelled", unlabelled, unlabelled in ("error", "idle"), "'error' or 'idle'"),
        ("grid", grid, grid is None or isinstance(grid, Mapping), "a table of lists, {'local.lr': [0.01, 0.1]}"),
        ("protocol", protocol, protocol is None or isinstance(protocol, str), "the name of one"),
    ):
        if not fits:
            raise IsthmusError(f"run: {name} is {value!r}: give {what}")


def _preset(
    protocol: str | None, about_data: Mapping[str, Any], model: Any, methods: Sequence[str | Method]
) -> dict[str, Any]:
    """What a protocol sets for these data, this model and these methods."""
    table = {"encoder": model} if isinstance(model, str) else model
    named = [{"name": each if isinstance(each, str) else each.name} for each in methods]
    return preset_for({"protocol": protocol, **about_data, "model": table, "methods": named})


def _given_model(model: Any) -> Any:
    """The model that is given to `run`, which is built later for the parties' features."""
    if isinstance(model, str | Mapping):
        return Study.of({"model": {"encoder": model} if isinstance(model, str) else model}, "run").encoder()
    if isinstance(model, Encoder | nn.Module):
        return model
    if not callable(model):
        raise IsthmusError(
            f"run: model is {model!r}: give the name of an encoder, a module, or a class or function that makes one"
        )
    OwnModel(reference_of(model), model, {})  # refuses one that takes other arguments
    return model


def _given_parties(data: Any, partition: Any, parties: Any) -> tuple[list[Party] | None, dict[str, Any]]:
    """Return the parties that are given to `run`, if they are, or else the tables of a study that name the data."""
    if parties is not None and not isinstance(parties, int):
        raise IsthmusError("parties is how many parties to cut the data into: give Party objects as `data`")
    if isinstance(data, Path):
        data = f"{data}/"  # with a slash, it is no name of a data set
    if isinstance(data, str):
        check_no_folder(data)
    if data is None or isinstance(data, str | Mapping):
        tables = {"data": data, "partition": partition}
        named = {key: {"name": each} if isinstance(each, str) else dict(each) for key, each in tables.items() if each}
        return None, named if parties is None else {**named, "parties": parties}
    if not (isinstance(data, Sequence) and all(isinstance(each, Party) for each in data)):
        raise IsthmusError(
            "data must be the name of a data set, the path of a folder of party folders ('parties/'), or a list of "
            "Party objects: make them with Party.of_graph or Party.of_graphs"
        )
    if partition is not None or parties is not None:
        raise IsthmusError(
            "Party objects are not cut or split again: leave out partition and parties; what items are for say "
            "train_mask, val_mask and test_mask of their graphs"
        )
    return list(data), {}


def _with_items(parties: list[Party], task: Task | None, seed: int) -> list[Party]:
    """Return the parties with the items of the task; links are held out of their graphs."""
    if not parties or task is None:
        return parties
    if task.level == "pair" and parties[0].level == "node":
        return task.make_parties(DataPool(None, 2, parties=tuple(parties)), lambda pool: list(pool.parties or ()), seed)
    return task.set_masks(parties)


def _task_table(task: Any, metrics: Mapping[str, str | None]) -> Any:
    """A task, its name or its options as a table of a study, with metrics that are named; else what was given."""
    table = task.to_dict() if isinstance(task, Task) else {} if task is None else task
    table = {"name": table} if isinstance(table, str) else table
    return {**table, **{key: name for key, name in metrics.items() if name}} if isinstance(table, Mapping) else table


def _without_name(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != "name"}


def _with_options(
    methods: Sequence[str | Method], options: Mapping[str, Any], preset: Mapping[str, Any]
) -> list[Method]:
    """Return the methods, each with the options that it has; an option that no method has is an error.

    What an object was made with goes before `options`, as a method's own table goes before `[training]`.

    Arguments:
        preset: options that go below all others.
    """
    kinds = [Method.named(each) if isinstance(each, str) else type(each) for each in methods]
    known = {name for kind in kinds for name in kind.option_names()}
    for name, value in options.items():
        if name not in known:
            arguments = [each for each in inspect.signature(run).parameters if each != "options"]
            if name in Study.model_fields.keys() - {*arguments}:
                whole = f"isthmus.run_study(isthmus.Study.of({{'{name}': {value!r}, ...}}))"
                raise IsthmusError(f"run: '{name}' belongs to a whole study: {whole}")
            raise IsthmusError(f"run: {missing_option(name, value, kinds, format_option, arguments)}")
    chosen = []
    for each, kind in zip(methods, kinds, strict=True):
        given = {name: value for name, value in options.items() if name in kind.option_names()}
        below = {name: value for name, value in preset.items() if name in kind.option_names()}
        if isinstance(each, Method) and not given and not below:
            chosen.append(each)
            continue
        own, groups = {}, below
        if isinstance(each, Method):
            own = each.model_dump(exclude_unset=True)
            groups = below or each.model_dump(include=each.model_fields_set)  # with the defaults of groups that are set
        chosen.append(kind.read(merge(merge(groups, given), own), f"method '{kind.name}'"))
    return chosen
