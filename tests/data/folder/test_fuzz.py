"""Damage party folders at random: each ends in a report, and a folder without problems is usable."""

import datetime
import os
import random
import shutil
import tomllib
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyarrow import csv, parquet

from isthmus import toml
from isthmus.data.datasets.folder import PartyFolders
from isthmus.data.folder.from_tables import SourceTables, create_folder
from isthmus.data.folder.loading import check_folders
from isthmus.data.folder.reading import check_folder
from isthmus.data.folder.settings import FILE
from isthmus.data.folder.table import EDGES, GRAPHS, NODES
from isthmus.data.ids import KeyedHash
from isthmus.data.party import Party
from isthmus.data.rows import to_dense
from isthmus.errors import IsthmusError
from isthmus.study.config import Study
from isthmus.study.run import run_study
from party_folders import collection_draft, graph_draft, two_drafts

KEY = "k" * 32
WORDS = [
    "", "id", "label", "split", "owner", "weight", "graph", "source", "words", "words.at", "age", "näme ☃", "a\nb", " ",
    "x" * 300, "NaN", "train", "low", "north", "south", "../up", "\x00", "true", "-1", "0", "10",
]  # fmt: skip
NUMBERS = [0, 1, -1, 2, 7, 100, 101, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)]
REALS = [0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), 1e39, -1e308, 1e-320]
PLAIN = [
    pa.int8(), pa.uint8(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.string(),
    pa.large_string(), pa.string_view(), pa.binary(), pa.binary(2), pa.date32(), pa.timestamp("us", "UTC"), pa.null(),
    pa.duration("s"), pa.time32("s"), pa.decimal128(38, 2),
]  # fmt: skip
NESTED = [
    pa.list_(pa.float32()), pa.large_list(pa.int64()), pa.list_(pa.float64(), 2), pa.list_(pa.string()),
    pa.list_(pa.list_(pa.int64())), pa.list_(pa.uint8()), pa.list_(pa.bool_()), pa.struct([("a", pa.int64())]),
    pa.map_(pa.string(), pa.int64()), pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.int64()),
]  # fmt: skip
KINDS = [*PLAIN, *NESTED]
NO_SUCH_FAULT = (pa.ArrowException, OSError, NotImplementedError, ValueError, TypeError, OverflowError, LookupError)
"""Errors when a kind of damage does not fit a table."""
SAID = [
    *WORDS, *NUMBERS, *REALS, True, False, [], {}, ["a", "a"], ["south"], ["north"], [1], ["low", "high", "odd"], 2, 3,
    "graph", "node", "pair", "own", "number", "category", "vector", "bag", {"kind": "number"},
    {"kind": "vector", "width": 2},
    {"kind": "number", "scale": "none"}, {"kind": "number", "missing": "mean"}, {"kind": "bag", "width": 9}, [["x"]],
    {"kind": "category", "values": ["a"]}, {"file": "a.csv"}, {"age": {"kind": "number"}}, {"a": {"b": {"c": 1}}},
]  # fmt: skip
"""Values that may occur anywhere in `party.toml`."""
SETTINGS = [
    "labels", "classes", "tasks", "partners", "ids", "directed", "level", "ignore", "smiles", "format", "odd",
]  # fmt: skip


