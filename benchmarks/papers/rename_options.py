"""Rename study options in the tables of papers and in their results, without running anything again.

    python benchmarks/papers/rename_options.py method.lambda=method.threshold fedgc:method.least=method.min_contributors

A pair renames a dotted option, or a group, in studies, in `option` and values of axes, in `tune.options` and below
`measure`; `PAPER:` or `PAPER/TABLE:` before it limits it. Results keep their runs and get the digests of the renamed
settings. Nothing is written if a setting would differ by more than the renames, or if results are stale. If tables were
edited already, `--before REVISION` compares with those of a git revision.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from isthmus import store
from isthmus.errors import IsthmusError
from isthmus.papers.plan import Table
from isthmus.papers.results import TableResults
from isthmus.papers.shelf import entries

STARTS = {("study",): 1, ("quick",): 1, ("measure",): 0, ("where", "study"): 2, ("where", "measure"): 1}
"""Tables in a file that hold options, and where in the path of a key the option's name begins."""
SEGMENT = r'(?:[\w-]+|"[^"\n]*")'
KEY = rf"{SEGMENT}(?:[ \t]*\.[ \t]*{SEGMENT})*"
TOKEN = re.compile(
    rf'"""[\s\S]*?"""|#[^\n]*|^\[+[ \t]*(?P<head>{KEY})[ \t]*\]+|(?P<key>{KEY})(?=[ \t]*=)|"(?:\\.|[^"\\\n])*"|[{{}}]',
    re.MULTILINE,
)


def renamed(name, renames):
    for old, new in sorted(renames.items(), key=lambda pair: -len(pair[0])):
        if name[: len(old)] == old and not (len(new) > len(old) and name[: len(new)] == new):
            return new + name[len(old) :]
    return name


def renamed_keys(values, renames):
    return {".".join(renamed(tuple(name.split(".")), renames)): value for name, value in values.items()}


def renamed_path(path, renames):
    """Rename a key of a table's file, given with the names of the tables around it."""
    if path[-2:-1] == ("options",):
        return (*path[:-1], *renamed_keys({path[-1]: 0}, renames))
    start = 3 if path[:2] == ("axes", "values") else STARTS.get(path[:1], STARTS.get(path[:2], len(path)))
    return path[:start] + renamed(path[start:], renames)


def renamed_text(text, renames):
    """Rename options in a table's file, and leave the rest of the text as it is."""
    around = [((), ())]  # the header and the inline tables around a key, by old and by new names
    last = around[0]

    def replace(match):
        nonlocal last
        token, key = match[0], match["head"] or match["key"]
        if key:
            old, new = ((), ()) if match["head"] else around[-1]
            path = (*old, *(part.strip('"') for part in re.findall(SEGMENT, key)))
            last = path, renamed_path(path, renames)
            around[:] = [last] if match["head"] else around
            if last[1][: len(new)] != new:
                raise IsthmusError(f"cannot move '{'.'.join(path)}' to another table: edit it, and use --before")
            parts = [part if re.fullmatch(r"[\w-]+", part) else f'"{part}"' for part in last[1][len(new) :]]
            return token if path[len(old) :] == last[1][len(new) :] else token.replace(key, ".".join(parts))
        if token in "{}":
            around.append(last) if token == "{" else around.pop()
        elif last[0] == ("axes", "option") and token.startswith('"'):
            return json.dumps(next(iter(renamed_keys({token[1:-1]: 0}, renames))))
        return token

    return TOKEN.sub(replace, text)


def leaves(value, path, renames):
    if not isinstance(value, dict) or not value:
        return {renamed(path, renames): value}
    return {key: leaf for name in value for key, leaf in leaves(value[name], (*path, name), renames).items()}


def setting(cell, renames):
    """What a cell's digest covers, by new names."""
    tune = cell.tune and (cell.tune.metric, cell.tune.seeds, renamed_keys(cell.tune.options, renames))
    return leaves(cell.study, (), renames), tune, leaves(cell.measure, ("measure",), renames)


def migrated(entry, old, new, renames):
    """Return a table's results for the renamed settings."""
    results, after = TableResults.read(entry.results_path), {cell.name: cell for cell in new.cells()}
    if stale := results.stale(old):
        raise IsthmusError(f"{entry.name}: results of '{stale[0]}' are stale: run it again before renaming")
    for cell in old.cells():
        if (target := after.get(cell.name)) is None or setting(cell, renames) != setting(target, {}):
            raise IsthmusError(f"{entry.name}: '{cell.name}' differs by more than the renames: add the missing pairs")
        if found := results.cells.get(tuple(cell.place.values())):
            found["tuned"] = {json.dumps(renamed_keys(json.loads(k), renames)): v for k, v in found["tuned"].items()}
            found["of"] = target.digest
            for run in (run for run in found["runs"] if "chosen" in run):
                run["chosen"] = renamed_keys(run["chosen"], renames)
    return results


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Rename study options in the tables of papers and their results.")
    parser.add_argument("pairs", nargs="+", metavar="[PAPER[/TABLE]:]OLD=NEW")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent, help="where <paper>/<table>.toml are")
    parser.add_argument("--before", metavar="REVISION", help="git revision of the old tables")
    args = parser.parse_args(arguments)
    pairs = [re.fullmatch(r"(?:([^:=]+):)?([^:=]+)=([^:=]+)", pair) or parser.error(pair) for pair in args.pairs]
    todo, results = {}, {}
    with tempfile.TemporaryDirectory() as scratch:
        before, after = (shutil.copytree(args.folder, Path(scratch, name)) for name in ("before", "after"))
        if args.before:
            packed = subprocess.check_output(["git", "archive", args.before, "."], cwd=args.folder)
            subprocess.run(["tar", "-x", "-C", before], input=packed, check=True)
        for each in entries(args.folder):
            own = [pair for pair in pairs if pair[1] is None or f"{each.name}/".startswith(f"{pair[1]}/")]
            renames = {tuple(pair[2].split(".")): tuple(pair[3].split(".")) for pair in own}
            todo[each] = path, renames = Path(each.paper, f"{each.table}.toml"), renames
            store.write(after / path, renamed_text((after / path).read_text(encoding="utf-8"), renames))
        for each, (path, renames) in todo.items():
            old, new = Table.of_file(before / path, check=False), Table.of_file(after / path)
            results[each] = migrated(each, old, new, renames)
        for each, (path, _) in todo.items():
            store.write(args.folder / path, (after / path).read_text(encoding="utf-8"))
            if each.results_path.exists():
                results[each].write(each.results_path)


if __name__ == "__main__":
    try:
        main()
    except IsthmusError as error:
        sys.exit(f"rename_options: {error}")
