"""Tables that refer to each other become a party folder with guesses of what they are, or an error and nothing else."""

import csv
import sqlite3
import tomllib
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from databases import bank_draft, crossing_drafts, dated_draft, edge_draft
from isthmus.data.folder.from_database import DatabaseSource, create_databases
from isthmus.data.folder.from_tables import UnusableFolder
from isthmus.data.folder.reading import check_folder
from isthmus.errors import IsthmusError
from party_folders import load_folders

duckdb = pytest.importorskip("duckdb")
EXPECTED = {
    "accounts": {
        "key": "id",
        "as": "nodes",
        "foreign": {"customer": "customers"},
        "columns": {"country": {"kind": "category"}},
    },
    "customers": {"key": "id", "as": "nodes", "ids": "own", "columns": {"age": {"kind": "number"}}},
    "transfers": {
        "time": "date",
        "as": "nodes",
        "foreign": {"from_account": "accounts", "to_account": "accounts"},
        "columns": {"date": {"kind": "date", "features": "cycle"}, "amount": {"kind": "number"}},
    },
}


def bank(name="north", seed=0, **changes):
    """Return a bank's tables by name; changes are `TABLE={COLUMN: VALUES}`, None for a column that is left out."""
    draft = bank_draft(name, accounts=30, transfers=90, seed=seed)
    tables = {file.removesuffix(".parquet"): dict(columns) for file, columns in draft.tables.items()}
    for table, columns in changes.items():
        tables[table] |= columns
        tables[table] = {column: values for column, values in tables[table].items() if values is not None}
    return tables


def write_csv(folder: Path, tables, separator=",") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, columns in tables.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            rows = csv.writer(file, delimiter=separator)
            rows.writerow(columns)
            rows.writerows(zip(*columns.values(), strict=True))
    return folder


def write_parquet(folder: Path, tables) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, columns in tables.items():
        parquet.write_table(pa.table(columns), folder / f"{name}.parquet")
    return folder


def write_duckdb(path: Path, tables) -> Path:
    with closing(duckdb.connect(str(path))) as connection:
        for name, columns in tables.items():
            connection.register("given", pa.table(columns))
            connection.sql(f"CREATE TABLE {name} AS SELECT * FROM given")
            connection.unregister("given")
    return path


def write_sqlite(path: Path, tables) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        for name, columns in tables.items():
            connection.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
            rows = [
                [str(each) if hasattr(each, "year") else each for each in row]
                for row in zip(*columns.values(), strict=True)
            ]
            connection.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})", rows)
        connection.commit()
    return path


def create(folder: Path, *paths: Path, label="accounts.bad", **options):
    return create_databases(folder, DatabaseSource(paths, label, **options))


def settings_of(folder: Path):
    return tomllib.loads((folder / "party.toml").read_text())


@pytest.mark.parametrize(
    "write",
    [
        lambda root, tables: write_csv(root / "in", tables),
        lambda root, tables: write_csv(root / "in", tables, ";"),
        lambda root, tables: write_parquet(root / "in", tables),
        lambda root, tables: write_duckdb(root / "bank.duckdb", tables),
        lambda root, tables: write_sqlite(root / "bank.db", tables),
    ],
)
def test_every_source_gives_the_same_proposal(tmp_path, write):
    problems = create(tmp_path / "north", write(tmp_path, bank()))
    assert [str(each) for found in problems.values() for each in found] == []
    settings = settings_of(tmp_path / "north")
    assert settings["tables"] == EXPECTED
    assert (settings["name"], settings["label"], settings["classes"]) == ("north", "accounts.bad", 2)
    assert sorted(each.name for each in (tmp_path / "north").iterdir()) == [
        "accounts.parquet", "customers.parquet", "party.toml", "transfers.parquet",
    ]  # fmt: skip


def test_single_files_may_be_named(tmp_path):
    folder = write_csv(tmp_path / "in", bank())
    create(tmp_path / "north", *(folder / f"{name}.csv" for name in bank()))
    assert settings_of(tmp_path / "north")["tables"] == EXPECTED


