"""`isthmus audit` prints what colluders read; mistakes are one line."""

from __future__ import annotations

import json

import pytest

from isthmus.study import config

SMALL = ("--by", "reconstruction", "--data", "banks", "--parties", "3", "--set", "data.nodes=90")
ACCURACY = (*SMALL, "--set", "audit.accuracy=true")


def test_json_has_every_protection_and_nothing_else_on_standard_output(isthmus):
    code, out, _ = isthmus("audit", *SMALL, "--set", "audit.min_neighbours=2", "--set", "audit.colluders=1", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["audit"] == {"name": "reconstruction", "colluders": 1, "min_neighbours": 2, "accuracy": False}
    assert [each["protection"] for each in found["protections"]] == ["none", "lnnc", "min 2", "lnnc + min 2"]
    assert (found["parties"], found["model"]["encoder"]) == (3, "sgc")
    assert all(each["wrong"] == 0 and each["value"] is None for each in found["protections"])
    assert found["protections"][1]["exposed"] == 0


def test_the_table_has_the_figures_of_the_json(isthmus):
    _, out, _ = isthmus("audit", *SMALL, "--json")
    figures = json.loads(out)["protections"]
    code, out, _ = isthmus("audit", *SMALL)
    lines = {line[: line.find("  ")].strip(): line.split() for line in out.splitlines()}
    assert code == 0
    assert "of 90 nodes" in lines
    for title, name in (("direction read", "direction"), ("are in a message", "summed")):
        assert lines[title][-4:] == [f"{each[name]:,}" for each in figures]
    assert "3 parties; all others collude against each in turn" in out


def test_accuracy_trains_under_each_protection(isthmus):
    code, out, _ = isthmus("audit", *ACCURACY, "--rounds", "2", "--seeds", "0,1", "--json")
    found = json.loads(out)["protections"]
    assert code == 0
    assert {each["metric"] for each in found} == {"accuracy"}
    assert all(0 < each["value"] < 1 for each in found)
    code, out, _ = isthmus("audit", *ACCURACY, "--rounds", "2", "--seeds", "0,1")
    assert "test accuracy" in out


def test_a_study_gives_the_options_of_fedcog(isthmus, tmp_path):
    study = tmp_path / "study.toml"
    study.write_text(
        'parties = 3\n[data]\nname = "banks"\nnodes = 90\n[model]\nencoder = "gbp"\nhops = 2\n'
        '[[methods]]\nname = "fedavg"\n[[methods]]\nname = "fedcog"\ntrainer = { name = "feddyn" }\n'
    )
    code, out, _ = isthmus("audit", study, "--json")
    assert code == 0
    assert json.loads(out)["model"]["encoder"] == "gbp"


@pytest.mark.parametrize(
    ("study", "arguments", "message"),
    [
        ('[[methods]]\nname = "fedavg"\n', ("--by", "edges"), "audit 'edges' attacks method 'fgcl', which is not in"),
        ("", ("--method", "fedavg", "--by", "member"), "unknown audit 'member': did you mean 'membership'?"),
        ("", ("--method", "local", "--encoder", "gcn", "--rounds", "2"), "method 'local' releases no model"),
        ("", ("--method", "fedavg", "--set", "audit.epsilons=[1]"), "audit 'membership': unknown option 'epsilons'"),
        ("", (), "name what to attack: a study file, --method METHOD, or --by AUDIT"),
        (
            "",
            ("--method", "fedcog", "--encoder", "gcn"),
            "method 'fedcog' needs an encoder that propagates first",
        ),
        ("", ("--method", "fedcog", "--parties", "1"), "needs two or more parties"),
        ("", ("--method", "fedcog", "--set", "audit.min_neighbours=0"), "option 'min_neighbours' is 0"),
        ("", ("--method", "fedcog", "--data", "no-such"), "unknown data set 'no-such'"),
        (
            "",
            ("--method", "fedcog", "--data", "motifs", "--parties", "2"),
            "is for parties of one graph",
        ),
        (
            "",
            ("--method", "fgcl", "--parties", "2"),
            "audit 'edges' is for parties of many graphs, these hold one of nodes",
        ),
        ("", ("--method", "fgcl", "--data", "motifs", "--set", "audit.accuracy=true"), "unknown option 'accuracy'"),
    ],
)
@pytest.mark.thinned(3)
def test_mistakes_are_one_line(isthmus, tmp_path, study, arguments, message):
    path = []
    if study:
        path = [tmp_path / "study.toml"]
        path[0].write_text(study)
    code, out, err = isthmus("audit", *path, *arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert message in err


def test_a_result_folder_is_no_study(isthmus, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.json").write_text("{}")
    code, out, err = isthmus("audit", "run")
    assert (code, out) == (2, "")
    assert "run is a result folder, not a study file: its study is run/study.toml; to keep" in err
    assert err.endswith("add --into run\n")


def test_audits_are_listed(isthmus):
    code, out, _ = isthmus("audits", "--json")
    names = [each["name"] for each in json.loads(out)]
    assert code == 0
    assert names == ["edges", "epsilon", "inversion", "membership", "reconstruction"]


def test_accuracy_without_test_items_is_said_in_one_line(isthmus):
    shares = ("--set", "data.train=0.6", "--set", "data.val=0.4")
    code, _, err = isthmus("audit", *ACCURACY, *shares, "--rounds", "1")
    assert code != 0
    assert "no party has test items to measure accuracy on: set audit.accuracy=false" in " ".join(err.split())


EDGES = (
    "--method", "fgcl", "--data", "motifs", "--set", "data.graphs=24", "--rounds", "2", "--parties", "2",
    "--set", "audit.epsilons=[1,100]", "--set", "audit.graphs=4",
)  # fmt: skip


def test_edges_are_guessed_at_under_each_budget(isthmus):
    code, out, _ = isthmus("audit", *EDGES, "--json")
    told = json.loads(out)
    assert code == 0
    assert told["audit"] == {"name": "edges", "epsilons": [1.0, 100.0], "graphs": 4}
    assert told["model"]["encoder"] == "gcn"
    none, one, most = told["protections"]
    assert (none["epsilon"], none["released"]) == (None, None)
    assert (one["epsilon"], most["epsilon"]) == (2.0, 200.0)
    assert one["released"]["auc"] < most["released"]["auc"] == pytest.approx(1.0)
    code, out, _ = isthmus("audit", *EDGES)
    assert code == 0
    lines = {line[: line.find("  ")].strip(): line.split() for line in out.splitlines()}
    assert lines["released weights: AUC"][-3:] == ["-", f"{one['released']['auc']:.3f}", "1.000"]
    assert lines["epsilon spent on an edge"][-3:] == ["inf", "2", "200"]


@pytest.mark.slow
def test_who_was_trained_on_is_told_by_round_and_as_a_table(isthmus, tmp_path):
    study = tmp_path / "study.toml"
    study.write_text(
        'parties = 3\n[data]\nname = "banks"\nnodes = 120\n[[methods]]\nname = "fedgc"\nrounds = 2\nevery = 1\n'
        "ratio = 0.1\nteaching = 1\n[methods.target]\nepochs = 3\n[methods.transforming]\nepochs = 2\n"
    )
    options = (study, "--set", "audit.shadows=2", "--set", "audit.others=20")
    code, out, _ = isthmus("audit", *options, "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["audit"]["name"], found["audit"]["shadows"], found["audit"]["others"]) == ("membership", 2, 20)
    assert [each["protection"] for each in found["protections"]] == ["fedgc", "without bottleneck"]
    for each in found["protections"]:
        assert [seen["round"] for seen in each["rounds"]] == [1, 2]
        assert each["rounds"][0]["asked"].keys() == {"features", "transformed"}
    code, out, _ = isthmus("audit", *options)
    assert code == 0
    assert "likelihood: rate at 1 %" in out
    assert "20 others; chance is" in out


def test_another_audit_than_a_methods_own_is_taken_by_name(isthmus):
    code, out, _ = isthmus("audit", *SMALL[2:], "--method", "fedcog", "--by", "membership", "--rounds", "2",
                           "--set", "audit.shadows=2", "--json")  # fmt: skip
    assert code == 0
    assert json.loads(out)["audit"]["name"] == "membership"


def test_an_epsilon_that_is_shown_stands_beside_the_claimed_one(isthmus, tmp_path):
    folder = tmp_path / "run"
    private = ("--set", "privacy.unit=edge", "--set", "privacy.epsilon=6")
    code, _, _ = isthmus("run", *SMALL[2:], *private, "--encoder", "gap", "--rounds", "1", "--out", folder)
    assert code == 0
    code, out, _ = isthmus("audit", "--into", folder)  # under [privacy] it is the audit of noise
    (said,) = (line for line in out.splitlines() if line.startswith("claimed epsilon 6; this audit shows at least 2."))
    assert code == 0
    assert "(95 % confidence, 1,000 canaries)" in said
    assert isthmus("report", folder)[0] == isthmus("dossier", folder, "--purpose", "a test")[0] == 0
    page = (folder / "report.html").read_text()
    account = page.partition("shown by an audit")[2].partition("</table>")[0]
    assert "at least " + said.partition("at least ")[2][:3] in account
    assert said in (folder / "dossier.html").read_text()
    code, _, err = isthmus("audit", "--into", folder, "--by", "membership")
    assert code == 2
    assert "audit 'membership' does not train under [privacy]: use the audit 'epsilon'" in " ".join(err.split())


def test_what_is_found_is_kept_in_the_result_folder_and_shown_by_its_report(isthmus, tmp_path):
    folder = tmp_path / "run"
    code, _, _ = isthmus("run", *SMALL[2:], "--method", "fedcog", "--encoder", "sgc", "--rounds", "2", "--out", folder)
    assert code == 0
    code, out, _ = isthmus("audit", "--into", folder)
    lines = {line[: line.find("  ")].strip(): line.split() for line in out.splitlines()}
    assert code == 0
    assert isthmus("report", folder)[0] == 0
    page = (folder / "report.html").read_text()
    assert "fedcog: reconstruction" in page
    row = page.partition("direction read</th>")[2].partition("</tr>")[0]
    assert [cell.partition("</td>")[0] for cell in row.split("<td class=n>")[1:]] == lines["direction read"][-4:]


@pytest.mark.slow
def test_an_audit_into_the_folder_of_a_grid_attacks_the_chosen_setting(isthmus, tmp_path):
    folder = tmp_path / "run"
    grid = ("--set", "local.optimizer=sgd", "--grid", "local.lr=1e30,0.01")
    isthmus("run", *SMALL[2:], "--method", "fedavg", "--rounds", "2", *grid, "--out", folder)
    for named in ((), ("--method", "fedavg")):
        code, _, err = isthmus("audit", "--into", folder, "--by", "membership", *named)
        assert code == 0, err
    (record,) = (folder / "audits").iterdir()
    assert "fedavg local.lr=0.01" in record.read_text()


def test_results_of_a_federation_are_not_attacked(isthmus, tmp_path, monkeypatch):
    isthmus("run", *SMALL[2:], "--method", "fedavg", "--rounds", "1", "--out", tmp_path / "run")
    monkeypatch.setattr(config, "read_toml", lambda path: {"data": {"name": "folder"}, "partition": {"name": "given"}})
    code, _, err = isthmus("audit", "--into", tmp_path / "run")
    assert code == 2
    assert "has the results of a federation, whose data are with its parties" in " ".join(err.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rounds", "3"), "attacks the study in that folder: leave out --rounds"),
        (("--data", "cora"), "attacks the study in that folder: leave out --data"),
        (("--set", "seeds=[1]"), "attacks the study in that folder: leave out --set"),
        (("--method", "fgcl"), "--method fgcl: it is not in this study, which has fedavg"),
        (("--by", "edges"), "audit 'edges' attacks method 'fgcl', which is not in this study"),
    ],
)
def test_an_audit_into_a_folder_is_of_its_study(isthmus, tmp_path, arguments, message):
    folder = tmp_path / "run"
    isthmus("run", *SMALL[2:], "--method", "fedavg", "--rounds", "1", "--out", folder)
    code, _, err = isthmus("audit", "--into", folder, *arguments)
    assert code != 0
    assert message in " ".join(err.split())
    assert not (folder / "audits").exists()
    code, _, err = isthmus("audit", "--into", tmp_path / "none")
    assert "no study.toml in" in err
    (folder / "results.json").write_text("{")
    code, _, err = isthmus("audit", "--into", folder)
    assert "no readable results.json in" in err
