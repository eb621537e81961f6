"""`party.toml` is read, and every problem in it is reported."""

import pytest

from databases import bank_draft
from isthmus import toml
from isthmus.data.folder.settings import FILE, read_settings
from isthmus.data.party import NAME_RULE
from isthmus.version import VERSION
from party_folders import collection_draft, graph_draft, lines

MOLECULES = {"name": "lab", "level": "graph", "classes": 2, "smiles": {}}


def problems_of(folder, text):
    """Return the problems of a `party.toml` with this text."""
    (folder / FILE).write_bytes(text if isinstance(text, bytes) else text.encode())
    settings, problems = read_settings(folder)
    assert (settings is None) == bool(problems)
    return [line.removeprefix(f"{FILE}: ") for line in lines(problems)]


def wrong(folder, draft, **settings):
    return problems_of(folder, toml.dumps(draft.with_settings(**settings).settings))


def test_valid_file_has_no_problems(tmp_path):
    for settings in (graph_draft().settings, collection_draft().settings, MOLECULES):
        assert problems_of(tmp_path, toml.dumps(settings)) == []


def test_name_may_have_special_characters(tmp_path):
    assert problems_of(tmp_path, toml.dumps(graph_draft().settings | {"name": "<b> & Söhne, Nr. 3"})) == []


def test_settings_are_read(tmp_path):
    problems_of(tmp_path, toml.dumps(graph_draft().settings))
    settings, _ = read_settings(tmp_path)
    assert (settings.name, settings.outputs, settings.partners, settings.directed) == ("north", 2, ["south"], False)
    assert [kind.name for kind in settings.feature_columns().values()] == ["number", "category", "vector", "bag"]