def test_comments_say_how_guesses_were_made(tmp_path):
    create(tmp_path / "north", write_csv(tmp_path / "in", bank()))
    text = (tmp_path / "north" / "party.toml").read_text()
    for line in (
        'key = "id"  # 30 different values in 30 rows',
        'customer = "customers"  # 100% of its 15 values are keys of customers, and its name fits',
        'kind = "category"  # 3 different texts',
        "# until = \"2024-06-30\" would leave out rows dated from then on; 'accounts' has no time, so all are read",
    ):
        assert line in text.splitlines()
    assert 'time = "date"  # dates from 2024-01-' in text


def test_declared_keys_are_taken(tmp_path):
    path = tmp_path / "bank.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE people (nick TEXT PRIMARY KEY, bad INT);"
            "CREATE TABLE calls (one REFERENCES people(nick), len);"
            "INSERT INTO people VALUES ('x', 0), ('y', 1); INSERT INTO calls VALUES ('x', 3), ('z', 4)"
        )
    create(tmp_path / "a", path, label="people.bad")
    text = (tmp_path / "a" / "party.toml").read_text()
    assert 'key = "nick"  # declared as primary key' in text
    assert 'one = "people"  # declared as foreign key' in text
    with closing(duckdb.connect(str(tmp_path / "b.duckdb"))) as connection:
        connection.execute("CREATE TABLE people (nick TEXT PRIMARY KEY, bad INT)").fetchall()
        connection.execute("CREATE TABLE calls (one TEXT REFERENCES people(nick), len INT)").fetchall()
        connection.execute("INSERT INTO people VALUES ('x', 0), ('y', 1)").fetchall()
        connection.execute("INSERT INTO calls VALUES ('x', 3)").fetchall()
    create(tmp_path / "b", tmp_path / "b.duckdb", label="people.bad")
    assert settings_of(tmp_path / "b")["tables"]["calls"]["foreign"] == {"one": "people"}


def test_foreign_keys_are_found_by_containment_and_name(tmp_path):
    tables = bank()
    tables["transfers"] |= {
        "sender": tables["transfers"].pop("from_account"),
        "x": tables["transfers"].pop("to_account"),  # texts, all of them keys
        "count": [at % 9 for at in range(90)],  # whole numbers that are keys by chance: its name says nothing
    }
    create(tmp_path / "north", write_csv(tmp_path / "in", tables))
    table = settings_of(tmp_path / "north")["tables"]["transfers"]
    assert table["foreign"] == {"sender": "accounts", "x": "accounts"}
    assert table["columns"]["count"] == {"kind": "number"}


def test_accounts_of_other_banks_are_dangling_keys(tmp_path):
    tables = bank()
    tables["transfers"]["to_account"] = [
        f"Z{at}" if at % 2 else each for at, each in enumerate(tables["transfers"]["to_account"])
    ]
    problems = create(tmp_path / "north", write_csv(tmp_path / "in", tables))
    (note,) = [str(each) for found in problems.values() for each in found]
    assert "transfers.parquet, rows 2, 4, 6, 8, 10, 12, 14, 16 and 37 more" in note
    assert "'to_account' names rows that 'accounts' lacks, such as 'Z1': no edge joins them" in note


def test_unreadable_date_is_named_and_nothing_is_written(tmp_path):
    tables = bank()
    tables["transfers"]["date"] = [str(each) for each in tables["transfers"]["date"]]
    tables["transfers"]["date"][3] = "yesterday"
    with pytest.raises(UnusableFolder, match="row 4: column 'date' has a date that cannot be read, 'yesterday'"):
        create(tmp_path / "north", write_csv(tmp_path / "in", tables))
    assert not (tmp_path / "north").exists()


def test_dated_label_gets_a_split_by_date(tmp_path):
    draft = dated_draft(transfers=100)
    tables = {file.removesuffix(".parquet"): columns for file, columns in draft.tables.items()}
    create(tmp_path / "north", write_csv(tmp_path / "in", tables), label="transfers.bad")
    settings = settings_of(tmp_path / "north")
    contents, _ = check_folder(tmp_path / "north")
    shares = [float(contents.splits[split].float().mean()) for split in ("train", "val", "test")]
    assert settings["train_until"] < settings["val_until"]
    assert 0.5 < shares[0] < 0.65
    assert min(shares[1:]) > 0.1


