"""The files of trained models: how they are written, and how one is chosen and read."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from isthmus import result_files, store
from isthmus.errors import (
    IsthmusError,
    did_you_mean,
    format_option,
    path_of,
    similar_path,
    writes_flags,
)
from isthmus.federation import wire
from isthmus.methods.base import Method
from isthmus.study.models import TrainedModel
from isthmus.version import VERSION

FORMAT = 2
"""Format number of a model's description. Raise it when older ones can no longer be read."""
_RESTORE = "restore the file, or run the study again"
FOLDERS = ("", "weights", "state/weights")
"""Where models lie: in the folder that is named, in a result folder, in the kit of a federation's party."""


class _Description(BaseModel):
    """The types of a model's description, as its file has them; `sums` has the checksums of the files beside it."""

    model_config = ConfigDict(strict=True, extra="allow")

    method: dict[str, Any]
    task: dict[str, Any]
    model: dict[str, Any]
    encoding: dict[str, Any] | None
    seed: int
    features: int = Field(ge=0)
    edge_features: int = Field(0, ge=0)
    label_features: int = Field(0, ge=0)
    structural: list[Annotated[int, Field(ge=0)]]
    untrained: list[str]
    own_split: bool = False
    weighted: bool | None = None
    both_ways: bool | None = None
    labels: list[str]
    groups: dict[str, list[str]]
    code: dict[str, str] = {}
    sums: dict[str, str] = {}

    @model_validator(mode="after")
    def _has_these_features(self) -> Self:
        if max(self.structural, default=-1) >= self.features:
            raise ValueError(f"there is no feature {max(self.structural)}")
        return self


def write_models(
    folder: Path,
    name: str,
    models: Mapping[str, Any],
    description: Mapping[str, Any],
    groups: Mapping[str, Sequence[str]] | None = None,
    *,
    card: str = "",
    private: bool = False,
) -> None:
    """Write the models of a run, each under its owner, and their description, which is written last.

    Arguments:
        models: as `RunResult.models`.
        groups: by name, the parties that share a model.
        card: a text on the models for whoever receives them, see `study.model_card`.
    """
    files = {name: models.get("shared"), f"{name}.context": models.get("context")}
    files |= {f"{name}/groups/{group}": weights for group, weights in models.get("groups", {}).items()}
    files |= {f"{name}/{party}": weights for party, weights in models.get("parties", {}).items()}
    sums = {}
    for file, weights in files.items():
        if weights:
            data = save(_contiguous(weights))
            store.write(folder / f"{file}.safetensors", data, private=private)
            sums[f"{file}.safetensors"] = hashlib.sha256(data).hexdigest()
    if card:
        store.write(folder / f"{name}.md", card, private=private)
    if description:
        content = {"format": FORMAT, "isthmus": VERSION, **description, "groups": dict(groups or {}), "sums": sums}
        store.write_json(folder / f"{name}.json", content, private=private)


def _contiguous(weights: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: value.detach().cpu().contiguous().clone() for name, value in wire.flatten(weights)}


