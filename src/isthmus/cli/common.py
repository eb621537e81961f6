"""What several commands share: flags, and reading a study from a file and flags."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.cli import listing
from isthmus.errors import FLAGS, IsthmusError, closest_path, format_option
from isthmus.own_code import import_files

if TYPE_CHECKING:
    from isthmus.deploy.cluster import Cluster
    from isthmus.study.config import Study

HERE = "here"
"""What `--ray` stands for without a value: a cluster that is started on this machine."""
ADDRESS = re.compile(rf"{HERE}|auto|(ray://)?[\w.\-]+:[0-9]+|\[[0-9a-fA-F:]+\]:[0-9]+|[0-9]+(\.[0-9]+){{3}}")

ON_SUBSET = 3
"""Exit code of a study that finished, but not with all parties in all rounds."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]

Ray = Annotated[
    str | None,
    typer.Option(
        metavar="[ADDRESS]",
        help="Spread the work over a Ray cluster: started here, that of this machine (auto), or HOST:PORT.",
    ),
]

Hidden = Annotated[int | None, typer.Option(help="Width of the encoder.")]
Unlabelled = Annotated[str | None, typer.Option(help="Parties without training labels: error or idle.")]
StudyFile = Annotated[Path | None, typer.Argument(help="A study as TOML; flags override it.")]
Protocol = Annotated[
    str | None,
    typer.Option(
        help="Published protocol to start from (see isthmus protocols); other flags override it.",
        autocompletion=listing.complete_protocol,
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        help="Data set (see isthmus datasets), or a folder of party folders.",
        autocompletion=listing.complete(listing.DATA_SETS),
    ),
]
PartitionName = Annotated[
    str | None,
    typer.Option(
        "--partition",
        help="Partition (see isthmus partitions).",
        autocompletion=listing.complete(listing.PARTITIONS),
    ),
]
Split = Annotated[
    str | None,
    typer.Option(metavar="TRAIN,VAL,TEST", help="Shares of each party's items, such as 0.2,0.4,0.4, in every class."),
]
Parties = Annotated[int | None, typer.Option(help="Number of parties.")]
Import = Annotated[
    list[Path] | None,
    typer.Option("--import", metavar="FILE", help="Python file of your own, imported first; repeat for more."),
]
MethodNames = Annotated[
    list[str] | None,
    typer.Option(
        help="Method (see isthmus methods); repeat for more.", autocompletion=listing.complete(listing.METHODS)
    ),
]
Rounds = Annotated[int | None, typer.Option(help="Communication rounds.")]
Metric = Annotated[
    str | None,
    typer.Option(
        help="Metric of the table and the report: accuracy, macro_f1, roc_auc, ...",
        autocompletion=listing.complete_metric,
    ),
]
SelectBy = Annotated[
    str | None,
    typer.Option(
        help="Metric that chooses the round on validation data; by default, --metric.",
        autocompletion=listing.complete_metric,
    ),
]
Encoder = Annotated[
    str | None,
    typer.Option(
        help="Encoder (see isthmus encoders), or MODULE:CLASS of your own.",
        autocompletion=listing.complete(listing.ENCODERS),
    ),
]
Seeds = Annotated[
    str | None, typer.Option(help="Number of seeds: 3 for 0, 1, 2; or seeds, such as 0,5,7. One run each.")
]
Seed = Annotated[int | None, typer.Option(min=0, help="A single seed.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any option: local.lr=0.1, METHOD.OPTION=0.1, model.dropout=0, data.cross=0.2, ..."),
]


def give_ray_a_value(words: Sequence[str]) -> list[str]:
    """The words of a command, with a value behind a `--ray` that has none: Typer has no options that may lack one.

    >>> give_ray_a_value(["run", "--ray", "study.toml", "--ray", "10.0.0.7:6379", "--ray"])
    ['run', '--ray', 'here', 'study.toml', '--ray', '10.0.0.7:6379', '--ray', 'here']
    """
    found: list[str] = []
    for word, after in zip(words, [*words, ""][1:], strict=True):
        found += ["--ray", HERE] if word == "--ray" and not ADDRESS.fullmatch(after) else [word]
    return found