def test_tables_of_edges_with_a_label_get_the_day_from_which_on_they_are_classified(tmp_path):
    tables = {file.removesuffix(".parquet"): columns for file, columns in edge_draft(transfers=200).tables.items()}
    create(tmp_path / "north", write_csv(tmp_path / "in", tables), label="transfers.bad", edges=["transfers"])
    settings = settings_of(tmp_path / "north")
    assert settings["tables"]["transfers"]["as"] == "edges"
    assert settings["until"] < settings["train_until"] < settings["val_until"]
    contents, _ = check_folder(tmp_path / "north")
    assert 100 < contents.items < 130
    shares = [float(contents.splits[split].float().mean()) for split in ("train", "val", "test")]
    assert 0.5 < shares[0] < 0.65
    assert min(shares[1:]) > 0.1
    text = (tmp_path / "north" / "party.toml").read_text()
    assert "of the rows with labels are dated before: they are read, later ones are classified" in text
    create(tmp_path / "again", write_csv(tmp_path / "in", tables), label="", like=tmp_path / "north")
    again = settings_of(tmp_path / "again")
    assert again == {**settings, "name": "again"}


def test_two_files_of_nodes_and_edges_with_labels_are_tables(tmp_path):
    nodes = {"id": [f"n{at}" for at in range(20)], "size": [float(at) for at in range(20)]}
    edges = {
        "source": [f"n{at}" for at in range(20)],
        "target": [f"n{7 * at % 20}" for at in range(20)],
        "weight": [at / 7 for at in range(20)],
        "label": ["good", "bad"] * 10,
    }
    source = write_csv(tmp_path / "in", {"nodes": nodes, "edges": edges})
    create(tmp_path / "north", source, label="edges.label", edges=["edges"])
    contents, problems = check_folder(tmp_path / "north")
    assert (contents.items, contents.settings.items_level, contents.settings.labels) == (20, "edge", ["bad", "good"])
    assert problems == []
    assert contents.database.labelled.index.tolist() == [list(range(20)), [7 * at % 20 for at in range(20)]]


def test_names_and_empty_columns_are_left_out_with_a_reason(tmp_path):
    tables = bank(customers={"name": [f"n{at}" for at in range(16)], "fax": [None] * 16})
    tables["customers"]["fax"] = [""] * 16
    create(tmp_path / "north", write_csv(tmp_path / "in", tables))
    assert settings_of(tmp_path / "north")["tables"]["customers"]["ignore"] == ["name", "fax"]
    text = (tmp_path / "north" / "party.toml").read_text()
    assert "# name: 16 different texts look like names; fax: no value in any row" in text


def test_several_parties_and_one_like_another(tmp_path):
    write_csv(tmp_path / "in" / "north", bank())
    write_csv(tmp_path / "in" / "south", bank("south", seed=1))
    problems = create(tmp_path / "banks", tmp_path / "in" / "*")
    assert sorted(each.name for each in problems) == ["banks", "north", "south"]
    create(
        tmp_path / "banks" / "west",
        write_csv(tmp_path / "west", bank("west", seed=2)),
        label="",
        like=tmp_path / "banks" / "north",
    )
    one, two = (settings_of(tmp_path / "banks" / name) for name in ("north", "west"))
    assert two["tables"] == one["tables"]
    assert (two["name"], two["label"], two["classes"]) == ("west", "accounts.bad", 2)


def test_pattern_of_files_leaves_the_party_out_of_the_names(tmp_path):
    for seed, name in enumerate(("north", "south")):
        for table in write_csv(tmp_path / name, bank(name, seed=seed)).iterdir():
            table.rename(tmp_path / f"{name}-{table.name}")
    create(tmp_path / "banks", *(tmp_path / f"*-{table}.csv" for table in bank()))
    assert settings_of(tmp_path / "banks" / "south")["tables"] == {
        **EXPECTED,
        "customers": {"key": "id", "as": "nodes", "columns": {"age": {"kind": "number"}}},
    }


