"""Writes the tables of options into the pages, between markers such as `<!-- methods -->` and `<!-- /methods -->`.

The tables come from the typed fields. Run `python docs/make_tables.py` after changing an option; with `--check`
nothing is written, and pages that would change are an error.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from isthmus.advice.methods import ROWS, leaving
from isthmus.audit.base import Audit
from isthmus.data.partition import Partition
from isthmus.data.pool import DataSet
from isthmus.methods.base import Method
from isthmus.methods.fgcl import FGCL
from isthmus.nn.encoders import Encoder
from isthmus.options import Registered
from isthmus.papers import shelf
from isthmus.papers.claims import seeds_text
from isthmus.papers.leaderboard import board_lines, leaderboard, mean_text
from isthmus.papers.markdown import choice_text, missing_runs, verdict_text, verdicts
from isthmus.papers.results import Runs, count_older, count_runs, early_runs, figure_values, means
from isthmus.papers.shelf import ShelfEntry
from isthmus.tasks.base import Task

HERE = Path(__file__).parent
GUIDE = HERE.parent / "benchmarks" / "papers"
KINDS: dict[str, tuple[str, type[Registered]]] = {
    "methods": ("methods.md", Method),
    "encoders": ("models.md", Encoder),
    "datasets": ("data.md", DataSet),
    "audits": ("audit.md", Audit),
    "tasks": ("studies.md", Task),
    "partitions": ("partitions.md", Partition),
}
"""Marker: the page it is on, and what the table lists."""
CLAIMS = {
    "holds": "hold", "holds in part": "hold in part", "fails": "fail", "points to": "point to",
    "points to in part": "point to in part", "points against": "point against", "may be luck": "may be luck",
    "may be luck in part": "may be luck in part", "no verdict": "have no verdict", "not run": "not run",
}  # fmt: skip


def entries(base: type[Registered]) -> list[dict[str, Any]]:
    """What comes with Isthmus, without what others have registered in this process."""
    return [kind.describe() for kind in base.known().values() if kind.__module__.startswith("isthmus.")]


def tables(base: type[Registered]) -> str:
    """Names and summaries, the options that most have in common, and the others with whose they are."""
    listed = entries(base)
    found = _sized(listed) if base is DataSet else [_named(listed)]
    common, own = [], []
    for row, names in _options(listed).items():
        if 2 * len(names) >= len(listed):
            without = [each["name"] for each in listed if each["name"] not in names]
            common.append((*row, "all" if not without else f"all but {code(*without)}"))
        else:
            own.append((code(*names), *row))
    head = ("option", "default", "values", "meaning")
    if common:
        found += ["Options in common:", table((*head, "of"), common)]
    if own:
        title = "Options of their own, and defaults that differ:" if common else "Options:"
        found += [title, table((base.kind, *head), own)]
    return "\n\n".join(found)


def _named(listed: Sequence[Mapping[str, Any]]) -> str:
    return table(("name", "what it is"), [(code(each["name"]), each["summary"]) for each in listed])


def _sized(listed: Sequence[Mapping[str, Any]]) -> list[str]:
    """Data sets whose size the options or the files decide on, and those that have always the same."""
    counts = ("graphs", "nodes", "edges", "features", "classes")
    rows = []
    for each in listed:
        if "sizes" in each:
            figures = [f"{each['sizes'][count]:,}" if each["sizes"][count] else "" for count in counts]
            what = (DataSet.named(each["name"]).__doc__ or "").strip().split("\n")[0]  # the summary repeats the sizes
            rows.append((code(each["name"]), "graph" if each["sizes"]["graphs"] else "node", *figures, what))
    rows.sort(key=lambda row: row[1] == "graph")
    open_ended = _named([each for each in listed if "sizes" not in each])
    return [open_ended, "Public ones and their sizes:", table(("name", "level", *counts, "what it is"), rows)]


def parts() -> dict[str, tuple[str, Callable[[], str]]]:
    """By marker the page it is on, and what makes the text there."""
    made = {marker: (page, partial(tables, base)) for marker, (page, base) in KINDS.items()}
    return {
        **made,
        "advice": ("which.md", advice),
        "papers": ("papers.md", papers),
        "what works": ("secret-edges.md", what_works),
        "rates": ("defaults.md", rates),
        "largest losses": ("defaults.md", largest_losses),
        "by encoder": ("defaults.md", partial(against_tuned, "guide/defaults-encoders")),
        "by method": ("defaults.md", partial(against_tuned, "guide/defaults-methods")),
        "puzzle": ("fedavg-on-cora.md", partial(puzzle, "fgl/puzzle")),
        "path": ("fedavg-on-cora.md", partial(puzzle, "fgl/path")),
        "photo": ("fedavg-on-cora.md", partial(puzzle, "fgl/photo")),
        "curves": ("fedavg-on-cora.md", curves),
        "leaderboard": ("leaderboard.md", partial(boards, "fgl/nodes")),
        "leaderboard of graphs": ("leaderboard.md", partial(boards, "fgl/graphs")),
        "published": ("leaderboard.md", published),
    }


def written(text: str, page: str) -> str:
    """The text of a page with its tables made anew."""
    for marker, (home, made) in parts().items():
        if home == page:
            between = re.compile(f"(<!-- {marker} -->\n).*?(<!-- /{marker} -->)", re.DOTALL)
            text, count = between.subn(lambda found, of=made: f"{found[1]}\n{of()}\n\n{found[2]}", text)
            if count != 1:
                raise ValueError(f"{page}: the markers of '{marker}' are there {count} times, once is right")
    return text


def advice() -> str:
    """The settings, the methods for each, and the results of the guide's studies on generated data."""
    rows = []
    for each in ROWS:
        name = each.study or each.setting
        study = shelf.entry(GUIDE, f"guide/{name}")
        figure = next(iter(study.plan.figures))
        names = [kind.name for kind in each.methods()]
        among = {"local", "centralized", *names} if each.study else None  # it is of another row
        result = f"`guide/{name}`, {figure}: {_found(study, figure, among)}"
        rows.append((each.has, code(*names), leaving(each.methods()), "; ".join(filter(None, (result, each.caveat)))))
    return table(("what parties have", "methods", "what leaves, besides sums of model weights", "result"), rows)