@contextmanager
def connected(ray: str | None) -> Iterator[Cluster | None]:
    """Connect to the Ray cluster that `--ray` names, if any."""
    if ray is None:
        yield None
        return
    from isthmus.deploy.cluster import Cluster

    with Cluster(None if ray == HERE else ray) as cluster:
        yield cluster


@contextmanager
def resumable(has_begun: Callable[[], bool]) -> Iterator[None]:
    """End on Ctrl-C with the exit code of an interrupt, and say how to go on if there is something to go on with."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"isthmus: stopped{'; continue with --resume' if has_begun() else ''}", err=True)
        raise SystemExit(130) from None


def use_one_thread() -> None:
    """Let PyTorch use one thread, unless OMP_NUM_THREADS is set: a second thread slows small kernels down."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def read_study(file: Path | None, assignments: list[str], **flags: Any) -> Study:
    """Return the study in the file, or the default study, with flags and `--set` applied on top."""
    from isthmus.options import merge
    from isthmus.study.config import Study, parse_grid, parse_ranges

    base = {} if file is None else _file(file)
    where = "study" if file is None else str(file)
    base = {**base, "import": [*base.get("import", []), *(str(each) for each in flags.pop("imports", None) or [])]}
    import_files(Study.read(base, where).imports)
    searched = {
        "grid": parse_grid(flags.pop("grid", None) or []),
        "tune": parse_ranges(flags.pop("range_", None) or []),
    }
    if flags["parties"] is not None and isinstance(base.get("data"), dict):
        base["data"].pop("parties", None)
    given = _flags(**flags)
    _refuse_twice(assignments, given)
    _refuse_varied(assignments, given, merge(base.get("grid") or {}, searched["grid"]))
    for_all = given.pop("training", {})
    whole = _with_settings(_with_training(merge(base, given), for_all), assignments)
    return Study.of(merge(whole, {key: table for key, table in searched.items() if table}), where)


def _refuse_twice(assignments: Sequence[str], given: Mapping[str, Any]) -> None:
    """Refuse two values for one option."""
    from isthmus.study.config import parse_assignments
    from isthmus.study.settings import flatten

    known: dict[str, Any] = {}
    for values in (flatten(given), *(flatten(parse_assignments([each])) for each in assignments)):
        for path, value in values.items():
            plain = path.removeprefix("training.")
            if repr(known.setdefault(plain, value)) != repr(value):  # nan differs from itself
                raise IsthmusError(
                    f"{plain} is given twice, as {known[plain]} and as {value}: leave out one of the two"
                )


def _refuse_varied(assignments: Sequence[str], given: Mapping[str, Any], grid: Mapping[str, Any]) -> None:
    """Refuse a value for an option that a grid varies: the grid would replace it."""
    from isthmus.methods.base import Method
    from isthmus.study.config import parse_assignments
    from isthmus.study.settings import flatten

    varied = flatten(grid)
    names = Method.known().keys() - {name for kind in Method.known().values() for name in kind.model_fields}
    by_flag = {key: given[key] for key in ("training", "model") if key in given}
    for path, value in [*flatten(parse_assignments(assignments)).items(), *flatten(by_flag).items()]:
        plain = path.removeprefix("training.")
        first, _, rest = plain.partition(".")
        if option := next((each for each in (plain, rest if first in names else "") if each in varied), ""):
            flag = format_option(plain, value)
            raise IsthmusError(f"{flag} has no effect: the grid varies {option}; leave out one of the two")


def _file(path: Path) -> dict[str, Any]:
    """Read a study file; if the name of a data set is given instead, say how to choose a data set."""
    from isthmus.data.pool import DataSet
    from isthmus.result_files import RESULTS, STUDY
    from isthmus.study.config import read_toml

    if not path.exists() and str(path).lower() in DataSet.known():
        raise IsthmusError(f"there is no study file '{path}': to use the data set of that name, give --data {path}")
    if (path / RESULTS).exists():
        raise IsthmusError(
            f"{path} is a result folder, not a study file: its study is {path / STUDY}; to keep the findings of "
            f"an audit in it, add --into {path}"
        )
    if path.is_dir():
        raise IsthmusError(f"{path} is a folder, not a study file: to use the party folders in it, give --data {path}")
    if not (table := read_toml(path)):
        raise IsthmusError(f"{path} is empty: name a method in it, or leave the file out to run the default study")
    return table


