"""Embeddings in two dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.manifold import TSNE


def tsne(z: NDArray[Any]) -> NDArray[np.float32]:
    """Places of embeddings `[items, width]` by t-SNE, which keeps neighbours together, `[items, 2]`; zeros where there
    are too few to have neighbours."""
    if len(z) < 4:
        return np.zeros((len(z), 2), dtype=np.float32)
    found = TSNE(random_state=0, init="pca", perplexity=min(30.0, (len(z) - 1) / 3)).fit_transform(z)
    return np.asarray(found, dtype=np.float32)
