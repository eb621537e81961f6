"""Tunes the options of a study's methods with Optuna. Trials see no test item: only validation data choose."""

from __future__ import annotations

import importlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from statistics import fmean
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import torch

from isthmus import store, toml
from isthmus.errors import DIVERGED, IsthmusError, format_option, missing_extra, writes_flags
from isthmus.methods.base import Method
from isthmus.methods.training import PLAIN_LR
from isthmus.result_files import Search, Tried
from isthmus.study.config import Loaded, Study
from isthmus.study.folder import hold_folder
from isthmus.study.private import check_no_search
from isthmus.study.processes import Processes, Send, count_processes
from isthmus.study.results import Results
from isthmus.study.run import Watcher, build_run, run_study
from isthmus.study.settings import flatten, option_fields, options_for, rank, with_values
from isthmus.tasks.metrics import metric_of

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

JOURNAL, BEST = "trials.journal", "best.toml"
"""Files in the result folder: Optuna's record of all trials, and the study with the best settings."""
DECADE = 10.0
"""A number without a range is searched from a tenth of its default to ten times that, on a logarithmic scale."""
MANY = 10**9
"""More values than any search tries: those of a range of real numbers."""
WARM_UP = 4
"""No trial is pruned in the first quarter of its rounds."""

OnTrial = Callable[[str, Tried, str], None]
"""Called with a method's label, a trial that has ended, and the name of the validation metric."""


def tune(
    study: Study,
    out: Path | str,
    *,
    trials: int = 40,
    resume: bool = False,
    jobs: int = 1,
    on_trial: OnTrial = lambda *trial: None,
    watcher: Watcher | None = None,
) -> Results:
    """Search good options for every method of a study, then run each method with its best ones.

    Every method gets the same number of trials. A trial trains with all seeds of the study, and its score is the mean
    of the validation metric. The first trial has the study's own options, as far as they lie in
    the ranges. A trial is pruned if its best figure so far
    is worse than the median of earlier trials at the same round.

    Arguments:
        study: its table `tune` says what to search; see `search_space`.
        out: folder for Optuna's journal, `best.toml` and the results of the best settings.
        trials: for each method.
        resume: go on with the trials in `out`; with more `trials`, do those that are missing.
        jobs: number of trials side by side, each in a process with one thread; 0 for one per core.
        on_trial: called after each trial.
        watcher: of the runs with the best settings.
    """
    if trials < 1:
        raise IsthmusError(f"trials is {trials}: give 1 or more")
    if not isinstance(study, Study):
        raise IsthmusError(f"tune: study is {study!r}: give a Study, such as isthmus.Study.of({{...}})")
    if study.grid:
        raise IsthmusError("tune: the study has a grid, which is a search of its own: leave it out, or use isthmus run")
    check_no_search(study.named_privacy(), searched=True)
    out, first = Path(out), study.load(study.seeds[0])
    study = study.suited(first.task.level)
    methods = study.listed_methods()
    ranges = flatten(study.tune)
    if shared := next((name for name in ranges if "model" in name.split(".")[:-1]), ""):
        raise IsthmusError(f"tune: '{shared}' is an option of the model, which all methods share: compare it in a grid")
    spaces = {method.label: search_space(method, study.tune) for method in methods}
    if not any(spaces.values()):
        raise IsthmusError(f"tune: no method of the study has an option to search: name one, {_range('OPTION')}")
    if first.task.unsupervised or not any(bool(party.val.any()) for party in first.parties):
        raise IsthmusError("tune: the study has no validation labels, and test labels must not choose: add some")
    metric = f"val_{first.task.selected_by}"
    with hold_folder(out):
        optuna_studies = _open_journal(out, study, spaces, metric, resume=resume)
        todo = []
        for label, each in optuna_studies.items():
            todo += [(at, label) for at in range(len(_finished(each)), min(trials, _size(spaces[label])))]
        plain = study.model_dump_json()
        jobs_todo = [TrialJob(plain, study.modules(), label, at, str(out / JOURNAL)) for at, label in sorted(todo)]
        _do(jobs_todo, jobs, lambda job, tried: on_trial(job.method, tried, metric))
        tried = [_as_tried(label, each) for label, own in optuna_studies.items() for each in _finished(own)[:trials]]
        best = {each.of: each.values for each in rank(tried, metric) if each.chosen}
        chosen = [with_values(method, best.get(method.label, {})) for method in methods]
        tables = [each.to_dict() for each in chosen]
        final = Study.of(
            {**study.model_dump(exclude_unset=True), "methods": tables, "training": {}, "tune": {}}, "tune"
        )
        store.write(out / BEST, toml.dumps(final.resolved(first)))
        results = run_study(final, jobs=jobs, watcher=watcher)
        for label in spaces.keys() - optuna_studies.keys():
            values = [run.metrics[metric] for run in results.runs if run.method == label and metric in run.metrics]
            tried.append(Tried.of_values(label, {}, values))
            results.notes.append(f"{label} ran once, as it has no option that is searched")
        for label in optuna_studies:
            if (size := _size(spaces[label])) < trials:
                results.notes.append(f"{label} has {size:,} settings to search, which were all tried")
        importance = {label: shares for label, own in optuna_studies.items() if (shares := _importance(own))}
        ranked = [replace(each, label=each.of if each.chosen else "") for each in rank(tried, metric)]
        results.search = Search(metric, ranked, importance)
        results.save(out)
    return results