class Spoiler:
    """A folder of two or more parties that is damaged step by step."""

    def __init__(self, root: Path, base: str, seed: int) -> None:
        self.root, self.draw = root, random.Random(seed)
        drafts = {
            "graph": lambda: [graph_draft(partner=None)],
            "coupled": lambda: list(two_drafts()),
            "texts": lambda: list(two_drafts(ids="n{}".format)),
            "pile": lambda: [collection_draft("a"), collection_draft("b", 4, 10)],
        }[base]()
        for draft in drafts:
            draft.write(root / draft.settings["name"])

    def folder(self) -> Path:
        return self.draw.choice(sorted(each for each in self.root.iterdir() if each.is_dir()))

    def file(self) -> Path:
        files = sorted(each for each in self.folder().rglob("*") if each.is_file())
        if files:
            return self.draw.choice(files)
        folder = self.folder()
        return next(folder / name for name in (NODES, EDGES, "gone.parquet") if not (folder / name).is_dir())

    # tables

    def of_table(self, change: Callable[[pa.Table], pa.Table]) -> None:
        files = [each for each in self.root.rglob("*.parquet") if each.is_file()]
        for file in self.draw.sample(sorted(files), min(1, len(files))):
            with suppress(*NO_SUCH_FAULT):
                parquet.write_table(change(parquet.ParquetFile(file).read()), file)

    def column(self, table: pa.Table) -> int:
        return self.draw.randrange(table.num_columns)

    def drop_column(self) -> None:
        self.of_table(lambda table: table.remove_column(self.column(table)))

    def rename_column(self) -> None:
        def change(table: pa.Table) -> pa.Table:
            names = list(table.column_names)
            names[self.column(table)] = self.draw.choice([*WORDS, *names])
            return table.rename_columns(names)

        self.of_table(change)

    def retype_column(self) -> None:
        def change(table: pa.Table) -> pa.Table:
            at = self.column(table)
            return table.set_column(
                at, table.column_names[at], table.column(at).cast(self.draw.choice(KINDS), safe=False)
            )

        self.of_table(change)

    def value(self, kind: pa.DataType) -> Any:
        if self.draw.random() < 0.15:
            return None
        if pa.types.is_dictionary(kind):
            return self.value(kind.value_type)
        if pa.types.is_map(kind):
            return [("a", 1)]
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return [self.value(kind.value_type) for _ in range(self.draw.randrange(4))]
        if pa.types.is_fixed_size_list(kind):
            return [self.value(kind.value_type) for _ in range(kind.list_size)]
        if pa.types.is_struct(kind):
            return {"a": 1}
        if pa.types.is_boolean(kind):
            return self.draw.random() < 0.5
        if pa.types.is_integer(kind):
            small = kind.bit_width < 64 or self.draw.random() < 0.6
            number = self.draw.randrange(0, 8) if small else self.draw.choice(NUMBERS)
            return abs(number) if "uint" in str(kind) else number
        if pa.types.is_floating(kind):
            return self.draw.choice(REALS) if self.draw.random() < 0.5 else float(self.draw.randrange(8))
        if pa.types.is_decimal(kind):
            return Decimal(self.draw.randrange(10**6)) / 100
        if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
            return self.draw.randbytes(2)
        if pa.types.is_temporal(kind):
            return {"d": datetime.date, "t": datetime.datetime}.get(str(kind)[0], datetime.date)(2020, 1, 1)
        return self.draw.choice(WORDS)

    def other_values(self) -> None:
        def change(table: pa.Table) -> pa.Table:
            at, kind = self.column(table), self.draw.choice(KINDS)
            if self.draw.random() < 0.5:
                kind = table.schema.field(at).type
            values = pa.array([self.value(kind) for _ in range(table.num_rows)], kind)
            return table.set_column(at, table.column_names[at], values)

        self.of_table(change)

    def other_cell(self) -> None:
        def change(table: pa.Table) -> pa.Table:
            at, row = self.column(table), self.draw.randrange(table.num_rows)
            values = table.column(at).to_pylist()
            values[row] = self.draw.choice([None, self.value(table.schema.field(at).type), self.draw.choice(values)])
            return table.set_column(at, table.column_names[at], pa.array(values, table.schema.field(at).type))

        self.of_table(change)

    def add_column(self) -> None:
        def change(table: pa.Table) -> pa.Table:
            kind = self.draw.choice(KINDS)
            values = pa.array([self.value(kind) for _ in range(table.num_rows)], kind)
            return table.append_column(self.draw.choice([*WORDS, *table.column_names]), values)

        self.of_table(change)

    def other_rows(self) -> None:
        def change(table: pa.Table) -> pa.Table:
            some = [self.draw.randrange(table.num_rows) for _ in range(self.draw.randrange(table.num_rows + 3))]
            rows = [[], some, sorted(some), list(range(table.num_rows)) * 2, list(range(table.num_rows))[::-1]]
            return table.take(pa.array(self.draw.choice(rows), pa.int64()))

        self.of_table(change)

    def encode_column(self) -> None:
        def change(table: pa.Table) -> pa.Table:
            at = self.column(table)
            return table.set_column(at, table.column_names[at], table.column(at).dictionary_encode())

        self.of_table(change)

    def swap_columns(self) -> None:
        def change(table: pa.Table) -> pa.Table:
            one, two = self.column(table), self.column(table)
            names = table.column_names
            return table.set_column(one, names[one], table.column(two)).set_column(two, names[two], table.column(one))

        self.of_table(change)

    # files

    def cut_file(self) -> None:
        file = self.file()
        if file.exists():
            file.write_bytes(file.read_bytes()[: self.draw.randrange(file.stat().st_size + 1)])

    def flip_bytes(self) -> None:
        file = self.file()
        if file.exists() and file.stat().st_size:
            data = bytearray(file.read_bytes())
            for _ in range(self.draw.choice([1, 1, 2, 8, 64])):
                data[self.draw.randrange(len(data))] = self.draw.randrange(256)
            file.write_bytes(bytes(data))

    def garbage(self) -> None:
        start = self.draw.choice([b"", b"PAR1", b"\xef\xbb\xbf", b"name = "])
        self.file().write_bytes(start + self.draw.randbytes(self.draw.randrange(60)) + self.draw.choice([b"", b"PAR1"]))

    def remove(self) -> None:
        self.file().unlink(missing_ok=True)

    def folder_for_file(self) -> None:
        file = self.file()
        file.unlink(missing_ok=True)
        file.mkdir(exist_ok=True)
        if self.draw.random() < 0.5:
            (file / "part.parquet").write_bytes(b"PAR1")

    def another_file(self) -> None:
        one, two = self.file(), self.file()
        if one.exists() and two.exists():
            two.write_bytes(one.read_bytes())

    def link(self) -> None:
        file = self.file()
        file.unlink(missing_ok=True)
        file.symlink_to(self.draw.choice([file.name, "nowhere", "/dev/null", "..", NODES]))

    def close_file(self) -> None:
        file = self.file()
        if file.exists():
            os.chmod(file, 0)

    def another_folder(self) -> None:
        copy = self.root / f"copy-{self.draw.randrange(3)}"
        if not copy.exists():
            with suppress(OSError):  # a closed file is not copied
                shutil.copytree(self.folder(), copy, symlinks=True)

    # party.toml

    def other_settings(self) -> None:
        file = self.folder() / FILE
        try:
            table = tomllib.loads(file.read_text())
        except (OSError, ValueError):
            return
        where: Any = table
        while True:
            name = self.draw.choice([*where, *SETTINGS])
            if not isinstance(where.get(name), dict) or self.draw.random() < 0.3:
                break
            where = where[name]
        where[name] = self.draw.choice(SAID)
        if self.draw.random() < 0.3:
            del where[name]
        file.write_text(toml.dumps(table), encoding="utf-8")

    def other_text(self) -> None:
        file = self.folder() / FILE
        if file.is_file():
            text = file.read_text(errors="replace")
            at = self.draw.randrange(len(text) + 1)
            piece = self.draw.choice(["[", "]", '"', "\n", "=", "'''", "{", "1e999", "\x00", "x = [[[", text[:40]])
            file.write_text(text[:at] + piece + text[at + self.draw.randrange(3) :], encoding="utf-8")