def test_folder_may_be_replaced(tmp_path):
    source = write_csv(tmp_path / "in", bank())
    create(tmp_path / "north", source)
    with pytest.raises(IsthmusError, match="exists"):
        create(tmp_path / "north", source)
    create_databases(tmp_path / "north", DatabaseSource([source], "accounts.bad"), force=True)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"label": ""}, "name the label's table and column, such as --label accounts.suspicious"),
        ({"label": "cards.bad"}, "there is no table 'cards': the tables are accounts, customers, transfers"),
        ({"label": "accounts.bat"}, "table 'accounts' has no column 'bat': did you mean 'bad'?"),
        ({"label": "bad"}, "--label bad: name the table, too: --label accounts.bad"),
        ({"label": "accounts", "classes": 2}, "names a table alone, so no row has a label: give --label TABLE.COLUMN"),
        ({"label": "accounts.bad", "tasks": ["bad"]}, "give --label TABLE.COLUMN, or --label TABLE with several"),
        ({"split": "part"}, "table 'accounts' has no column 'part'"),
        ({"ignore": ["colour"]}, "--ignore colour: no table has this column"),
        ({"edges": ["cards"]}, "--as-edges cards: there is no table 'cards'"),
        ({"edges": ["accounts"]}, 'tables.accounts: as = "edges" needs two foreign keys, it has 1'),
    ],
)
@pytest.mark.thinned(3)
def test_wrong_options_are_one_line(tmp_path, options, error):
    with pytest.raises(IsthmusError) as caught:
        create(tmp_path / "north", write_csv(tmp_path / "in", bank()), **options)
    assert error in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("more", "seen"),
    [
        (["9.4.7-rc2", "1.2.3", "10.0.0.1"], "string"),  # which are no dates, though they begin like some
        (["1.2.3", "2.3.4", "2024-01-05 foo"], "string"),
    ],
)
def test_texts_that_begin_like_dates_stay_texts(tmp_path, more, seen):
    for seed, name in enumerate(("north", "south")):
        tables = bank(name, seed=seed, accounts={"version": (more * 10)[:30]})
        write_csv(tmp_path / "in" / name, tables)
    create(tmp_path / "banks", tmp_path / "in" / "*")
    assert parquet.read_schema(tmp_path / "banks" / "north" / "accounts.parquet").field("version").type == seen


@pytest.mark.parametrize("how", ["none at a party", "one unreadable"])
def test_own_forms_of_dates_may_lack_values(tmp_path, how):
    for seed, (name, form) in enumerate((("east", "%Y-%m-%d"), ("north", "%d.%m.%Y"), ("south", "%m/%d/%Y"))):
        tables = bank(name, seed=seed)
        dates = [each.strftime(form) for each in tables["transfers"]["date"]]
        if name == "north":
            dates = [""] * len(dates) if how == "none at a party" else ["oops", *dates[1:]]
        tables["transfers"]["date"] = dates
        write_csv(tmp_path / "in" / name, tables)
    with pytest.raises(UnusableFolder) as caught:
        create(tmp_path / "banks", tmp_path / "in" / "*")
    due = "column 'date' has no value" if how == "none at a party" else "row 1: column 'date' has a date that cannot"
    assert any(due in str(each) for each in caught.value.problems[tmp_path / "banks" / "north"])


def test_a_missing_key_is_refused_and_does_not_become_a_feature(tmp_path):
    tables = bank(transfers={"id": [*range(1, 90), None]})
    with pytest.raises(UnusableFolder) as caught:
        create(tmp_path / "north", write_csv(tmp_path / "in", tables))
    (found,) = caught.value.problems[tmp_path / "north"]
    assert str(found) == "transfers.parquet, row 90: column 'id' has no value: fill it in"


def test_a_folder_like_one_with_ignored_columns_ignores_them(tmp_path):
    for name in ("north", "south"):
        write_csv(tmp_path / "in" / name, bank(name, seed=name == "south"))
    create(tmp_path / "north", tmp_path / "in" / "north", ignore=["transfers.amount", "country"])
    source = DatabaseSource([tmp_path / "in" / "south"], like=tmp_path / "north")
    assert not [each for found in create_databases(tmp_path / "south", source).values() for each in found]
    tables = settings_of(tmp_path / "south")["tables"]
    assert tables["transfers"]["ignore"] == ["amount"]
    assert tables["accounts"]["ignore"] == ["country"]
    assert "columns" not in tables["accounts"]