def load_model(
    folder: Path | str,
    method: str | None = None,
    *,
    seed: int | None = None,
    party: str | None = None,
    module: Any = None,
) -> TrainedModel:
    """Load a model from a result folder, or from the kit of a party of a federation. Nothing is unpickled.

    Arguments:
        method, seed: whose model; may be left out if there is one.
        party: the party whose personal or group model it is; may be left out if all parties share the model.
        module: if the study trained a model of your own, the module, or the class or function that makes it, also as
            "module:Class"; the options of `[model]` are those that it was trained with.

    >>> import isthmus, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     results = isthmus.run("fedavg", rounds=1, out=f"{folder}/first")
    ...     model = isthmus.load_model(f"{folder}/first")
    >>> model.predict("banks").column_names[:3]
    ['party', 'id', 'prediction']
    """
    folder = path_of(folder, "load_model: folder")
    method, about = chosen_setting(method, _search_in(folder))
    file, description = _choose_run(folder, method, seed)
    base, own = file.with_suffix(""), file.with_suffix("")
    parties = {path.stem: path for path in sorted(own.glob("*.safetensors"))}
    groups = {path.stem: path for path in sorted((own / "groups").glob("*.safetensors"))}
    shared = base.with_name(f"{base.name}.safetensors")
    context = base.with_name(f"{base.name}.context.safetensors")
    with store.expected_content(file, _RESTORE):
        path = choose_model(
            shared if shared.exists() else None,
            groups,
            parties,
            description["groups"],
            party,
            description["method"]["name"],
        )
        if path == shared and party is not None and (folder / result_files.RESULTS).exists():
            cuts = result_files.load_summary(folder)["cuts"]
            check_party(party, {each["name"] for cut in cuts for each in cut["parties"]})
        read = partial(_read_tensors, folder, file.parent, description["sums"])
        if path is None and Method.named(description["method"]["name"]).role != "constant":
            raise IsthmusError(f"cannot read {shared}: it is not there; {_RESTORE}")
        weights, known = {} if path is None else read(path), read(context) if context.exists() else {}
        owner = "" if path == shared else party or ""
        model = TrainedModel(description, weights, known, module=module, party=owner, others=parties)
        if path == shared:
            name = str(description["method"]["name"])
            about += [shared_by_all(party)] if party is not None else shared_beside_own(name, parties)
        model.about = about
        if path is not None and (folder / result_files.DOSSIER).exists():
            model.dossier = _dossier_of(folder, path)
            more = [] if model.dossier else [f"{folder / result_files.DOSSIER} is of another model: make it again"]
            model.about = [*model.about, *more]
        return model


def _dossier_of(folder: Path, weights: Path) -> str:
    """The SHA-256 of the dossier in a folder; empty if it does not name these weights."""
    path = folder / result_files.DOSSIER
    with _restorable(path):
        data = store.read(path, within=folder)
        content = store.parse_json(data)
    with store.expected_content(path, "make it again with isthmus dossier"):
        named = {each["sha256"] for each in content["models"]}
    return hashlib.sha256(data).hexdigest() if store.hash_file(weights) in named else ""


def _search_in(folder: Path) -> result_files.Search | None:
    """What a grid or tuning tried, if the folder has results of one."""
    if not (folder / result_files.RESULTS).exists():
        return None
    found = result_files.load_summary(folder).get("search")
    return None if found is None else result_files.Search.of_dict(found)


def chosen_setting(method: str | None, search: result_files.Search | None) -> tuple[str | None, list[str]]:
    """The label of a method's chosen setting where a grid tried several, and a line that says so."""
    label = "" if search is None or method is None else search.chosen_label(method)
    if search is None or not label or label == method:
        return method, []
    return label, [f"the model is that of '{label}', which validation data chose of the settings of {method}"]


def shared_by_all(party: str) -> str:
    """The line on a party's model that is the model of all."""
    return f"all parties share this model: {party} has none of its own"


def shared_beside_own(method: str, parties: Collection[str]) -> list[str]:
    """The line on a model of all, where the figures of a run are of models that the parties have beside it."""
    if not parties:
        return []
    which = f"{format_option('party', 'NAME')}, such as {min(parties)}"
    return [
        f"the run's figures of {method} are of each party's own model, and this is the one that all share; "
        f"theirs: {which}"
    ]


def check_party(party: str, known: Collection[str]) -> None:
    """Raise an error if a run has no such party; the model that all share would be given to anybody."""
    if party not in known:
        raise IsthmusError(f"the run has no party {party!r}: {did_you_mean(str(party), known)}")


def choose_model(
    shared: Any,
    groups: Mapping[str, Any],
    parties: Mapping[str, Any],
    members: Mapping[str, Sequence[str]],
    party: str | None,
    method: str,
) -> Any:
    """Return the model of a party, or the one that all share, among those of a run; None if nothing is trained.

    Arguments:
        members: by group, its parties.
    """
    names = sorted({*parties, *(name for own in members.values() for name in own)})
    if party is not None and party in parties:
        return parties[party]
    for group, own in members.items():
        if party in own:
            return groups[group]
    if names and party is not None:
        raise IsthmusError(f"method '{method}' has no model of party '{party}': {did_you_mean(party, names)}")
    if names and not shared:
        which = format_option("party", names[0])
        raise IsthmusError(f"method '{method}' has a model for each party: choose one, {which} ({_shown(names)})")
    return shared


