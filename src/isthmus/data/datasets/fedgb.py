"""FedGB: graphs with natural clients, as the benchmark releases them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from isthmus.data.datasets.public import PublicDataSet, data_root
from isthmus.data.party import Party
from isthmus.data.pool import Pool
from isthmus.data.schema import Schema

MANIFEST = "fedgb_manifest.json"


class _Graphs:
    """What the release's class for many graphs becomes here: an object with its fields, of which `graphs` is read."""

    graphs: list[Data]


class FedGb(PublicDataSet):
    """A variant of FedGB, whose clients are natural: hospitals, banks, countries, providers of data.

    The format is schema 1.0 of github.com/SuperYeYu/FedGB (`DATASETS.md`, `fedgb/data/schema.py`): in the folder
    `datasets/AML-HI` of the released archive are `fedgb_manifest.json` and, below `distrib`, the files
    `data_0.pt`, `data_1.pt`, ... and the masks `<task>/default_split/train_0.pt`, ... Put that folder into the data
    root as `fedgb/AML-HI`. The files are pickles, of which only tensors, plain values and PyG's graphs are read; no
    code of theirs runs. Clients are the parties, so the cut is `given`.

    Features of the nodes of one type are filled up with zeros to those of the widest type, as released. A label whose
    `y_mask` is false is missing. Edges are read as released, in the files of the clients.
    """

    name: ClassVar[str] = "fedgb"
    natural: ClassVar[bool] = True
    folder: ClassVar[str] = "fedgb"
    url: ClassVar[str] = "https://drive.google.com/drive/folders/1EoSEs8UYkjR4Ve2RDqYxwbE-6pO9y9K7"

    title: str = Field("AML-HI", pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]*$")  # type: ignore[misc]
    """The variant, as the release's folder is called."""

    def raw_folder(self) -> Path:
        return data_root() / self.folder / self.title

    def required_files(self) -> Sequence[str]:
        return (MANIFEST,)

    def download(self, folder: Path) -> None:
        raise ValueError("the archive is in a folder of Google Drive")

    def load(self, seed: int) -> Pool:
        with self.published_files() as raw:
            parties = tuple(_parties(raw))
        y = torch.cat([party.graph.y for party in parties])
        classes = y.size(1) if y.dim() == 2 else 1 if y.is_floating_point() else int(y.max()) + 1
        return Pool(None, classes, parties=parties)


def _parties(raw: Path) -> Iterator[Party]:
    manifest = json.loads((raw / MANIFEST).read_text(encoding="utf-8"))
    if manifest.get("schema_version") != "1.0":
        raise ValueError(f"{MANIFEST} has schema_version {manifest.get('schema_version')}; 1.0 is known")
    level, task = str(manifest["level"]), str(manifest["task"])
    if level not in ("homo_subgraph", "hetero_subgraph", "graph"):
        raise ValueError(f"{MANIFEST} has level {level}; homo_subgraph, hetero_subgraph and graph are known")
    folder = _partition(raw, manifest)
    files = [folder / f"data_{at}.pt" for at in range(int(manifest["num_clients"]))]
    schema = None
    if level == "hetero_subgraph":
        schema = Schema.of([_typed(_read(path), {}, path) for path in files], raw.name)
    for at, path in enumerate(files):
        split = folder / task / "default_split"
        masks = {name: _read(split / f"{name}_{at}.pt") for name in ("train", "val", "test")}
        if wrong := next((name for name, mask in masks.items() if not isinstance(mask, Tensor)), None):
            raise ValueError(f"{wrong}_{at}.pt is no tensor")
        payload = _read(path)
        if level == "graph":
            yield _of_graphs(f"client-{at}", payload, masks, path)
        elif schema is not None:
            yield Party.of_graph(f"client-{at}", _typed(payload, masks, path), schema=schema)
        else:
            graph = _plain(payload, path)
            graph.update(_known(masks, graph.y))
            yield Party.of_graph(f"client-{at}", graph, ids=_ids(payload))