def test_each_party_may_write_dates_in_its_own_way(tmp_path):
    for seed, (name, form) in enumerate((("north", "%Y-%m-%d"), ("south", "%m/%d/%Y"))):
        tables = bank(name, seed=seed)
        tables["transfers"]["date"] = [each.strftime(form) for each in tables["transfers"]["date"]]
        write_csv(tmp_path / "in" / name, tables)
    problems = create(tmp_path / "banks", tmp_path / "in" / "*", label="transfers.amount", classes=100)
    (note,) = (each for found in problems.values() for each in map(str, found) if "date" in each)
    assert "column 'date': the parties write dates in different forms, and each is read by its own" in note
    assert settings_of(tmp_path / "banks" / "south")["tables"]["transfers"]["time"] == "date"
    (north, south) = load_folders(tmp_path / "banks").parties
    assert north.train.any()
    assert south.test.any()


def test_which_dates_are_the_time_of_a_row_is_said_where_there_are_several_or_none(tmp_path):
    dates = bank()["transfers"]["date"]
    two = bank(transfers={"booked": dates, "bad": [at % 2 for at in range(90)]})
    problems = create(tmp_path / "two", write_csv(tmp_path / "a", two), label="transfers.bad")[tmp_path / "two"]
    assert any("is taken for the time from which on a row is known, not" in str(each) for each in problems)
    opened = bank(accounts={"opened_at": dates[:30]})
    problems = create(tmp_path / "one", write_csv(tmp_path / "b", opened), label="accounts.bad")[tmp_path / "one"]
    assert any("accounts: rows have dates, but no time, so all labels belong to one" in str(each) for each in problems)


def test_owners_and_partners_are_written(tmp_path):
    drafts = {draft.settings["name"]: draft for draft in crossing_drafts()[:2]}
    for name, draft in drafts.items():
        write_csv(tmp_path / "in" / name, {file.removesuffix(".parquet"): each for file, each in draft.tables.items()})
    owners = ["transfers.from_account=from_bank", "transfers.to_account=to_bank"]
    create(tmp_path / "banks", tmp_path / "in" / "*", owners=owners)
    north = settings_of(tmp_path / "banks" / "north")
    assert north["tables"]["transfers"]["owners"] == {"from_account": "from_bank", "to_account": "to_bank"}
    assert "from_bank" not in north["tables"]["transfers"]["columns"]
    assert (north["partners"], settings_of(tmp_path / "banks" / "south")["partners"]) == (["south"], ["north"])
    create(tmp_path / "alone" / "south", tmp_path / "in" / "south", label="", like=tmp_path / "banks" / "north")
    assert settings_of(tmp_path / "alone" / "south")["partners"] == ["north"]
    with pytest.raises(IsthmusError, match=r"--owner a=b: write --owner TABLE.KEY=COLUMN"):
        create(tmp_path / "x", tmp_path / "in" / "north", owners=["a=b"])
    with pytest.raises(IsthmusError, match="table 'transfers' has no column 'from_bnk'"):
        create(tmp_path / "x", tmp_path / "in" / "north", owners=["transfers.from_account=from_bnk"])


def test_keys_that_pandas_wrote_as_floats_give_the_same_edges_and_ids(tmp_path):
    floats = bank()
    floats["accounts"]["customer"] = [float(each) for each in floats["accounts"]["customer"]]
    floats["customers"]["id"] = [float(each) for each in floats["customers"]["id"]]
    found = []
    for name, tables in (("whole", bank()), ("floats", floats)):
        create(tmp_path / name / "bank", write_csv(tmp_path / "in" / name, tables))
        contents, problems = check_folder(tmp_path / name / "bank")
        assert problems == []
        found.append(contents)
    assert all(found[0].database.ids[name].equal(found[1].database.ids[name]) for name in ("accounts", "customers"))
    kind = ("accounts", "customer", "customers")
    assert found[0].database.edges[kind].index.equal(found[1].database.edges[kind].index)