def _flags(**given: Any) -> dict[str, Any]:
    """Return the given flags as tables of a study."""
    from isthmus.data.pool import check_no_folder

    keys: dict[str, tuple[str, ...]] = {"rounds": ("training", "rounds")}
    keys |= {each[2:].replace("-", "_"): tuple(path.split(".")) for path, each in FLAGS.items() if "." in path}
    table: dict[str, Any] = {}
    for flag, value in given.items():
        if value is None or value == []:
            continue
        if flag == "data":
            check_no_folder(value)
        if flag == "method":
            names = [name for each in value for name in each.split(",") if name]
            table["methods"] = [{"name": name} for name in names]
        elif flag == "seeds":
            table["seeds"] = _seeds(value)
        elif flag == "split":
            table.setdefault("partition", {})["split"] = _shares(value)
        elif flag == "seed":
            table["seeds"] = [value]
        elif flag in keys:
            group, key = keys[flag]
            table.setdefault(group, {})[key] = value
        else:
            table[flag] = value
    return table


def _seeds(text: str) -> int | list[int]:
    """Read the number of seeds, or a list of seeds, which has a comma.

    >>> _seeds("3"), _seeds("3,"), _seeds("3,4")
    (3, [3], [3, 4])
    """
    try:
        seeds = [int(seed) for seed in text.split(",") if seed.strip()]
    except ValueError:
        raise IsthmusError(f"--seeds is '{text}': give their number, such as 3, or seeds, such as 0,1,2") from None
    if "," not in text and seeds and seeds[0] < 1:
        raise IsthmusError(f"--seeds is '{text}', a number of seeds: give at least 1, or a list, --seeds {text},")
    return seeds if "," in text or not seeds else seeds[0]


def _shares(text: str) -> list[float]:
    try:
        return [float(share) for share in text.split(",")]
    except ValueError:
        raise IsthmusError(f"--split is '{text}': give three shares, such as 0.2,0.4,0.4") from None


def _with_settings(study: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """Apply `--set`: keys are tables of the study, names of methods, or options for all methods."""
    from isthmus.methods.base import Method
    from isthmus.options import merge, option_paths
    from isthmus.study.config import Study, parse_assignments
    from isthmus.study.option_hints import TABLES, missing_option
    from isthmus.study.settings import flatten

    options = {name for kind in Method.known().values() for name in kind.model_fields}
    own = Method.known().keys() - options
    for key, value in sorted(parse_assignments(assignments).items(), key=lambda each: each[0] in own):  # those go above
        if key == "training" and isinstance(value, dict):
            study = _with_training(study, value)
        elif key in TABLES and not isinstance(value, dict):
            flag = format_option(f"{key}.{TABLES[key][0]}", value)
            raise IsthmusError(f"--set {key}: it is a table of options: did you mean {flag}?")
        elif key in Study.model_fields:
            tables = {} if "protocol" in study else {"data": Study().data, "model": Study().model}
            study = merge({**tables, **study}, {key: value})
        elif key in own and isinstance(value, dict):
            methods = study.get("methods", Study().methods)
            names = [str(each.get("name")).lower() for each in methods]
            if key not in names:
                raise IsthmusError(f"--set {key}: method '{key}' is not in this study: add it with --method {key}")
            study["methods"] = [merge(e, value) if n == key else e for e, n in zip(methods, names, strict=True)]
        else:
            kinds = [Method.named(str(each.get("name"))) for each in study.get("methods", Study().methods)]
            if not any(key in kind.option_names() for kind in kinds):
                path, given = next(iter(flatten({key: value}).items()))
                _, close = closest_path(key, list(Method.known()))
                of_one = option_paths([Method.named(close)], f"{close}.") if close and "." in path else []
                more = [*FLAGS, *of_one]
                raise IsthmusError(f"--set {path}: {missing_option(path, given, kinds, format_option, more)}")
            study = _with_training(study, {key: value})
    return study


def _with_training(study: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Apply options for all methods; they also override a method's own table."""
    from isthmus.options import merge

    whole = merge(study, {"training": options})
    if "methods" in study:
        whole["methods"] = [merge(each, {k: v for k, v in options.items() if k in each}) for each in study["methods"]]
    return whole
