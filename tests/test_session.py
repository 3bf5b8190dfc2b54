"""What one session does around a method's round."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

import coterie
from coterie.methods import fedavg
from coterie.sharing.aggregate import mean


def test_the_server_computes_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums and eigenvectors depend on the number of threads, so a round has one."""
    seen: list[int] = []

    def watched(*given: Any) -> Any:
        seen.extend(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
        seen.append(torch.get_num_threads())
        return mean(*given)

    monkeypatch.setattr(fedavg, "mean", watched)
    with threadpool_limits(2):
        torch.set_num_threads(2)
        try:
            list(coterie.rounds(coterie.Experiment(method="fedavg", run={"rounds": 1})))
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(1)
    assert len(seen) > 1
    assert set(seen) == {1}