def papers() -> str:
    """Of every table how much was run, and what became of its claims."""
    rows = []
    for each in shelf.entries(GUIDE):
        runs, of = count_runs(each.plan, each.results)
        judged = verdicts(each.plan, each.results)
        words = []
        for word, said in CLAIMS.items():
            if alike := [one for one in judged if one.kind == word]:
                seeds = [place.seeds for one in alike for place in one.places]
                words.append(f"{len(alike)} {said}{f' ({seeds_text(seeds)})' if seeds else ''}")
        older = count_older(each.plan, each.results)
        count = f"{runs:,} of {of:,}{f', {older:,} by older code' if older else ''}"
        rows.append((f"`{each.name}`", each.plan.title, count, ", ".join(words)))
    return table(("table", "what it shows", "runs", "claims"), rows)


SECRET_EDGES = (
    ("At a given total epsilon", "fgcl/budgets", ("data", "epsilon")),
    ("What the contrast alone is worth", "fgcl/controls", ("data",)),
    ("The method as printed", "fgcl/literal", ("data",)),
    ("The paper's table III, one split", "fgcl/table3", ("encoder", "data")),
    ("Post-processing", "fgcl/post", ("data", "method")),
)
"""What the page on secret edges shows: a title, a table, and the axes that have lines."""


def what_works() -> str:
    """What was run about secret edges, question by question, and what came of the claims."""
    parts = []
    for title, name, lines in SECRET_EDGES:
        study = shelf.entry(GUIDE, name)
        parts += [f"### {title}", f"{study.plan.title}: `{name}`."]
        parts += [_spent(study)] if name == "fgcl/literal" else []
        parts.append(pooled(study, lines))
        if count_runs(study.plan, study.results)[0]:
            parts.append(missing_runs(study.plan, study.results))
            if older := count_older(study.plan, study.results):
                parts.append(f"Older code made {older:,} of these runs.")
        file = code(f"benchmarks/papers/{study.paper}/results/{study.table}.json")
        parts += [choice_text(each, study.plan, study.results, file) for each in study.plan.choices]
        parts.append(_claims(study))
    return "\n\n".join(part for part in parts if part)