def _shown(names: Sequence[str], each: str = "") -> str:
    prefix = f"{each} " if each else ""
    return prefix + ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _choose_run(folder: Path, method: str | None, seed: int | None) -> tuple[Path, dict[str, Any]]:
    """The description of the run that is asked for, the newest where a kit has several of one method and seed."""
    found: dict[tuple[str, int], tuple[Path, dict[str, Any]]] = {}
    files = [path for place in FOLDERS for path in (folder / place).glob("*.json") if path.name != "results.json"]
    for path in sorted(files, key=lambda path: path.stat().st_mtime_ns):
        description = _read_description(folder, path)
        if description is not None:
            label = description["method"].get("label", description["method"]["name"])
            found[label, int(description["seed"])] = path, description
    if not found:
        if (folder / "results.json").exists():
            raise IsthmusError(f"{folder} was written before models kept their encoding: run the study again")
        if (folder / result_files.STATE).is_dir():
            raise IsthmusError(
                f"{folder} holds no models yet: finish its study, with the same isthmus run and --resume"
            )
        remedy = similar_path(folder) or ": give a folder that isthmus run wrote, or a party's kit"
        raise IsthmusError(f"{folder} {'holds no models' if folder.exists() else 'does not exist'}{remedy}")
    return found[choose_run(found, method, seed, f"{folder} holds")]


def choose_run(known: Collection[tuple[str, int]], method: str | None, seed: int | None, where: str) -> tuple[str, int]:
    """Return the label of the method and the seed of the only run that fits what is asked for.

    Arguments:
        known: those of all runs.
        method, seed: None leaves them open.
        where: how an error begins, such as "runs/first holds".
    """
    fit = sorted(key for key in known if method in (None, key[0]) and seed in (None, key[1]))
    if len(fit) == 1:
        return fit[0]
    names = sorted({label for label, _ in known})
    if method is not None and method not in names:
        raise IsthmusError(f"{where} no model of method '{method}': {did_you_mean(str(method), names)}")
    if not fit:
        of = sorted({at for label, at in known if method in (None, label)})
        which = f"method '{method}' has" if method is not None else "the runs have"
        raise IsthmusError(f"{where} no model with seed {seed!r}: {which} {_shown([f'{at}' for at in of], 'seed')}")
    which, among = ("several models", fit) if fit else ("no such model", sorted(known))
    labels, seeds = {label for label, _ in fit}, {at for _, at in fit}
    open_values: list[tuple[str, list[Any]]] = [("method", sorted(labels)), ("seed", sorted(seeds))]
    differing = [(key, values) for key, values in open_values if len(values) > 1]
    if len(differing) == 1:
        ((key, (first, *others)),) = differing
        *middle, last = [shlex.quote(str(each)) if writes_flags() else repr(each) for each in others]
        raise IsthmusError(f"{where} {which}: choose {', '.join([format_option(key, first), *middle])} or {last}")
    label, at = among[0]
    choice = " ".join([format_option("method", label), format_option("seed", at)])
    shown = _shown([f"{name} with seed {at}" for name, at in among])
    raise IsthmusError(f"{where} {which}: choose one, {choice}, among {shown}")


def _read_description(folder: Path, path: Path) -> dict[str, Any] | None:
    """A description; None if the file is something else."""
    with _restorable(path):
        if path.parent != folder:  # a file beside the checksums may be anybody's
            store.check_sum(folder, path.relative_to(folder).as_posix())
        content = store.read_json(path, within=folder)
    if not isinstance(content, dict) or not {"method", "task", "features"} <= content.keys():
        return None
    store.check_format(path, content, FORMAT, "run the study again")
    with store.expected_content(path, _RESTORE):
        return _Description.model_validate(content).model_dump()


def _read_tensors(folder: Path, beside: Path, sums: Mapping[str, str], path: Path) -> dict[str, Tensor]:
    """Tensors of a model, whose description is in the folder `beside` and has these checksums, if any."""
    with _restorable(path):
        store.check_file(path, within=folder)
        store.check_sum(folder, path.relative_to(folder).as_posix())
        store.check_sum(beside, path.relative_to(beside).as_posix(), sums)
        store.check_memory(path, 2 * path.stat().st_size)
        return dict(load_file(path))


@contextmanager
def _restorable(path: Path) -> Iterator[None]:
    """Turn what is wrong with a file into one line."""
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise IsthmusError(f"cannot read {path}: {reason}; {_RESTORE}") from error
