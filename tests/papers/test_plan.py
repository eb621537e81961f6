"""What a table's file says becomes studies; what is wrong in it is one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from a_paper import TABLE1, written

from isthmus.errors import IsthmusError
from isthmus.methods.fedgc import FedGC
from isthmus.nn.encoders import Gcn
from isthmus.papers.plan import Table, Tuning


def table(base: Path, name: str = "table1", **tables: str) -> Table:
    return Table.of_file(written(base, **tables) / "mine" / f"{name}.toml")


def test_cells_are_all_combinations_with_what_their_values_change(tmp_path: Path) -> None:
    cells = list(table(tmp_path).cells())
    assert [cell.name for cell in cells] == ["120, fedavg", "120, fedprox", "160, fedavg", "160, fedprox"]
    plans = [cell.study_for(3) for cell in cells]
    assert [plan.data["nodes"] for plan in plans] == [120, 120, 160, 160]
    methods = [plan.method_list()[0] for plan in plans]
    assert [method.name for method in methods] == ["fedavg", "fedprox", "fedavg", "fedprox"]
    assert [getattr(method, "mu", None) for method in methods] == [None, 0.1, None, 0.5]
    assert all(plan.seeds == [3] and plan.model["hidden"] == 8 for plan in plans)


def test_where_may_leave_out_places(tmp_path: Path) -> None:
    text = TABLE1.replace("study.method.mu = 0.5", "skip = true")
    assert len(list(table(tmp_path, table1=text).cells())) == 3


def test_where_may_tune_and_measure_otherwise(tmp_path: Path) -> None:
    text = TABLE1.replace(
        "study.method.mu = 0.5",
        'tune.options."method.mu" = [0.1]\nmeasure = { name = "training", side_by_side = false }',
    )
    cells = list(table(tmp_path, table1=text).cells())
    assert [len(list(cell.trials())) for cell in cells] == [0, 0, 0, 1]
    assert [cell.read_measure().model_dump()["side_by_side"] for cell in cells] == [True, True, True, False]


def test_a_table_is_like_another_but_for_its_numbers_and_claims(tmp_path: Path) -> None:
    second = table(tmp_path, "table2")
    assert (second.title, second.seeds, second.claims, second.published) == ("The same, tuned", 5, [], {})
    assert list(second.figures) == ["test", "val"]
    (cell,) = second.cells()
    assert cell.place == {"method": "fedavg"}
    assert list(cell.trials()) == [
        {"method.local.lr": 0.1, "model.hidden": 4},
        {"method.local.lr": 0.01, "model.hidden": 4},
    ]


def test_a_table_may_be_like_one_that_is_like_another(tmp_path: Path) -> None:
    third = table(tmp_path, "table3", table3='title = "Third"\nlike = "table2"\nseeds = 1\n')
    assert list(third.figures) == ["test", "val"]
    assert [cell.place for cell in third.cells()] == [{"method": "fedavg"}]
    assert (third.setting, third.seeds) == ("As table2.", 1)


def test_some_trials_are_drawn_at_random_and_are_always_the_same(tmp_path: Path) -> None:
    tune = '[tune]\nsample = 3\noptions = { "method.local.lr" = [0.1, 0.01, 0.001], "model.hidden" = [4, 8, 16] }\n'
    plan = table(tmp_path, "table3", table3='title = "Third"\nlike = "table2"\n' + tune)
    (cell,) = plan.cells()
    assert len({str(trial) for trial in cell.trials()}) == 3
    assert cell.trials() == next(plan.cells()).trials()
    few = plan.model_copy(update={"tune": plan.tune and plan.tune.model_copy(update={"sample": 9})})
    assert len(next(few.cells()).trials()) == 9, "not more than there are"


def test_a_digest_is_of_what_figures_depend_on(tmp_path: Path) -> None:
    one = {cell.name: cell.digest for cell in table(tmp_path / "a").cells()}
    other = {cell.name: cell.digest for cell in table(tmp_path / "b", table1=TABLE1.replace("0.5", "0.6")).cells()}
    said = TABLE1.replace("Who learns what", "Who learns").replace("seeds = 2", "seeds = 3")
    assert [name for name in one if one[name] != other[name]] == ["160, fedprox"]
    assert {cell.name: cell.digest for cell in table(tmp_path / "c", table1=said).cells()} == one


def test_a_quick_table_has_one_seed_and_changes_all_cells(tmp_path: Path) -> None:
    quick = table(tmp_path).for_quick_run()
    assert quick.seeds == 1
    assert all(cell.study_for(0).method_list()[0].rounds == 1 for cell in quick.cells())


def test_the_papers_numbers_are_found_by_place(tmp_path: Path) -> None:
    found = table(tmp_path)
    assert found.published_value("test", {"size": "120", "method": "fedprox"}) == 80.0
    assert found.published_value("test", {"size": "160", "method": "fedprox"}) is None
    assert found.published_value("val", {"size": "120", "method": "fedprox"}) is None


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("seeds = 2", "seds = 2", "unknown option 'seds'"),
        ('option = "data.nodes"\n', "", "a list of values needs an `option`"),
        ('at = { size = ["160"]', 'at = { sizes = ["160"]', "there is no axis 'sizes'"),
        ('at = { size = ["160"]', 'at = { size = ["170"]', "axis 'size' has no '170'"),
        ('order = ["fedprox", "fedavg"]', 'order = ["fedprox", "fedadam"]', "axis 'method' has no 'fedadam'"),
        ('order = ["fedprox", "fedavg"]', 'order = ["fedprox"]', "needs at least two values"),
        ("near = 0.001", "", "exactly one of `order`, `near` and `within`"),
        ("near = 0.001", 'near = 1\nfigure = "tests"', "there is no figure 'tests'"),
        ("[published.test.120]", "[published.test.130]", "the axis has no '130'"),
        ("fedprox = 80", 'fedprox = "80"', "replace it by a number"),
        ('fedavg.method.name = "fedavg"', 'fedavg.method.name = "fedavgg"', "unknown method 'fedavgg'"),
        ("seeds = 2", 'measure.name = "train"', "unknown measure 'train'"),
        ("seeds = 2", "seeds = 0", "seeds"),
    ],
)
def test_mistakes_are_named_with_the_file(old: str, new: str, says: str, tmp_path: Path) -> None:
    assert old in TABLE1
    with pytest.raises(IsthmusError, match=r"table1\.toml") as raised:
        table(tmp_path, table1=TABLE1.replace(old, new, 1))
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_beyond_an_end_is_a_step_like_the_last_one() -> None:
    tune = Tuning(options={"method.local.lr": [0.01, 0.03], "model.hidden": [4, 8], "method.name": ["a", "b"]})
    best = {"method.local.lr": 0.03, "model.hidden": 4, "method.name": "b"}
    assert tune.beyond([], best) == [{**best, "method.local.lr": 0.09}, {**best, "model.hidden": 2}]
    tried = [{**best, "method.local.lr": 0.09}, {**best, "model.hidden": 2}]
    assert tune.beyond(tried, best) == [], "no longer an end"
    assert Tuning(options={"model.hidden": [0, 4]}).beyond([], {"model.hidden": 4}) == [], "nothing is a step from 0"


def test_cells_keep_a_plain_rate_unless_the_table_takes_the_encoders(tmp_path: Path) -> None:
    plain = table(tmp_path / "plain")
    suited = table(tmp_path / "suited", table1="suited = true\n" + TABLE1)
    rates = [
        [cell.study_for(0).method_list()[0].model_dump()["local"]["lr"] for cell in each.cells()]
        for each in (plain, suited)
    ]
    assert rates == [[0.01] * 4, [None] * 4]
    assert not {cell.digest for cell in plain.cells()} & {cell.digest for cell in suited.cells()}
    named = next(suited.cells()).study_for(0, {"method": {"local": {"lr": 0.2}}})
    assert named.method_list()[0].model_dump()["local"]["lr"] == 0.2


def test_a_table_imports_files_beside_it_from_wherever_it_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TABLE1.replace("[study]", '[study]\nimport = ["beside_the_table.py"]', 1).replace("mu = 0.1", "every = 2")
    assert text != TABLE1
    folder = (
        written(tmp_path, table1=text.replace('"fedprox"', '"pulled-beside"').replace("method.mu", "method.every"))
        / "mine"
    )
    own = "from isthmus.methods.fedavg import FedAvg\n\n\nclass FedBeside(FedAvg):\n    name = 'pulled-beside'\n"
    (folder / "beside_the_table.py").write_text(own)
    monkeypatch.chdir(tmp_path)
    cells = list(Table.of_file(folder / "table1.toml", check=False).cells())
    assert cells[1].study_for(0).method_list()[0].name == "pulled-beside"
    assert str(tmp_path) not in str(cells[1].study), "the place of the file is not a part of the setting"


@pytest.mark.parametrize("files", ['"mine.py"', "[3]", "3"])
def test_imports_that_are_no_list_of_files_are_refused_as_in_a_study(files: str, tmp_path: Path) -> None:
    with pytest.raises(IsthmusError, match=r"option 'import(\.0)?' is .*: give a (list|text)"):
        table(tmp_path, table1=TABLE1.replace("[study]", f"[study]\nimport = {files}", 1))


def test_a_cell_can_be_left_untuned(tmp_path: Path) -> None:
    tuned = TABLE1 + '\n[tune]\noptions = { "method.local.lr" = [0.1, 0.01] }\n'
    plain = '\n[[where]]\nat = { method = ["fedavg"] }\ntune = false\n'
    plan = table(tmp_path, table1=tuned + plain)
    assert {cell.place["method"]: len(cell.trials()) for cell in plan.cells()} == {"fedavg": 0, "fedprox": 2}


def test_results_are_stale_once_the_encoders_rate_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suited = table(tmp_path, table1="suited = true\n" + TABLE1)
    before = {cell.digest for cell in suited.cells()}
    monkeypatch.setattr(Gcn, "lr", 0.7)
    stayed = [cell.place["method"] for cell in suited.cells() if cell.digest in before]
    assert stayed == ["fedprox", "fedprox"], "its rate is bounded"


def test_results_are_stale_once_a_preset_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = TABLE1.partition("[[where]]")[0].replace('"fedprox", mu = 0.1', '"fedgc", preset = "paper"')
    cells = {cell.name: cell.digest for cell in table(tmp_path / "a", table1=text).cells()}
    monkeypatch.setattr(FedGC, "presets", {"paper": {**FedGC.presets["paper"], "passes": 3}})
    changed = [cell.name for cell in table(tmp_path / "b", table1=text).cells() if cell.digest != cells[cell.name]]
    assert changed == ["120, fedprox", "160, fedprox"]


def test_results_are_stale_once_an_imported_file_is_another(tmp_path: Path) -> None:
    folder = written(tmp_path, table1=TABLE1.replace("[study]", '[study]\nimport = ["beside.py"]', 1)) / "mine"
    (folder / "beside.py").write_text("once = 1\n")
    table1 = Table.of_file(folder / "table1.toml")
    before = {cell.digest for cell in table1.cells()}
    assert before == {cell.digest for cell in table1.cells()}
    (folder / "beside.py").write_text("once = 2\n")
    assert not before & {cell.digest for cell in table1.cells()}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            'metric = "test_accuracy"',
            'metric = "test_acc"',
            "no run has the metric 'test_acc': did you mean 'test_accuracy'",
        ),
        ('metric = "test_accuracy"', 'metric = "secnds"', "no run has the metric 'secnds': did you mean 'seconds'"),
        ('metric = "test_accuracy"', 'metric = "tset_accuracy"', "'tset_accuracy': did you mean 'test_accuracy'"),
        ('name = "method"', 'name = "size"', "axes: two have the same name"),
        ("values = [120, 160]", "values = [120, 120]", "'120' is there twice"),
        ("values = [120, 160]", "values = []", "there is no value"),
        ("[study]\n", "[study]\nseeds = 3\n", "no 'seeds': give `seeds` of the table"),
        ("[study]\n", "[study]\nmethods = [{ name = 'local' }]\n", "no 'methods': give one table, `method`"),
        ("[study]\n", "[study]\ngrid.local.lr = [0.1]\n", "no 'grid': give axes"),
        (
            'option = "data.nodes"',
            'option = "local.lr"',
            "unknown option 'local.lr' of a study: did you mean 'method.local",
        ),
        (
            "study.method.mu = 0.5",
            "tune = { optons = {} }",
            "'where.0.tune.optons': did you mean 'where.0.tune.options'",
        ),
        ("by = -100", "buy = -100", "unknown option 'claims.0.buy': did you mean 'claims.0.by'?"),
        ("[figures.val]\n", "[figures.val]\ndigit = 3\n", "'figures.val.digit': did you mean 'figures.val.digits'?"),
        ('title = "Who', 'like = "table9"\ntitle = "Who', "like: there is no table 'table9' beside it: did you mean"),
    ],
)
def test_what_no_table_can_be_is_said_before_anything_runs(tmp_path: Path, before: str, after: str, said: str) -> None:
    assert before in TABLE1
    with pytest.raises(IsthmusError, match=re.escape(said)):
        table(tmp_path, table1=TABLE1.replace(before, after, 1))


@pytest.mark.parametrize(
    ("tune", "said"),
    [
        ('metric = "test_accuracy"', "'test_accuracy' is of test data"),
        ('metric = "test_accuracy over parties"', "is of test data"),
        ("seeds = [1000, 1]", "tune.seeds: 1 is also a seed of the runs, which choose nothing: give 2 or more"),
        ('options = { "method.mu" = [0.1, 0.5] }', "'120, 0.1' and '120, 0.5' differ at most in what is tuned"),
        ('options = { "methods.local.lr" = [0.1, 0.5] }', "no 'methods': give one table, `method`"),
    ],
)
def test_trials_choose_by_validation_what_no_axis_varies(tmp_path: Path, tune: str, said: str) -> None:
    varied = TABLE1.partition("[[where]]")[0].partition('name = "method"')[0]
    varied += 'name = "mu"\noption = "method.mu"\nvalues = [0.1, 0.5]\n\n[tune]\n'
    options = "" if "options" in tune else 'options = { "method.local.lr" = [0.1] }\n'
    with pytest.raises(IsthmusError, match=re.escape(said)):
        table(tmp_path, table1=varied.replace("method.rounds = 3", 'method = { name = "fedprox" }') + options + tune)