def rates() -> str:
    """The local learning rate of each encoder."""
    by_rate: dict[float, list[str]] = {}
    for name, kind in Encoder.known().items():
        if kind.__module__.startswith("isthmus."):
            by_rate.setdefault(kind.lr, []).append(name)
    rows = [(code(*names), f"{lr:g}") for lr, names in sorted(by_rate.items(), reverse=True)]
    return table(("encoder", "`local.lr` on nodes"), rows)


def largest_losses() -> str:
    """By what is trained: how many points of validation accuracy each rate loses at most to the best one of a cut."""
    study = shelf.entry(GUIDE, "guide/defaults-rates")
    found: dict[str, dict[str, dict[str, float]]] = {}
    for (cut, trained, rate), mean in means(study.plan, study.results, next(iter(study.plan.figures))).items():
        found.setdefault(trained, {}).setdefault(cut, {})[rate] = mean
    rows = []
    for trained, cuts in found.items():
        tried = [rate for rate in next(iter(cuts.values())) if all(rate in each for each in cuts.values())]
        losses = {rate: max(max(each.values()) - each[rate] for each in cuts.values()) for rate in tried}
        least = min(losses.values())
        shown = [f"**{rate}: {loss:.1f}**" if loss == least else f"{rate}: {loss:.1f}" for rate, loss in losses.items()]
        rows.append((trained, str(len(cuts)), ", ".join(shown)))
    return table(("trained", "cuts", "rate: points lost at most"), rows)


def against_tuned(name: str) -> str:
    """A line per place: accuracy with the default rate and with the tuned one, means over seeds, in percent."""
    study = shelf.entry(GUIDE, name)
    figure = next(iter(study.plan.figures))
    found: dict[tuple[str, ...], dict[str, Runs]] = {}
    for cell in study.plan.cells():
        *place, rate = cell.place.values()
        found.setdefault(tuple(place), {})[rate] = study.results.runs(cell)
    rows = []
    for place, runs in found.items():
        seeds = {run["seed"] for run in runs["default"]} & {run["seed"] for run in runs["tuned"]}
        if not seeds:
            rows.append((*place, "", "", "", "", "0"))
            continue
        both = [[run for run in runs[rate] if run["seed"] in seeds] for rate in ("default", "tuned")]
        default, tuned = (statistics.fmean(figure_values(study.plan, each, figure)) for each in both)
        chosen = f"{both[1][0]['chosen']['method.local.lr']:g}"
        rows.append((*place, f"{default:.1f}", f"{tuned:.1f}", f"{default - tuned:+.1f}", chosen, str(len(seeds))))
    axes = [axis.name for axis in study.plan.axes[:-1]]
    return table((*axes, "default", "tuned", "difference", "tuned rate", "seeds"), rows)


def puzzle(name: str) -> str:
    """What each change of the protocol does to FedAvg and to training alone, and what came of the claims."""
    study = shelf.entry(GUIDE, name)
    cells = {tuple(cell.place.values()): study.results.runs(cell) for cell in study.plan.cells()}
    rows = []
    for change in study.plan.axes[0].changes():
        shown = []
        for method in ("fedavg", "local"):
            runs = cells.get((change, method), [])
            number = study.plan.published_value("accuracy", {"change": change, "method": method})
            shown += [_spread(figure_values(study.plan, runs, "accuracy")), "" if number is None else f"{number:.1f}"]
        worst = _spread(figure_values(study.plan, cells.get((change, "fedavg"), []), "worst"))
        rows.append((change, *shown, worst, str(len(cells.get((change, "fedavg"), [])))))
    head = ("change", "FedAvg", "published", "alone", "published", "FedAvg, worst party", "seeds")
    return "\n\n".join(filter(None, (table(head, rows), missing_runs(study.plan, study.results), _claims(study))))