STEPS = {
    "table": ["drop_column", "rename_column", "retype_column", "other_values", "other_cell", "add_column", "other_rows",
              "encode_column", "swap_columns"],
    "file": ["cut_file", "flip_bytes", "garbage", "remove", "folder_for_file", "another_file", "link", "close_file",
             "another_folder"],
    "toml": ["other_settings", "other_text"],
}  # fmt: skip
ALL = [step for steps in STEPS.values() for step in steps]
GENTLE = [
    "other_cell",
    "other_rows",
    "encode_column",
    "retype_column",
    "swap_columns",
    "other_settings",
    "other_values",
]
"""Steps after which a folder may still be usable."""


def one_line(error: IsthmusError) -> None:
    assert "\n" not in str(error)
    assert len(str(error)) < 3_000


def examine(root: Path, key: str | None = None) -> str:
    """Say how a folder ends: without a report, with a report, refused by the study, or with a result."""
    try:
        _, problems = check_folders(root, *(() if key is None else (KeyedHash(Path(key).read_bytes()),)))
    except IsthmusError as error:
        one_line(error)
        with pytest.raises(IsthmusError):
            PartyFolders(path=str(root)).load(0)
        return "no folder"
    for found in problems.values():
        for each in found:
            assert str(each).isprintable()
            assert all(row > 0 for row in each.rows)
            assert len(each.rows) <= each.count or not each.count
    data = PartyFolders(path=str(root), key=key)
    if any(each.severe for found in problems.values() for each in found):
        with pytest.raises(IsthmusError, match="isthmus party check") as caught:
            data.load(0)
        one_line(caught.value)
        return "reported"
    pool = data.load(0)
    assert len(pool.parties) == len(problems)
    for party in pool.parties:
        check_party(party)
    try:
        study = Study.of(
            {
                "data": {"name": "folder", "path": str(root), **({"key": key} if key else {})},
                "methods": [{"name": "fedavg", "rounds": 1}],
                "model": {"encoder": "gcn", "hidden": 3},
                "unlabelled": "idle",
            }
        )
        results = run_study(study)
    except IsthmusError as error:
        one_line(error)
        return "refused"
    assert len(results.runs) == 1
    return "result"


