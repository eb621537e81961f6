"""Graphs that methods make, as files: a condensed graph goes out into the world without the parties' ones."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor
from torch_geometric.data import Data

from isthmus import store
from isthmus.errors import IsthmusError

NODES, EDGES = "nodes.safetensors", "edges.parquet"


def write_graph(folder: Path, graph: Mapping[str, Tensor]) -> None:
    """Write a graph: features and classes of its nodes in one file, its weighted edges in another."""
    import pyarrow as pa
    from pyarrow import parquet

    source, target = graph["edge_index"].tolist()
    columns = {"source": source, "target": target, "weight": graph["edge_weight"].tolist()}
    kinds = {"source": pa.int64(), "target": pa.int64(), "weight": pa.float32()}
    table = pa.table({name: pa.array(values, kinds[name]) for name, values in columns.items()})
    store.write(folder / NODES, save({name: graph[name].detach().cpu().contiguous() for name in ("x", "y")}))
    store.write_with(folder / EDGES, partial(parquet.write_table, table))


def load_graph(folder: Path | str) -> Data:
    """A graph that a method made, `graphs/METHOD-SEED` of a result folder, for any PyG model.

    >>> import tempfile
    >>> graph = {"x": torch.eye(2), "y": torch.tensor([0, 1]), "edge_index": torch.tensor([[0], [1]])}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_graph(Path(folder), {**graph, "edge_weight": torch.tensor([0.5])})
    ...     load_graph(folder)
    Data(x=[2, 2], edge_index=[2, 1], y=[2], edge_weight=[1])
    """
    from pyarrow import ArrowException, parquet

    folder = Path(folder)
    try:
        nodes: dict[str, Any] = load_file(folder / NODES)
        edges = parquet.read_table(folder / EDGES).to_pydict()
        index = torch.tensor([edges["source"], edges["target"]], dtype=torch.long)
        weight = torch.tensor(edges["weight"], dtype=torch.float32)
        graph = Data(x=nodes["x"], edge_index=index, y=nodes["y"], edge_weight=weight)
        graph.validate()
        return graph
    except (OSError, KeyError, TypeError, ValueError, SafetensorError, ArrowException) as error:
        raise IsthmusError(
            f"no readable graph in {folder}: give graphs/METHOD-SEED of a folder that isthmus run wrote"
        ) from error
