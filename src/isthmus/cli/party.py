"""Commands for party folders: check, counts, new, export, key; and for what a party disclosed: ledger."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.cli.common import Import, Json
from isthmus.errors import Errors, IsthmusError
from isthmus.own_code import import_files

if TYPE_CHECKING:
    from isthmus.data.folder.problems import Problem

app = typer.Typer(name="party", help="Make, check and export party folders.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="A party folder, or a folder of them.")]
New = Annotated[Path, typer.Argument(help="The folder to write.")]
Force = Annotated[bool, typer.Option("--force", help="Replace party folders that exist.")]


@app.command()
def check(
    folder: Folder,
    key: Annotated[Path | None, typer.Option(help="File with the key that the parties share.")] = None,
    as_json: Json = False,
) -> None:
    """List everything that is wrong with party folders; the exit code is 1 if one cannot be used."""
    from isthmus.data.folder.loading import check_folders
    from isthmus.data.ids import read_hashing
    from isthmus.deploy.limits import limit_problems

    contents, problems = check_folders(folder, read_hashing(key))
    for path, each in contents.items():
        problems[path] += limit_problems(each.settings.limits)
    if as_json:
        typer.echo(json.dumps({str(each): [vars(one) for one in found] for each, found in problems.items()}))
    else:
        _print(problems)
    if any(problem.severe for found in problems.values() for problem in found):
        raise typer.Exit(1)
    if not as_json:
        for each in contents.values():
            typer.echo(f"{each.settings.name}: {each.summary()}")


@app.command()
def counts(
    folder: Folder,
    out: Annotated[Path | None, typer.Option(help="File to write; by default, standard output.")] = None,
) -> None:
    """Count what party folders hold, as JSON for isthmus advise; read it before you send it on."""
    from isthmus import store
    from isthmus.advice.counts import Counts, to_json
    from isthmus.data.folder.loading import read_folders

    text = to_json([Counts.of(each) for each in read_folders(folder)[0]])
    if out is None:
        typer.echo(text)
        return
    store.write(out, f"{text}\n")
    typer.echo(f"counts in {out}")


@app.command()
def new(
    folder: New,
    nodes: Annotated[
        Path | None, typer.Option(help="Table of nodes, CSV or Parquet; or a pattern, a * for the name.")
    ] = None,
    edges: Annotated[Path | None, typer.Option(help="Table of edges, CSV or Parquet.")] = None,
    graphs: Annotated[Path | None, typer.Option(help="Table of graphs, if whole graphs are classified.")] = None,
    smiles: Annotated[Path | None, typer.Option(help="CSV of molecules instead of all tables.")] = None,
    tables: Annotated[
        list[Path] | None,
        typer.Option(
            help="Several tables that refer to each other: a folder, a file, a DuckDB or SQLite file; repeat for more."
        ),
    ] = None,
    as_edges: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE", help="Of --tables one whose rows are edges between two rows; repeat for more."),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the party; by default, the folder's name.")] = "",
    id_: Annotated[str | None, typer.Option("--id", help="Column of the nodes' ids.")] = None,
    label: Annotated[str | None, typer.Option(help="Column of labels; with --tables, TABLE.COLUMN.")] = None,
    split: Annotated[str | None, typer.Option(help="Column of train, val, test.")] = None,
    graph: Annotated[str | None, typer.Option(help="Column of a node's graph, and of an edge's.")] = None,
    source: Annotated[str | None, typer.Option(help="Column of an edge's source.")] = None,
    target: Annotated[str | None, typer.Option(help="Column of an edge's target.")] = None,
    weight: Annotated[str | None, typer.Option(help="Column of an edge's weight.")] = None,
    owner: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN|TABLE.KEY=COLUMN",
            help="Column of the party that holds the other end of an edge; with --tables, the row of a key, repeat.",
        ),
    ] = None,
    molecule: Annotated[str | None, typer.Option(help="Column of SMILES.")] = None,
    task: Annotated[list[str] | None, typer.Option(help="Column of one task's labels; repeat for more.")] = None,
    classes: Annotated[
        str,
        typer.Option(
            metavar="NUMBER|NAME,NAME,...",
            help="The classes of all parties, if this one lacks some.",
        ),
    ] = "",
    ids: Annotated[
        str | None,
        typer.Option(help="own: ids mean nothing to other parties; shared: the same id is the same node."),
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="Column to leave out; repeat for more.")] = None,
    like: Annotated[Path | None, typer.Option(help="Another party's folder, whose labels and columns to use.")] = None,
    bag: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=WIDTH]", help="Column of lists: positions of entries other than 0; repeat for more."
        ),
    ] = None,
    features: Annotated[list[str] | None, typer.Option(help="Features computed from the edges: degree.")] = None,
    directed: Annotated[bool, typer.Option("--directed", help="Edges go from source to target only.")] = False,
    force: Force = False,
) -> None:
    """Make a party folder from tables and check it; of patterns such as 'in/*/nodes.csv', a folder for each match."""
    if tables:
        other = {
            "--nodes": nodes, "--edges": edges, "--graphs": graphs, "--smiles": smiles, "--id": id_, "--graph": graph,
            "--source": source, "--target": target, "--weight": weight, "--molecule": molecule, "--bag": bag,
            "--features": features, "--directed": directed or None,
        }  # fmt: skip
        if flags := [flag for flag, value in other.items() if value]:
            raise IsthmusError(
                f"--tables finds keys and columns itself: leave out {', '.join(flags)}, and edit party.toml"
            )
        _new_database(folder, tables, label, task, split, classes, ids, as_edges, owner, ignore, like, name, force)
        return
    if as_edges:
        raise IsthmusError("--as-edges names one of several tables: give --tables")
    from isthmus.data.folder.from_tables import (
        SourceTables,
        UnusableFolder,
        create_folder,
        create_folders,
        is_pattern,
    )

    roles = {
        "id": id_, "label": label, "split": split, "graph": graph, "source": source, "target": target,
        "weight": weight, "owner": owner[0] if owner else None, "smiles": molecule,
    }  # fmt: skip
    if source is not None and source == target:
        raise IsthmusError(f"--source and --target are both '{source}': name the two columns of an edge's ends")
    if len(owner or ()) > 1:
        raise IsthmusError("--owner: edges have one column of owners: name it once")
    renamed = {role: column for role, column in roles.items() if column is not None}
    errors, widths = Errors(), dict[str, int | None]()
    for each in sorted(set(features or ()) - {"degree"}):
        errors.found.append(IsthmusError(f"--features {each}: the only features computed from edges are: degree"))
    for each in bag or ():
        with errors.collected():
            column, width = _bag(each)
            widths[column] = width
    origin = SourceTables(
        nodes, edges, graphs, smiles, renamed, task or (), ignore or (), like, directed, _classes(classes),
        bags=widths, degrees=bool(features), ids=ids,
    )  # fmt: skip
    many = is_pattern(origin)
    if many and name:
        errors.found.append(
            IsthmusError("--name: the * of the patterns stands for the parties' names: leave out --name")
        )
    try:
        if many:
            problems = create_folders(folder, origin, force=force, errors=errors)
        else:
            problems = {folder: create_folder(folder, origin, name=name, force=force, errors=errors)}
    except UnusableFolder as unsound:
        _print({at: [each for each in found if each is not unsound.first] for at, found in unsound.problems.items()})
        raise
    _print(problems)
    typer.echo(f"{len(problems) - 1:,} party folders in {folder}" if many else f"party folder in {folder}")


def _new_database(
    folder: Path,
    tables: Sequence[Path],
    label: str | None,
    task: Sequence[str] | None,
    split: str | None,
    classes: str,
    ids: str | None,
    as_edges: Sequence[str] | None,
    owner: Sequence[str] | None,
    ignore: Sequence[str] | None,
    like: Path | None,
    name: str,
    force: bool,
) -> None:
    """Make a party folder of several tables, or one for each match of a pattern."""
    from isthmus.data.folder.from_database import DatabaseSource, create_databases
    from isthmus.data.folder.from_tables import UnusableFolder

    origin = DatabaseSource(
        tables, label or "", task or (), split or "", _classes(classes), ids=ids, edges=as_edges or (),
        owners=owner or (), ignore=ignore or (), like=like,
    )  # fmt: skip
    if origin.is_pattern and name:
        raise IsthmusError("--name: the * of the patterns stands for the parties' names: leave out --name")
    try:
        problems = create_databases(folder, origin, name=name, force=force)
    except UnusableFolder as unsound:
        _print({at: [each for each in found if each is not unsound.first] for at, found in unsound.problems.items()})
        raise
    _print(problems)
    made = f"{len(problems) - 1:,} party folders in {folder}" if origin.is_pattern else f"party folder in {folder}"
    read = folder / next(each.name for each in problems if each != folder) if origin.is_pattern else folder
    typer.echo(f"{made}: read the guesses in {read / 'party.toml'}")


@app.command()
def export(
    folder: New,
    data: Annotated[str, typer.Option(help="Data set (see isthmus datasets).")] = "banks",
    partition: Annotated[str | None, typer.Option(help="Partition (see isthmus partitions).")] = None,
    parties: Annotated[int | None, typer.Option(help="Number of parties.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split and the cut.")] = 0,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any option: data.split=random, partition.beta=0.1, ...")
    ] = None,
    import_: Import = None,
    force: Force = False,
) -> None:
    """Write a named data set, cut into parties, as party folders."""
    from isthmus.data.folder.writing import write_parties
    from isthmus.data.pool import check_no_folder
    from isthmus.options import merge
    from isthmus.study.config import Study, parse_assignments

    check_no_folder(data)
    import_files(import_ or ())
    tables: dict[str, Any] = {"data": {"name": data}}
    tables |= {} if partition is None else {"partition": {"name": partition}}
    tables |= {} if parties is None else {"parties": parties}
    loaded = Study.of(merge(tables, _data_settings(parse_assignments(set_ or [])))).cut_data(seed)
    write_parties(folder, loaded.parties, loaded.classes, force=force)
    typer.echo(f"{len(loaded.parties)} party folders in {folder}")


@app.command()
def key(file: Annotated[Path, typer.Argument(help="The file to write.")]) -> None:
    """Make a key that the parties share and the server never sees: send it to them yourself."""
    from isthmus.data.ids import write_key

    write_key(file)
    typer.echo(f"key in {file}: give it to every party, never to the server")


@app.command()
def ledger(
    kit: Annotated[Path, typer.Argument(help="The party's kit.")],
    head: Annotated[
        list[str] | None,
        typer.Option(help="A head that somebody else holds, as LINES:HASH (results.json has one per run); repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a party disclosed and refused, and check that its ledger is whole; if it is not, say where."""
    from isthmus.deploy.logs import printable
    from isthmus.deploy.party_ledger import FILE, START, Totals, check_head, read_ledger

    path = kit / "state" / FILE
    if not path.exists() and not path.with_suffix(".head").exists():
        raise IsthmusError(f"no ledger in {kit}: give the kit of a party that has joined a federation")
    lines, note = read_ledger(path)
    for each in head or ():
        entries, _, hash_ = each.partition(":")
        if not entries.isdecimal() or len(entries) > 18:
            raise IsthmusError(f"--head is '{each}': give LINES:HASH")
        check_head(lines, int(entries), hash_, path)
    sums = Totals()
    for line in lines:
        sums.add(line)
    last = lines[-1]["hash"] if lines else START
    if as_json:
        typer.echo(json.dumps({"entries": len(lines), "head": last, "totals": sums.rows(), "lines": lines}))
        return
    for row in sums.rows():
        what = f"{row['action']}, {row['verb']}" if row["action"] else "a request"
        how = f"{row['answers']:,} answers, {row['sent']:,} bytes: {row['eyes']}, protection {row['protection']}"
        refused = f"refused {row['refusals']:,} times"
        typer.echo(printable(f"{row['run']} ({row['method']}): {what}: {refused if row['refusals'] else how}"))
    opened = sum(line["event"] == "sum" for line in lines)
    typer.echo(f"helped to open {opened:,} sums")
    if note:
        typer.echo(note, err=True)
    typer.echo(f"{len(lines):,} lines, none changed, removed or moved; head {len(lines)}:{last}")


def _data_settings(table: Mapping[str, Any]) -> Mapping[str, Any]:
    for group in table:
        if group not in ("data", "partition"):
            raise IsthmusError(f"--set {group}: an export has only options data.… and partition.…")
    return table


def _classes(text: str) -> int | list[str]:
    """Read the number of classes, or their names."""
    return int(text or 0) if text.isdecimal() or not text else [name.strip() for name in text.split(",")]


def _bag(text: str) -> tuple[str, int | None]:
    """Read `NAME` or `NAME=WIDTH`."""
    name, equals, width = text.partition("=")
    if equals and not (width.isdecimal() and int(width)):
        raise IsthmusError(f"--bag {text}: give the width as a number, such as --bag {name}=3170")
    return name, int(width) if equals else None


def _print(problems: Mapping[Path, Sequence[Problem]]) -> None:
    """Print problems on standard error, notes last and each once, however many parties have it."""
    from isthmus.data.folder.problems import summarize_notes

    for folder, found in problems.items():
        for each in found:
            if each.severe:
                typer.echo(f"{folder}: {each}", err=True)
    for line in summarize_notes({str(folder): found for folder, found in problems.items()}):
        typer.echo(f"note: {line}", err=True)