def check_party(party: Party) -> None:
    x = to_dense(party.graph.x)
    assert bool(torch.isfinite(x).all())
    assert x.dtype == torch.float32
    assert not bool((party.train & party.val).any() | (party.train & party.test).any() | (party.val & party.test).any())
    weight = party.graph.get("edge_weight")
    assert weight is None or (bool(torch.isfinite(weight).all()) and weight.numel() == party.graph.edge_index.size(1))


def remake(root: Path, seed: int) -> str:
    """Say how creating a folder from tables ends: with a usable folder, or with an error and no files."""
    draw = random.Random(seed)
    folder = min(each for each in root.iterdir() if each.is_dir())
    paths = {name: folder / file for name, file in (("nodes", NODES), ("edges", EDGES), ("graphs", GRAPHS))}
    if not paths["graphs"].exists():
        del paths["graphs"]
    for name, path in list(paths.items()):
        if draw.random() < 0.5:
            with suppress(*NO_SUCH_FAULT):  # what a CSV file cannot hold stays as it is
                csv.write_csv(parquet.ParquetFile(path).read(), root / f"{name}.csv")
                paths[name] = root / f"{name}.csv"
    roles = {role: draw.choice(WORDS) for role in ("id", "label", "weight", "owner") if draw.random() < 0.1}
    like = folder if draw.random() < 0.2 else None
    before = sorted(root.rglob("*"))
    try:
        origin = SourceTables(**paths, columns=roles, ignore=() if like else ["words.at", "words.value"], like=like)
        create_folder(root / "deep" / "new", origin, name=draw.choice(["", "", "new", *WORDS]))
    except IsthmusError as error:
        one_line(error)
        assert sorted(root.rglob("*")) == before
        return "refused"
    assert check_folder(root / "deep" / "new")[0] is not None
    return "made"


def spoil(root: Path, base: str, steps: list[str], seed: int) -> None:
    spoiler = Spoiler(root, base, seed)
    for step in steps:
        getattr(spoiler, step)()


def steps_of(names: list[str], most: int) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), min_size=1, max_size=most)


BASES = st.sampled_from(["graph", "coupled", "texts", "pile"])
FUZZ = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@FUZZ
@given(BASES, steps_of(ALL, 4), st.integers(0, 2**32), st.booleans())
@example("graph", [], 0, False)
@example("coupled", [], 0, True)
@example("pile", [], 0, False)
@example("graph", ["folder_for_file", "remove", "remove", "remove"], 6, False)
@example("graph", ["folder_for_file", "remove", "remove", "cut_file"], 6, False)
@example("graph", ["folder_for_file", "folder_for_file", "folder_for_file", "remove"], 3, False)
def test_damaged_folder_ends_in_a_report(tmp_path_factory, base, steps, seed, keyed):
    root = tmp_path_factory.mktemp("spoilt")
    spoil(root / "all", base, steps, seed)
    (root / "key").write_text(KEY)
    ended = examine(root / "all", str(root / "key") if keyed else None)
    assert steps or ended == "result"


@pytest.mark.slow
@FUZZ
@given(BASES, steps_of(GENTLE, 3), st.integers(0, 2**32))
@example(base="graph", steps=["retype_column"], seed=602)  # string_view, of which pyarrow takes no rows
def test_folder_without_problems_is_usable(tmp_path_factory, base, steps, seed):
    root = tmp_path_factory.mktemp("spoilt")
    spoil(root, base, steps, seed)
    examine(root)


@FUZZ
@given(BASES, steps_of(STEPS["table"], 2) | st.just([]), st.integers(0, 2**32))
def test_damaged_tables_become_a_usable_folder_or_an_error(tmp_path_factory, base, steps, seed):
    root = tmp_path_factory.mktemp("spoilt")
    spoil(root, base, steps, seed)
    remake(root, seed)


MOLECULES = st.lists(
    st.sampled_from(
        ["CCO", "c1ccccc1", "C(", "", "NA", "1", "[Xx]", '"', "C" * 300, "\x00", "é", "C,1", "[Na+].[Cl-]"]
    ),
    max_size=6,
)


@settings(max_examples=30)
@given(MOLECULES, st.sampled_from(["smiles,label\n", "smiles\n", "id,smiles,label,split\n", "", "label\n"]))
def test_any_molecules_end_in_a_report(tmp_path_factory, molecules, head):
    pytest.importorskip("rdkit")
    root = tmp_path_factory.mktemp("spoilt")
    (root / "molecules.csv").write_text(head + "".join(f"{each},1\n" for each in molecules), encoding="utf-8")
    (root / FILE).write_text(toml.dumps({"name": "lab", "level": "graph", "classes": 2, "smiles": {}}))
    examine(root)
