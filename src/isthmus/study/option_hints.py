"""Where options stand in a study, and which one was meant where a method does not have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from isthmus.data.partition import Partition
from isthmus.data.pool import DataSet
from isthmus.errors import closest_path, did_you_mean
from isthmus.methods.base import Method
from isthmus.nn.encoders import Encoder
from isthmus.options import Registered, option_paths
from isthmus.tasks.base import Task

TABLES: Mapping[str, tuple[str, type[Registered]]] = {
    "task": ("name", Task),
    "model": ("encoder", Encoder),
    "partition": ("name", Partition),
    "data": ("name", DataSet),
}
"""The tables of a study that name something registered: the key that holds its name, and its kind."""


ONE_VALUE = ("parties", "data_seed", "unlabelled", "device", "wire")
"""Keys of a study outside its tables that no grid and no tuning varies."""


def paths_of_tables() -> list[str]:
    """The paths of all options of tasks, encoders, partitions and data sets, and of their names."""
    return [
        f"{table}.{path}"
        for table, (key, kind) in TABLES.items()
        for path in (key, *option_paths(kind.known().values()))
    ]


def missing_option(
    path: str,
    value: Any,
    methods: Sequence[Method | type[Method]],
    form: Callable[[str, Any], str] | None = None,
    more: Sequence[str] = (),
) -> str:
    """Say that none of these methods has an option, and where the option that was meant stands.

    Arguments:
        form: how the caller sets an option, given its path and value; by default, in a study file.
        more: other names that the caller may have meant.

    >>> missing_option("class_weight", "balanced", [])
    "no method of the study has an option 'class_weight': did you mean class_weights in [task]?"
    """

    def in_file(path: str, _: Any) -> str:
        table, _, key = path.partition(".")
        return f"{key} in [{table}]" if table in TABLES else f"'{path}'"

    kinds = [each if isinstance(each, type) else type(each) for each in methods]
    what = f"no method of the study has an option '{path}'"
    others = [name for name, kind in Method.known().items() if path in option_paths([kind])]
    near, own = max(closest_path(path, option_paths(kinds)), closest_path(path, more, cutoff=0.75))
    nearer, elsewhere = closest_path(path, paths_of_tables(), cutoff=0.75)  # so many names: some are alike by chance
    if others and max(near, nearer) < 1:
        return f"{what}: methods that have it: {', '.join(others)}"
    if found := elsewhere if nearer > near else own:
        return f"{what}: did you mean {(form or in_file)(found, value)}?"
    return f"{what}: {did_you_mean('', {name for kind in kinds for name in kind.option_names()})}"
