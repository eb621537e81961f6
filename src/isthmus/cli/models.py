"""Commands that use a trained model: predict, embed, export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.cli.common import Import, use_one_thread
from isthmus.cli.listing import DATA_SETS, METHODS, complete
from isthmus.errors import IsthmusError
from isthmus.own_code import import_files

if TYPE_CHECKING:
    from isthmus.study.models import TrainedModel

Run = Annotated[Path, typer.Argument(help="Result folder, or the kit of a party of a federation.")]
Data = Annotated[
    str,
    typer.Option(
        help="A party folder, a folder of party folders, or the name of a data set.", autocompletion=complete(DATA_SETS)
    ),
]
Out = Annotated[Path, typer.Option(help="File to write: .parquet or .csv.")]
MethodName = Annotated[
    str | None,
    typer.Option("--method", help="Whose model; needed if there are several.", autocompletion=complete(METHODS)),
]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of the run; needed if there are several.")]
Party = Annotated[str | None, typer.Option(help="The party whose personal or group model is used.")]
Key = Annotated[Path | None, typer.Option(help="File with the key that the parties share.")]


def predict_command(
    run: Run,
    data: Data,
    out: Out,
    method: MethodName = None,
    seed: Seed = None,
    party: Party = None,
    key: Key = None,
    import_: Import = None,
) -> None:
    """Predict the items of new data with a trained model: a row for each, with its id and scores."""
    _write(run, data, out, method, seed, party, import_, lambda model: model.predict(data, key=key))


def embed_command(
    run: Run,
    data: Data,
    out: Out,
    method: MethodName = None,
    seed: Seed = None,
    party: Party = None,
    key: Key = None,
    import_: Import = None,
) -> None:
    """Embed the items of new data with a trained model: a row for each, with its id."""
    _write(run, data, out, method, seed, party, import_, lambda model: model.embed(data, key=key))


def export_command(
    run: Run,
    out: Annotated[Path, typer.Option(help="File to write, such as model.pt2 or model.onnx.")],
    format_: Annotated[
        str | None,
        typer.Option("--format", help="torch (of torch.export) or onnx; by default, as the file's name ends."),
    ] = None,
    method: MethodName = None,
    seed: Seed = None,
    party: Party = None,
    import_: Import = None,
) -> None:
    """Write a trained model as a program that runs without Isthmus."""
    from isthmus.study.export import export_model
    from isthmus.study.model_files import load_model

    import_files(import_ or ())
    _check_spares(out, run)
    model = load_model(run, method, seed=seed, party=party)
    export_model(model, out, format_)
    for note in model.about:
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"model in {out}")


def _check_spares(out: Path, *folders: Path | str) -> None:
    """Refuse to replace a file of the run or of the data, which would be lost."""
    for folder in folders:
        if out.exists() and out.resolve().is_relative_to(Path(folder).expanduser().resolve()):
            raise IsthmusError(f"--out is {out}, a file of {folder} that would be lost: choose another file")


def _write(
    run: Path,
    data: Path | str,
    out: Path,
    method: str | None,
    seed: int | None,
    party: str | None,
    imports: Sequence[Path] | None,
    table_of: Callable[[TrainedModel], Any],
) -> None:
    from isthmus.study.model_files import load_model
    from isthmus.study.models import TABLES, write_predictions

    use_one_thread()
    import_files(imports or ())
    if out.suffix.lower() not in TABLES:
        raise IsthmusError(f"--out is {out}: give a file that ends in {' or '.join(TABLES)}")
    _check_spares(out, run, data)
    model = load_model(run, method, seed=seed, party=party)
    table = table_of(model)
    write_predictions(out, table)
    for note in [*model.about, *model.notes]:
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"{table.num_rows:,} rows in {out}")
