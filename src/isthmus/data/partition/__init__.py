"""Ways to cut a pool into parties, by the nodes of one graph or by many small graphs."""

from isthmus.data.partition.base import Partition as Partition