def search_space(method: Method, ranges: Mapping[str, Any]) -> dict[str, BaseDistribution]:
    """What to search of a method, by option: its learning rates, what its class names as `tuned`, and the ranges given.

    Arguments:
        ranges: by option, also `METHOD.OPTION`, a text "0.001..0.1", a list of choices, or one value for all trials.
    """
    method = method.with_rate(PLAIN_LR)  # one of a study has that of its encoder by now
    fields = dict(option_fields(method))
    rates = [name for name in fields if (last := name.rpartition(".")[2]) == "lr" or last.endswith("_lr")]
    given = options_for(method, flatten(ranges))
    space = {}
    for name in dict.fromkeys([*rates, *method.tuned, *given]):
        where = f"tune: option '{name}' of {method.label}"
        kind = _kind(fields[name])
        space[name] = _of_range(given[name], kind, where) if name in given else _of_field(method, name, where)
        for value in _ends(space[name]):
            with_values(method, {name: value})  # refuses what the option does not take
    return space


def _of_range(given: Any, kind: Any, where: str) -> BaseDistribution:
    optuna = _optuna()
    low, dots, high = given.partition("..") if isinstance(given, str) else ("", "", "")
    if not dots and not (isinstance(given, str) and kind in (int, float)):
        choices = given if isinstance(given, list) else [given]
        if not choices or not all(isinstance(each, str | int | float) for each in choices):
            raise IsthmusError(f"{where}: the choices are {given!r}: give numbers, texts, true or false")
        return optuna.distributions.CategoricalDistribution(choices)
    try:
        number = int if kind is int else float
        ends = number(low), number(high)
    except ValueError:
        raise IsthmusError(
            f"{where}: the range is '{given}': write it as 0.001..0.1, or as 1..10 for whole numbers"
        ) from None
    if not (all(map(math.isfinite, ends)) and ends[0] < ends[1]):
        raise IsthmusError(f"{where}: the range is '{given}': its first number must be the smaller one")
    return _numbers(kind, *ends)


def _of_field(method: Method, name: str, where: str) -> BaseDistribution:
    """The range that an option's type, bounds and default suggest."""
    info, value = dict(option_fields(method))[name], _value(method, name)
    kind = _kind(info)
    if kind is bool or get_origin(kind) is Literal:
        return _optuna().distributions.CategoricalDistribution([False, True] if kind is bool else list(get_args(kind)))
    low, high = -math.inf, math.inf
    for bound in info.metadata:  # Ge, Gt, Le, Lt
        low = max(low, getattr(bound, "ge", low), math.nextafter(bound.gt, math.inf) if hasattr(bound, "gt") else low)
        high = min(high, getattr(bound, "le", high), math.nextafter(bound.lt, 0.0) if hasattr(bound, "lt") else high)
    if kind in (int, float) and value > 0:
        ends = max(low, value / DECADE), min(high, value * DECADE)
        return _numbers(kind, *(ends if kind is float else (max(1, round(ends[0])), round(ends[1]))))
    if kind in (int, float) and math.isfinite(low) and math.isfinite(high):
        return _numbers(kind, low, high)
    raise IsthmusError(f"{where} suggests no range: give one, {_range(name)}")


def _kind(info: Any) -> Any:
    """The type of an option's values, without None."""
    kinds = [kind for kind in get_args(info.annotation) if kind is not NoneType]
    return kinds[0] if len(kinds) == 1 and NoneType in get_args(info.annotation) else info.annotation


def _range(name: str) -> str:
    """How the caller gives a range."""
    return f"--range {name}=LOW..HIGH" if writes_flags() else format_option(f"tune.{name}", "LOW..HIGH")