@pytest.mark.parametrize(
    ("settings", "due"),
    [
        (
            {"classes": 2},
            "give one of labels, classes and tasks (found: labels and classes)",
        ),
        ({"labels": None}, "give one of labels, classes and tasks (found: none)"),
        ({"labels": ["a", "b", "a"]}, "'labels' lists a value twice: a, b, a"),
        ({"labels": ["a", ""]}, "'labels' lists an empty text, which means a missing value in the files: remove it"),
        ({"partners": ["south", "south"]}, "'partners' lists a value twice: south, south"),
        ({"partners": ["north"]}, "'partners' lists the party itself: remove 'north'"),
        ({"ids": "own"}, 'a party with partners needs shared ids: set ids = "shared"'),
        ({"level": "graph"}, "parties with whole graphs have no partners: remove 'partners'"),
        ({"columns": {}}, "there is no table [columns]: declare the feature columns"),
        ({"name": "a/b"}, f"name 'a/b': a party's name may have {NAME_RULE}"),
        ({"name": "<b>/</b>"}, f"name '<b>/</b>': a party's name may have {NAME_RULE}"),
        ({"name": ".."}, f"name '..': a party's name may have {NAME_RULE}"),
        ({"name": "a\nb"}, f"name 'a\\nb' has characters that cannot be printed: it may have {NAME_RULE}"),
        ({"name": ""}, "option 'name' is '': give a text of length 1 or more"),
        ({"labels": None, "tasks": ["id"]}, "'tasks' lists 'id', which has another meaning: rename it"),
        ({"labels": [1, 2]}, "option 'labels.0' is 1: give a text"),
        (
            {"labels": None, "classes": 10**9},
            "option 'classes' is 1000000000: give at most 100000",
        ),
        ({"level": "pair"}, "option 'level' is 'pair': give 'node' or 'graph'"),
        (
            {"format": 2},
            f"option 'format' is 2: isthmus {VERSION} reads format 1; create the folder again with isthmus party new, "
            "or install the version that wrote it",
        ),
        ({"nme": "x"}, "unknown option 'nme': did you mean 'name'?"),
        ({"columns": {"x": {"kind": "numbr"}}}, "columns.x: unknown kind of column 'numbr': did you mean 'number'?"),
        ({"columns": {"age": {}}}, "columns.age: set 'kind' to one of bag, category, date, number, vector"),
        ({"columns": {"age": {"kind": "bag"}}}, "columns.age: option 'width' is required: length of the whole list"),
        ({"columns": {"id": {"kind": "number"}}}, "columns.id: 'id' has another meaning: rename it"),
        (
            {"columns": {"age": {"kind": "number"}}, "ignore": ["age"]},
            "columns.age: 'age' is also under 'ignore': remove it",
        ),
        (
            {"columns": {"w": {"kind": "bag", "width": 2}, "w.at": {"kind": "number"}}},
            "columns.w.at: 'w.at' has another meaning: rename it",
        ),
        (
            {"columns": {"age": {"kind": "category", "values": ["1", 1]}}},
            "columns.age: option 'values' is ['1', 1]: it lists a value twice",
        ),
        (
            {"columns": {"age": {"kind": "vector", "width": 1 << 40}}},
            "columns.age: option 'width' is 1099511627776: give at most 16777216",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)  # fmt: skip
def test_each_problem_is_named(tmp_path, settings, due):
    assert due in wrong(tmp_path, graph_draft(), **settings)


@pytest.mark.parametrize(
    ("smiles", "others", "due"),
    [
        (
            {},
            {"level": "node"},
            'molecules are whole graphs with their own features: set level = "graph" and remove [columns]',
        ),
        ({"file": "../other.csv"}, {}, "smiles.file = '../other.csv' must be a file in this folder"),
        ({"file": ""}, {}, "smiles.file = '' must be a file in this folder"),
        ({"column": "label"}, {}, "smiles.column = 'label' has another meaning: rename it"),
        ({"colum": "x"}, {}, "unknown option 'smiles.colum': did you mean 'smiles.column'?"),
        (
            {"features": "some"},
            {},
            "option 'smiles.features' is 'some': give 'one-hot', 'raw' or 'no-bonds'",
        ),
    ],
)  # fmt: skip
def test_each_problem_of_molecules_is_named(tmp_path, smiles, others, due):
    assert due in problems_of(tmp_path, toml.dumps({**MOLECULES, **others, "smiles": smiles}))


def test_all_problems_are_reported_at_once(tmp_path):
    columns = {"age": {"kind": "number", "scale": "log", "missing": 0}, "id": {"kind": "category"}, "x": {"kind": "y"}}
    found = wrong(tmp_path, graph_draft(), labels=None, partners=["north", "a", "a"], columns=columns)
    assert len(found) == 7
    assert found[-4:] == [
        "columns.age: option 'scale' is 'log': give 'standard' or 'none'",
        "columns.age: option 'missing' is 0: give 'error' or 'mean'",
        "columns.id: 'id' has another meaning: rename it",
        "columns.x: unknown kind of column 'y': known: bag, category, date, number, vector",
    ]


@pytest.mark.parametrize(
    "text", ["name = [[", "= 1", b"\xff\xfe", "name = " + "[" * 30_000, "classes = " + "9" * 6_000, "a = 1\na = 2"]
)
def test_invalid_toml_is_a_one_line_problem(tmp_path, text):
    (found,) = problems_of(tmp_path, text)
    assert "not valid TOML" in found or "not a text file" in found


def test_a_number_too_long_to_show_is_not_shown(tmp_path):
    assert "option 'classes' is a number too long to show: give at most 100000" in problems_of(
        tmp_path, "classes = 0x" + "f" * 6_000
    )


def test_missing_file_says_how_to_create_one(tmp_path):
    settings, problems = read_settings(tmp_path)
    assert settings is None
    assert lines(problems) == [
        "party.toml: No such file or directory: every party folder needs this file; create one with isthmus party new"
    ]


def test_folder_called_party_toml_is_reported(tmp_path):
    (tmp_path / FILE).mkdir()
    assert lines(read_settings(tmp_path)[1])[0].startswith("party.toml: Is a directory")


def test_common_settings_include_defaults(tmp_path):
    def agreed(folder, **settings):
        folder.mkdir()
        assert not wrong(folder, graph_draft(), **settings)
        return read_settings(folder)[0].common

    plain = agreed(tmp_path / "a", columns={"age": {"kind": "number"}, "kind": {"kind": "category"}})
    spelled = {"kind": {"kind": "Category"}, "age": {"kind": "number", "scale": "standard", "missing": "error"}}
    assert plain == agreed(tmp_path / "b", columns=spelled, name="x", partners=["y"], directed=True, ignore=["z"])
    assert plain != agreed(
        tmp_path / "c", columns={"age": {"kind": "number", "scale": "none"}, "kind": spelled["kind"]}
    )


def test_column_of_a_table_with_another_meaning_is_to_be_deleted(tmp_path):
    draft = bank_draft(label_time="seen").put("seen", ["2024-01-01"] * 12, "accounts.parquet")
    draft.settings["tables"]["accounts"]["columns"]["seen"] = {"kind": "date"}
    problems = read_settings(draft.write(tmp_path / "a"))[1]
    due = "tables.accounts.columns.seen: 'seen' has another meaning: delete [tables.accounts.columns.seen]"
    assert [each.what for each in problems] == [due]
