"""FL+HC (docs/methods/flhc.md): FedAvg, one clustering of the updates, FedAvg in each cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score, pairwise_distances

from coterie.methods import FLHC, FedAvg
from tests.federated import planted, train
from tests.survival import SIZES


@pytest.mark.medium
@pytest.mark.parametrize("distance", ["l1", "l2", "cosine"])
@pytest.mark.parametrize("linkage", ["single", "complete", "average"])
def test_flhc_7_3_clusters_as_agglomerative_clustering_does(distance: Any, linkage: Any) -> None:
    federation = planted("feature", 4, sizes=SIZES)
    fedavg = train(FedAvg(), federation, 2)
    updates = (fedavg.asked[1][0][1].models - fedavg.states[1].model).double().numpy()
    apart = pairwise_distances(updates, metric=distance)
    for quantile in (0.1, 0.3, 0.6):
        threshold = float(np.quantile(apart, quantile))
        theirs = AgglomerativeClustering(
            n_clusters=None, metric="precomputed", linkage=linkage, distance_threshold=threshold
        ).fit_predict(apart)
        method = FLHC(after=1, distance=distance, linkage=linkage, threshold=threshold)
        run = train(method, federation, 2)
        assert adjusted_rand_score(theirs, run.groups()) == 1.0
