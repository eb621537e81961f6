"""Ways to cut a pool into parties: who holds which node of a graph, or which graph of a pile."""

from isthmus.data.partition.base import Partition as Partition