def _partition(raw: Path, manifest: Mapping[str, Any]) -> Path:
    """The folder of the clients' files: the one that the manifest names, or the only one."""
    found = sorted(path for path in (raw / "distrib").iterdir() if path.is_dir())
    named = [path for path in found if path.name == manifest.get("processed_partition", path.name)]
    if len(named) != 1:
        raise ValueError(f"distrib has {len(named)} folders of clients; expected one")
    return named[0]


def _read(path: Path) -> Any:
    """What a file has, if it is tensors, plain values and PyG's graphs."""
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage

    known: list[Any] = [Data, DataEdgeAttr, DataTensorAttr, BaseStorage, EdgeStorage, GlobalStorage, NodeStorage]
    with torch.serialization.safe_globals([*known, (_Graphs, "fedgb.data.fgl_graph_dataset.FGLGraphDataset")]):
        return torch.load(path, map_location="cpu", weights_only=True)


def _plain(payload: Any, path: Path) -> Data:
    if not isinstance(payload, Data) or any(payload.get(name) is None for name in ("x", "edge_index", "y")):
        raise ValueError(f"{path.name} is no graph with x, edge_index and y")
    more = {"edge_attr": payload.edge_attr} if payload.get("edge_attr") is not None else {}
    y = payload.y.squeeze()
    return Data(
        x=payload.x.float(), edge_index=payload.edge_index.long(), y=y if y.is_floating_point() else y.long(), **more
    )


def _known(masks: Mapping[str, Tensor], y: Tensor) -> dict[str, Tensor]:
    """The masks as attributes of a graph, without nodes that have no class."""
    return {f"{name}_mask": mask & (y >= 0) for name, mask in masks.items()}


def _ids(payload: Data) -> Tensor | None:
    """The ids of the nodes in the graph of all clients, where the file has a different one for each."""
    names = payload.get("global_map")
    if isinstance(names, Mapping):
        names = [names.get(at) for at in range(int(payload.num_nodes or 0))]
    try:
        ids = torch.as_tensor(names).long().view(-1)
    except (TypeError, ValueError, RuntimeError):
        return None
    return ids if ids.unique().numel() == payload.num_nodes else None


def _typed(payload: Any, masks: Mapping[str, Tensor], path: Path) -> HeteroData:
    """A client's graph of several types; the release has all nodes in one matrix, and types by number."""
    flat = _plain(payload, path)
    names, kinds = payload.get("hetero_node_types"), payload.get("hetero_edge_types")
    if not names or not kinds or payload.get("target_node_type") not in names:
        raise ValueError(f"{path.name} does not name its types: hetero_node_types, hetero_edge_types, target_node_type")
    graph, place = HeteroData(), torch.zeros(flat.x.size(0), dtype=torch.long)
    for at, name in enumerate(names):
        own = payload.node_type == at
        place[own] = torch.arange(int(own.sum()))
        graph[name].x = flat.x[own]
        if name == payload.target_node_type:
            graph[name].y = flat.y[own]
            graph[name].update(_known({split: mask[own] for split, mask in masks.items()}, flat.y[own]))
    for at, kind in enumerate(kinds):
        edges = flat.edge_index[:, payload.edge_type == at]
        for end, name in zip(edges, (kind[0], kind[2]), strict=True):
            if bool((payload.node_type[end] != names.index(name)).any()):
                raise ValueError(f"{path.name}: edges {', '.join(kind)} end at nodes of other types")
        graph[tuple(kind)].edge_index = place[edges]
    return graph


def _of_graphs(name: str, payload: Any, masks: Mapping[str, Tensor], path: Path) -> Party:
    found = getattr(payload, "graphs", None)
    if not isinstance(payload, _Graphs) or not found:
        raise ValueError(f"{path.name} has no graphs")
    graphs = []
    for each in found:
        graph = _plain(each, path)
        if graph.y.is_floating_point():
            y = graph.y.view(1, -1)
            missing = each.get("y_mask")
            graph.y = y if missing is None else y.masked_fill(~missing.bool().view_as(y), torch.nan)
        else:
            graph.y = graph.y.view(-1)[:1]
        graphs.append(graph)
    return Party.of_graphs(name, graphs, train=masks["train"], val=masks["val"], test=masks["test"])