def test_rows_that_no_edge_joins_are_noted(tmp_path):
    problems = create(tmp_path / "a", write_csv(tmp_path / "in", {"accounts": bank()["accounts"]}))
    (note,) = [str(each) for found in problems.values() for each in found]
    assert note.startswith("party.toml: no edge joins any rows, so models see each row alone")


def test_label_of_many_numbers_names_the_flags_for_regression(tmp_path):
    source = write_csv(tmp_path / "in", bank())
    with pytest.raises(
        IsthmusError, match=r"'amount' has .*: for regression give --label transfers --task amount; for"
    ):
        create(tmp_path / "a", source, label="transfers.amount")


def test_other_encodings_are_named(tmp_path):
    source = write_csv(tmp_path / "in", bank())
    text = (source / "accounts.csv").read_text()
    (source / "accounts.csv").write_text(text.replace("de", "d\xe9"), encoding="latin1")
    with pytest.raises(IsthmusError, match=r"accounts.csv is not UTF-8: save it as UTF-8, or iconv"):
        create(tmp_path / "a", source)


def test_decimal_commas_of_one_party_are_read_as_numbers_with_a_note(tmp_path):
    tables = bank("south")
    commas = tables["transfers"] | {"amount": [f"{at},25" for at in range(90)]}
    write_csv(tmp_path / "in/north", bank())
    write_csv(tmp_path / "in/south", tables | {"transfers": commas}, ";")
    (note,) = create(tmp_path / "banks", tmp_path / "in/*")[tmp_path / "banks"]
    assert str(note) == "transfers: south: column 'amount' has decimal commas: '0,25' is read as 0.25"
    for party in ("north", "south"):
        assert settings_of(tmp_path / "banks" / party)["tables"]["transfers"]["columns"]["amount"] == {"kind": "number"}
    assert parquet.read_table(tmp_path / "banks/south/transfers.parquet")["amount"][3].as_py() == 3.25


def test_texts_that_are_numbers_at_other_parties_are_noted(tmp_path):
    tables = bank("south")
    dollars = tables["transfers"] | {"amount": [f"{at} crowns" for at in range(90)]}
    write_csv(tmp_path / "in/north", bank())
    write_csv(tmp_path / "in/south", tables | {"transfers": dollars})
    notes = [note.what for note in create(tmp_path / "banks", tmp_path / "in/*")[tmp_path / "banks"]]
    assert "column 'amount' has numbers at north, but not at south, such as '0 crowns'" in notes


def test_spellings_of_one_class_or_category_are_noted(tmp_path):
    tables = bank(accounts={"bad": ["yes", "no", "Yes"] * 10, "country": ["at", "de", "AT"] * 10})
    (found,) = create(tmp_path / "north", write_csv(tmp_path / "in", tables)).values()
    assert [each.what for each in found if "upper" in each.what] == [
        "column 'bad': 'yes' differs from 'Yes' only in upper and lower case: make them equal",
        "column 'country': 'at' differs from 'AT' only in upper and lower case: make them equal",
    ]


def test_index_that_pandas_wrote_is_left_out_with_a_note(tmp_path):
    tables = bank(accounts={"__index_level_0__": list(range(30))})
    (found,) = create(tmp_path / "north", write_parquet(tmp_path / "in", tables)).values()
    assert str(found[0]) == "accounts: column '__index_level_0__' is the rows' index that pandas wrote: left out"
    assert settings_of(tmp_path / "north")["tables"] == EXPECTED


def test_labels_that_do_not_begin_with_0_are_names_of_classes(tmp_path):
    (found,) = create(tmp_path / "north", write_csv(tmp_path / "in", bank(accounts={"bad": [1, 2] * 15}))).values()
    assert found[0].what.startswith("label 'bad' has the numbers 1, 2: they are the names of 2 classes")
    assert settings_of(tmp_path / "north")["labels"] == ["1", "2"]
    (found,) = create(tmp_path / "south", write_csv(tmp_path / "far", bank(accounts={"bad": [11, 60] * 15}))).values()
    assert found[0].what.endswith("(if others exist, name all of them: --classes 11,60,...)")


