"""Result folders side by side: one table of what their methods reached and of the options in which they differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus import result_files
from isthmus.errors import IsthmusError, path_of, similar_path
from isthmus.report import wording
from isthmus.report.loading import ResultsFile, Score, best_first, expected_results, read_results
from isthmus.tasks.metrics import METRICS

_NOT_COMPARED = ("purpose", "import", "seeds", "wire", "methods", "grid")
"""Parts of a study that change no result, or are compared otherwise; all others are compared."""
_OFF_BY_DEFAULT = ("privacy",)
"""Tables without which a study does not do what they set: their options are then none. Other parts that a folder lacks
are unknown."""
_CONTENT = "content of the data"
"""Where runs of equal parts had other data all the same, the digests of these."""


@dataclass(frozen=True)
class Comparison:
    """Methods of several result folders.

    Attributes:
        rows: by method its run, data, method, seeds, metric, mean and std over seeds, text, validation, options.
        differ: names of the options in which runs differ: rows of one method have different values, or two runs have
            no value in common, or a grid or tuning chose it.
    """

    rows: list[dict[str, Any]]
    differ: list[str]

    def frame(self) -> Any:
        """A pandas data frame of the rows, with a column for each option that differs."""
        return result_files.data_frame(
            [
                {key: value for key, value in row.items() if key not in ("options", "text")}
                | {name: row["options"].get(name) for name in self.differ}
                for row in self.rows
            ]
        )


def compare(*folders: Path | str) -> Comparison:
    """Put result folders side by side. Of a grid or a tuned study, each method stands there with its chosen setting."""
    if not folders:
        raise IsthmusError("compare: no result folder given: name at least one")
    paths = dict.fromkeys(path_of(each, "compare: folder") for each in folders)
    for path in paths:
        if not (path / result_files.RESULTS).exists() and any(path.glob(f"*/{result_files.RESULTS}")):
            raise IsthmusError(f"{path} holds result folders and is none itself: give them, {path}/*")
    rows = [row for folder in paths for row in _rows(str(folder), read_results(folder))]
    known = dict.fromkeys(name for row in rows for name in row["options"])
    for row in rows:
        missing = [table for table in _OFF_BY_DEFAULT if table not in row["tables"]]
        row["options"] |= dict.fromkeys(name for name in known if name.partition(".")[0] in missing)
    differ = [name for name in known if _differs(name, rows)]
    if any(name.partition(".")[0] in ("data", "partition", "parties", "task", "data_seed") for name in differ):
        differ = [name for name in differ if not name.startswith(_CONTENT)]  # they say why
    for row in rows:
        del row["own"], row["varied"], row["tables"], row["ranked_by"]
        row["options"] = {name: row["options"][name] for name in differ if name in row["options"]}
    return Comparison(rows, differ)


def _differs(name: str, rows: list[dict[str, Any]]) -> bool:
    """Whether runs differ in an option. Methods of one run may have other defaults, which is no difference."""
    if any(name in row["varied"] for row in rows):
        return True
    runs, methods = defaultdict(list), defaultdict(list)
    for row in rows:
        if name in row["options"]:
            runs[row["run"]].append(row["options"][name])
            methods[row["of"] if name in row["own"] else ""].append(row["options"][name])
    of_one_method = any(value != own[0] for own in methods.values() for value in own)
    return of_one_method or any(not any(value in it for value in own) for own in runs.values() for it in runs.values())


def list_runs(folder: Path | str) -> list[dict[str, Any]]:
    """The result folders below a folder, newest first: run, created, data, methods, headline."""
    if not Path(folder).is_dir():
        remedy = similar_path(Path(folder)) or ": give one with result folders"
        raise IsthmusError(f"there is no folder {folder}{remedy}")
    found = []
    for path in sorted(Path(folder).rglob(result_files.RESULTS)):
        run = str(path.parent)
        try:
            results = read_results(path.parent)
            rows = _rows(run, results)
        except IsthmusError:
            found.append({"run": run, "created": "", "data": "", "methods": [], "headline": "cannot be read"})
            continue
        methods = list(dict.fromkeys(row["of"] for row in rows))
        data = wording.data_name(results.study.get("data"))
        headline = _headline(rows)
        found.append({"run": run, "created": results.created, "data": data, "methods": methods, "headline": headline})
    return sorted(found, key=lambda row: row["created"], reverse=True)


def _rows(run: str, results: ResultsFile) -> list[dict[str, Any]]:
    with expected_results([run]):
        return _rows_of(run, results)


def _rows_of(run: str, results: ResultsFile) -> list[dict[str, Any]]:
    study, search = results.study, results.search
    measured = next((each.metric for each in results.runs if each.metric), "")
    judged_by = str(study.get("task", {}).get("metric") or measured)
    hidden = search.unchosen if search is not None else set()
    whole: dict[str, Any] = {}
    for part, value in study.items():
        if part in _NOT_COMPARED:
            continue
        whole |= _flat(value, f"{part}.") if isinstance(value, Mapping) else {part: value}
    if results.fingerprint is not None:
        whole[f"{_CONTENT}, seed {results.fingerprint.seed}"] = results.fingerprint.digest
    listed = {str(table.get("label") or table.get("name")): table for table in study.get("methods", [])}
    values = {each.label: (each.of, each.values) for each in search.tried} if search is not None else {}
    rows = []
    for method in dict.fromkeys(each.method for each in results.runs if each.method not in hidden):
        scores = {score.metric: score for score in results.summary if score.method == method}
        order = [(split, each) for split in ("test", "val") for each in (judged_by, *METRICS)]
        split, name = next(((split, each) for split, each in order if f"{split}_{each}" in scores), ("", ""))
        test = scores.get(f"{split}_{name}") or next(iter(scores.values()), None)
        ranked_by = judged_by if f"val_{judged_by}" in scores else name  # test items of one class may lack it
        judged = scores.get(f"val_{ranked_by}")
        of, varied = values.get(method, (method, {}))
        options = {**_flat(listed.get(of, {})), **varied}
        rows.append(
            {
                "run": run,
                "data": wording.data_name(study.get("data")),
                "method": method,
                "of": str(listed.get(of, {}).get("name", of)),
                "own": list(options),
                "varied": list(varied),
                "tables": list(study),
                "seeds": len({each.seed for each in results.runs if each.method == method}),
                "metric": test.metric if test else "",
                "mean": test.mean if test else None,
                "std": test.std if test else None,
                "text": _text(test),
                "validation": judged.mean if judged else None,
                "ranked_by": ranked_by,
                "options": {**whole, **{key: each for key, each in options.items() if key not in ("name", "label")}},
            }
        )
    return rows


def _text(score: Score | None) -> str:
    """A score with its unit and its metric."""
    if score is None:
        return "–"
    return f"{score.text}{' %' if wording.percent(score.metric) else ''} {wording.metric_name(score.metric)}"


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return found


def _headline(rows: list[dict[str, Any]]) -> str:
    """The method that is best on validation data, with its test metric."""
    known = {row["method"]: row for row in rows}
    ranked = best_first({name: row["validation"] for name, row in known.items()}, rows[0]["ranked_by"] if rows else "")
    return ", ".join(f"{name} {known[name]['text']}" for name in [*ranked, *known][:1])