AT_ROUNDS = (1, 5, 10, 20, 40, 60, 80, 100, 200, 400)
"""Where the page on FedAvg on Cora shows curves."""


def curves() -> str:
    """Mean test accuracy round by round, of the cells that have curves."""
    study = shelf.entry(GUIDE, "fgl/puzzle")
    rows = []
    for cell in study.plan.cells():
        if found := [dict(run["curves"]["test_accuracy"]) for run in study.results.runs(cell) if "curves" in run]:
            means = [
                f"{100 * statistics.fmean(each[at] for each in found):.1f}" if all(at in each for each in found) else ""
                for at in AT_ROUNDS
            ]
            rows.append((*cell.place.values(), *means))
    return table(("change", "method", *(f"round {at}" for at in AT_ROUNDS)), rows)


def boards(name: str) -> str:
    """The leaderboard of every place of a table that was run, and what was not."""
    study = shelf.entry(GUIDE, name)
    plan, places = study.plan, dict.fromkeys(tuple(cell.place.values())[:-1] for cell in study.plan.cells())
    more = {name: kind.listing.leaves for name, kind in Method.known().items()}
    parts = []
    for place in places:
        rows = leaderboard(plan, study.results, dict(zip((axis.name for axis in plan.axes), place, strict=False)))
        if any(row.values for row in rows):
            head, *lines = board_lines(plan, rows, ("fedavg", "local"), more)
            parts += [f"### {', '.join(place)}", table(head, [(code(line[0]), *line[1:]) for line in lines])]
            if missing := [row.method for row in rows if not row.values]:
                parts.append(f"Not run: {code(*missing)}.")
    return "\n\n".join(filter(None, (*parts, missing_runs(plan, study.results), _claims(study))))


def published() -> str:
    """Methods in FED-PUB's protocol, each beside the figure that was published for it."""
    study = shelf.entry(GUIDE, "fgl/published")
    rows = []
    for cell in study.plan.cells():
        if runs := study.results.runs(cell):
            number = study.plan.published_value("accuracy", cell.place)
            values = figure_values(study.plan, runs, "accuracy")
            beside = ("", "") if number is None else (f"{number:.1f}", f"{statistics.fmean(values) - number:+.1f}")
            rows.append((cell.place["data"], cell.place["method"], mean_text(values, 1), *beside, str(len(runs))))
    shown = table(("data", "method", "ours", "published", "difference", "seeds"), rows)
    return "\n\n".join(filter(None, (shown, missing_runs(study.plan, study.results), _claims(study))))


def _claims(study: ShelfEntry) -> str:
    judged = [each for each in verdicts(study.plan, study.results) if each.kind != "not run"]
    return "\n".join(f"- {verdict_text(each)}" for each in judged)