def test_party_folders_that_are_not_replaced_are_never_deleted(tmp_path):
    for name in ("north", "south"):
        write_csv(tmp_path / "in" / name, bank(name))
    create(tmp_path / "banks", tmp_path / "in/*")
    assert "# counts in comments are over all 2 parties" in (tmp_path / "banks/south/party.toml").read_text()
    for path in ("in/*orth", "in/north"):
        with pytest.raises(IsthmusError, match=r"also holds the party folders .*south, which this would delete"):
            create_databases(tmp_path / "banks", DatabaseSource([tmp_path / path], "accounts.bad"), force=True)
    assert sorted(each.name for each in (tmp_path / "banks").iterdir()) == ["north", "south"]
    assert settings_of(tmp_path / "banks/south")["name"] == "south"


def test_party_like_another_may_lack_the_labels(tmp_path):
    create(tmp_path / "north", write_csv(tmp_path / "in/north", bank()))
    tables = write_csv(tmp_path / "in/south", bank("south", accounts={"bad": None}))
    (found,) = create_databases(tmp_path / "south", DatabaseSource([tables], like=tmp_path / "north")).values()
    assert [each.what for each in found if "bad" in each.what] == [
        "there is no column 'bad': a trained model can predict this, and only methods without labels can train on it"
    ]
    contents, _ = check_folder(tmp_path / "south")
    assert contents.y.tolist() == [-1] * 30


def test_table_without_rows_is_named(tmp_path):
    tables = bank()
    tables["accounts"] = {column: [] for column in tables["accounts"]}
    with pytest.raises(IsthmusError, match="table 'accounts' has no rows"):
        create(tmp_path / "north", write_csv(tmp_path / "in", tables))


def test_files_name_parties_without_their_ending_and_columns_left_out_are_noted(tmp_path):
    for name in ("north", "south"):
        tables = write_parquet(tmp_path / name, bank(name, accounts={"words": [["a"], ["b", "c"]] * 15}))
        (tmp_path / "in").mkdir(exist_ok=True)
        with duckdb.connect(str(tmp_path / f"in/{name}.duckdb")) as connection:
            for table in bank():
                connection.execute(f"CREATE TABLE {table} AS SELECT * FROM read_parquet('{tables}/{table}.parquet')")
    (note,) = create(tmp_path / "banks", tmp_path / "in/*")[tmp_path / "banks"]
    assert note.what == "columns are left out: words (lists of different lengths, or not of numbers)"
    assert sorted(each.name for each in (tmp_path / "banks").iterdir()) == ["north", "south"]
    text = (tmp_path / "banks/north/party.toml").read_text()
    assert "different values in 60 rows, counted at each party" in text


def test_several_tasks_of_edges_may_lack_labels(tmp_path):
    tables = {file.removesuffix(".parquet"): columns for file, columns in edge_draft(transfers=200).tables.items()}
    count = len(tables["transfers"]["bad"])
    tables["transfers"] |= {
        "fee": [at % 7 if at % 3 else None for at in range(count)],
        "late": [at % 2 for at in range(count)],
    }
    del tables["transfers"]["bad"]
    source = write_parquet(tmp_path / "in", tables)
    create(tmp_path / "north", source, label="transfers", tasks=["fee", "late"], edges=["transfers"])
    contents, _ = check_folder(tmp_path / "north")
    assert (contents.settings.items_level, contents.settings.tasks) == ("edge", ["fee", "late"])
    assert contents.y.shape == (contents.items, 2)
    assert contents.y[:, 0].isnan().any()
    assert not contents.y[:, 1].isnan().any()


def test_notes_on_tables_are_told_when_nothing_is_written(tmp_path):
    dates = ["2024-02-31", *bank()["transfers"]["date"][1:]]
    amounts = ["many", *map(str, bank()["transfers"]["amount"][1:])]
    with pytest.raises(UnusableFolder) as caught:
        create(tmp_path / "north", write_csv(tmp_path / "in", bank(transfers={"date": dates, "amount": amounts})))
    told = [str(each) for found in caught.value.problems.values() for each in found]
    assert any("has a date that cannot be read" in each for each in told)
    assert any("are numbers, but not 'many'" in each for each in told)
