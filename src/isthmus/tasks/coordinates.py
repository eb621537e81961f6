"""Embeddings in two dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def tsne(z: NDArray[Any]) -> NDArray[np.float32]:
    """Coordinates `[items, 2]` of embeddings `[items, width]` by t-SNE; zeros for fewer than four items."""
    if len(z) < 4:
        return np.zeros((len(z), 2), dtype=np.float32)
    from sklearn.manifold import TSNE  # slow to import, and only pictures need it

    coordinates = TSNE(random_state=0, init="pca", perplexity=min(30.0, (len(z) - 1) / 3)).fit_transform(z)
    return np.asarray(coordinates, dtype=np.float32)
