"""Graphs that methods made are listed with their sizes."""

from __future__ import annotations

import pytest
import torch
from result_folders import Build, Page

from isthmus.errors import IsthmusError
from isthmus.report.report import write_report
from isthmus.result_files import write_graph


def test_graphs_that_methods_made_are_listed(build: Build) -> None:
    folder = build()
    graph = {"x": torch.ones(5, 3), "y": torch.tensor([0, 0, 0, 2, 2]), "edge_index": torch.tensor([[0, 1], [1, 2]])}
    write_graph(folder / "graphs" / "fedavg-1", {**graph, "edge_weight": torch.ones(2)})
    page = Page(write_report([folder]))
    assert ["fedavg", "1", "5", "2", "3", "3, 0, 2"] in page.rows
    assert "Graphs made" not in Page(write_report([build("none")])).text
    (folder / "graphs" / "fedavg-1" / "nodes.safetensors").write_bytes(b"")
    with pytest.raises(IsthmusError, match="no readable graph in"):
        write_report([folder])