def _spread(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{deviation}" if values else ""


def pooled(study: ShelfEntry, lines: Sequence[str]) -> str:
    """The headline figure: a line per place on these axes, a column per value of the last axis, means over the others.

    If some columns of a line lack a place, means are over the places that all of them have, if there are any.
    After each mean stand its standard deviation, over the other axes or else over seeds, the number of runs, and how
    many of them chose one of the first rounds.
    """
    last, figure = study.plan.axes[-1], next(iter(study.plan.figures))
    found: dict[tuple[str, ...], dict[str, dict[tuple[str, ...], Runs]]] = {}
    for cell in study.plan.cells():
        if runs := [run for run in study.results.runs(cell) if figure in run["figures"]]:
            key = tuple(cell.place[axis] for axis in lines)
            other = tuple(value for axis, value in cell.place.items() if axis not in (*lines, last.name))
            found.setdefault(key, {}).setdefault(cell.place[last.name], {})[other] = runs
    if not found:
        return "Not run yet."
    columns = [each for each in last.changes() if any(each in cells for cells in found.values())]
    rows = []
    for key, cells in found.items():
        shared = set.intersection(*map(set, cells.values()))
        samples = {name: [runs for at, runs in each.items() if at in (shared or each)] for name, each in cells.items()}
        rows.append((*key, *(_pooled_mean(study, samples.get(each, [])) for each in columns)))
    return table((*lines, *columns), rows)


def _pooled_mean(study: ShelfEntry, samples: Sequence[Runs]) -> str:
    if not samples:
        return ""
    values = [figure_values(study.plan, runs, next(iter(study.plan.figures))) for runs in samples]
    means = [statistics.fmean(each) for each in values]
    spread = means if len(means) > 1 else values[0]
    deviation = f" ± {statistics.stdev(spread):.1f}" if len(spread) > 1 else ""
    early = sum(sum(early_runs(study.plan, runs)) for runs in samples)
    runs = f"{sum(map(len, samples))}{f', {early} early' if early else ''}"
    return f"{statistics.fmean(means):.1f}{deviation} ({runs})"


def _spent(study: ShelfEntry) -> str:
    """What a run of each cell with noise spends, by the plan alone."""
    rows = []
    for cell in study.plan.cells():
        plan = cell.study_for(0)
        (method,) = plan.method_list()
        if isinstance(method, FGCL):
            spent = method.spent_by(method.planned_draws()).to_dict()
            costs = (f"{spent[how]['epsilon']:,.0f}" for how in ("basic", "advanced"))
            beta, local = str(plan.partition["beta"]), method.local
            rows.append((*cell.place.values(), beta, str(method.rounds), f"{local.lr:g}", *costs))
    head = ("sizes of parties, beta", "rounds", "learning rate", "spends, basic composition", "advanced, delta = 1e-5")
    return table((*(axis.name for axis in study.plan.axes), *head), rows)


def _found(study: ShelfEntry, figure: str, among: Collection[str] | None = None) -> str:
    """Means by method, of all methods or of some, for each setting where there are several."""
    settings: dict[str, list[str]] = {}
    for (*others, method), value in means(study.plan, study.results, figure).items():
        where = ", ".join(f"{axis.name}: {name}" for axis, name in zip(study.plan.axes, others, strict=False))
        if among is None or method in among:
            settings.setdefault(where, []).append(f"{method} {value:.1f}")
    return "; ".join(f"({where}) {', '.join(told)}" if where else ", ".join(told) for where, told in settings.items())


def _options(listed: Sequence[Mapping[str, Any]]) -> dict[tuple[str, ...], list[str]]:
    """Options, and the names of those that have them so."""
    found: dict[tuple[str, ...], list[str]] = {}
    for each in listed:
        for option in each["options"]:
            found.setdefault(row(option), []).append(each["name"])
    return found


def row(option: Mapping[str, Any]) -> tuple[str, ...]:
    default = "required" if option["required"] else code(str(option["default"]).lower())
    choice = re.fullmatch(r"Literal\[(.*)\]", option["type"])
    values = choice[1].replace("'", "`") if choice else {"bool": "`true`, `false`"}.get(option["type"], option["type"])
    return code(option["name"]), default, values, option["help"]


def code(*names: str) -> str:
    return ", ".join(f"`{name}`" for name in names)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def renewed(texts: Mapping[Path, str], arguments: Sequence[str], script: str) -> int:
    """Writes the files that are not as they should be; with `--check` names them, and that is an error."""
    old = [path for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in arguments:
        if old:
            sys.stderr.write(f"{', '.join(path.name for path in old)}: run python docs/{script}\n")
        return int(bool(old))
    for path in old:
        path.parent.mkdir(exist_ok=True)
        path.write_text(texts[path], encoding="utf-8")
    return 0


def main(arguments: Sequence[str]) -> int:
    pages = [HERE / page for page in dict.fromkeys(home for home, _ in parts().values())]
    return renewed(
        {path: written(path.read_text(encoding="utf-8"), path.name) for path in pages}, arguments, "make_tables.py"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