def _numbers(kind: Any, low: Any, high: Any) -> BaseDistribution:
    distributions = _optuna().distributions
    wide = low > 0 and high / low >= DECADE
    if kind is int:
        return distributions.IntDistribution(int(low), int(high), log=wide)
    return distributions.FloatDistribution(float(low), float(high), log=wide)


def _size(space: Mapping[str, Any]) -> int:
    """How many settings a space has; a range of real numbers has more than any search tries."""
    return math.prod(map(len, map(_choices, space.values())))


def _settings(space: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All settings of a space in order; none if it has a range of real numbers, in which none comes twice."""
    if all(hasattr(each, "choices") or isinstance(each.low, int) for each in space.values()):
        for values in itertools.product(*map(_choices, space.values())):
            yield dict(zip(space, values, strict=True))


def _choices(space: Any) -> Sequence[Any]:
    """The values that an option can have; of real numbers stand-ins, as they cannot be counted."""
    if hasattr(space, "choices"):
        return list(dict.fromkeys(space.choices))
    return range(space.low, space.high + 1) if isinstance(space.low, int) else range(MANY)


def _ends(space: Any) -> Sequence[Any]:
    return getattr(space, "choices", None) or (space.low, space.high)


def _holds(space: Any, value: Any) -> bool:
    return value in space.choices if hasattr(space, "choices") else space.low <= value <= space.high


@dataclass(frozen=True)
class TrialJob:
    """One trial, as plain values from which a process starts it.

    Attributes:
        study: as JSON.
        modules: the modules that define what the study names; some may be the user's own.
        method: its label.
        at: how many trials of the method are planned before it.
        journal: the file with all trials.
    """

    study: str
    modules: frozenset[str]
    method: str
    at: int
    journal: str


def _do(todo: Sequence[TrialJob], jobs: int, done: Callable[[TrialJob, Tried], None]) -> None:
    """Do trials, here or in processes."""
    number = min(count_processes(jobs), len(todo))
    if number <= 1:
        for job in todo:
            done(job, do_trial(job))
        return
    with Processes(number) as pool:
        for job, future in pool.run(do_trial, todo):
            done(job, future.result())


def do_trial(job: TrialJob, send: Send = lambda *details: None) -> Tried:
    """Let Optuna choose options, train with them, and record the score in the journal."""
    optuna = _optuna()
    for name in job.modules:
        importlib.import_module(name)
    study = Study.of(json.loads(job.study))
    method = next(each for each in study.listed_methods() if each.label == job.method)
    space = search_space(method, study.tune)
    # a seed for each trial: a search that is resumed then finds what an uninterrupted one would
    sampler = optuna.samplers.TPESampler(seed=job.at)
    pruner = optuna.pruners.MedianPruner(n_warmup_steps=method.rounds // WARM_UP)
    own = optuna.load_study(study_name=job.method, storage=_storage(job.journal), sampler=sampler, pruner=pruner)
    with _choosing(Path(job.journal)):
        if job.at == 0 and (start := _own_values(method, space)):
            own.enqueue_trial(start)
        known = [each.params for each in own.trials if each.state is not optuna.trial.TrialState.FAIL]
        trial = own.ask(space)
        if trial.params in known and (fresh := next((each for each in _settings(space) if each not in known), None)):
            own.tell(trial, state=optuna.trial.TrialState.FAIL)  # a setting that was tried already
            own.enqueue_trial(fresh)
            trial = own.ask(space)
    try:
        own.tell(trial, _score(study, with_values(method, trial.params), trial))
    except optuna.TrialPruned:
        own.tell(trial, state=optuna.trial.TrialState.PRUNED)
    return _as_tried(job.method, own.trials[trial.number])


@contextmanager
def _choosing(journal: Path) -> Iterator[None]:
    """Let one process choose a setting at a time: another that chooses must know this choice."""
    with journal.open("rb") as file:
        store.hold(file.fileno())
        yield


def _score(study: Study, method: Method, trial: optuna.Trial) -> float:
    """The mean over seeds of the validation metric. Parties without test items are all that a trial gets."""
    optuna = _optuna()
    scores: list[float] = []
    for seed in study.seeds:
        loaded = _load_without_test(study, seed)
        metric = f"val_{loaded.task.selected_by}"

        def watch(at: int, metrics: Mapping[str, float], metric: str = metric) -> None:
            """Prune by the curve of the first seed."""
            if not scores:
                trial.report(metrics.get(metric, math.nan), at)
                if trial.should_prune():
                    raise optuna.TrialPruned

        try:
            scores.append(build_run(study, method, seed, loaded, on_round=watch).go().metrics.get(metric, math.nan))
        except DIVERGED:
            scores.append(math.nan)
    trial.set_user_attr("scores", scores)
    if not all(map(math.isfinite, scores)):
        raise optuna.TrialPruned
    return fmean(scores)


_loaded: dict[tuple[str, int], Loaded] = {}
"""The parties of the trials in this process, by study and seed."""


def _load_without_test(study: Study, seed: int) -> Loaded:
    """The parties of a run, with no item to test on: what a trial does not have cannot choose."""
    plain = study.model_dump_json()
    if any(other != plain for other, _ in _loaded):
        _loaded.clear()
    if (plain, seed) not in _loaded:
        loaded = study.load(seed)
        parties = [replace(party, test=torch.zeros_like(party.test)) for party in loaded.parties]
        _loaded[plain, seed] = replace(loaded, parties=parties)
    return _loaded[plain, seed]


def _open_journal(
    out: Path, study: Study, spaces: Mapping[str, Mapping[str, BaseDistribution]], metric: str, *, resume: bool
) -> dict[str, optuna.Study]:
    """Open or create an Optuna study for each method that has something to search."""
    optuna = _optuna()
    journal = out / JOURNAL
    if resume and not journal.exists():
        raise IsthmusError(f"{out} holds no trials: tune without {format_option('resume', True)}")
    if not resume and any(out.iterdir()):
        go_on = format_option("resume", True)
        raise IsthmusError(f"{out} is not empty: use {go_on} to go on with its trials, or a new folder")
    storage = _storage(str(journal))
    plan = store.unpack(store.pack(study.model_dump(mode="json")))
    direction = "minimize" if metric_of(metric).smaller_is_better else "maximize"
    found = {}
    for label, space in spaces.items():
        if not space:
            continue
        own = optuna.create_study(study_name=label, storage=storage, direction=direction, load_if_exists=resume)
        if resume and (differ := _differing(own.user_attrs.get("study", plan), plan)):
            raise IsthmusError(
                f"{out} holds the trials of another study, which differs in {', '.join(differ)}: resume it with the "
                "options it was started with"
            )
        own.set_user_attr("study", plan)
        for trial in own.get_trials(deepcopy=False, states=[optuna.trial.TrialState.RUNNING]):
            own.tell(trial.number, state=optuna.trial.TrialState.FAIL)  # its process was stopped
        found[label] = own
    return found


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Name the parts in which two studies differ; of what is searched, the options."""

    def parts(study: Mapping[str, Any]) -> dict[str, Any]:
        ranges = {f"the range of '{name}'": value for name, value in flatten(study.get("tune", {})).items()}
        listed = {f"method '{each.get('label') or each['name']}'": each for each in study.get("methods", [])}
        return {f"'{key}'": value for key, value in study.items() if key not in ("tune", "methods")} | listed | ranges

    own, others = parts(now), parts(before)
    return [name for name in {**others, **own} if own.get(name) != others.get(name)]


def _storage(journal: str) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    try:
        return JournalStorage(JournalFileBackend(journal))
    except (OSError, ValueError, KeyError) as error:
        raise IsthmusError(f"cannot read the trials in {journal}: {error}: tune into a new folder") from error


def _own_values(method: Method, space: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    """The method's own options, as far as they lie in the space; with what the space fixes."""
    found = {name: ends[0] if len(ends := _ends(each)) == 1 else _value(method, name) for name, each in space.items()}
    return {name: value for name, value in found.items() if _holds(space[name], value)}


def _value(method: Method, name: str) -> Any:
    return reduce(getattr, name.split("."), method)


def _finished(own: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    states = _optuna().trial.TrialState
    return own.get_trials(deepcopy=False, states=[states.COMPLETE, states.PRUNED])


def _as_tried(label: str, trial: optuna.trial.FrozenTrial) -> Tried:
    scores = trial.user_attrs.get("scores", [])
    return replace(Tried.of_values(label, dict(trial.params), scores), pruned=not scores)


def _importance(own: optuna.Study) -> dict[str, float]:
    """How much each option matters; nothing if there are too few trials to tell."""
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    try:
        found = get_param_importances(own, evaluator=FanovaImportanceEvaluator(seed=0))
        return {name: float(share) for name, share in found.items()}
    except (ValueError, RuntimeError):
        return {}


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise missing_extra("Optuna", "tune", "tuning") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
