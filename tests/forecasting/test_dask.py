"""The recipe for clusters, on a local one: the same numbers as in one process."""

import numpy as np
import pytest

from examples import series_on_dask


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Dask, about ports and its own deprecations
def test_a_local_cluster_gives_the_numbers_of_one_process():
    distributed = pytest.importorskip("distributed")
    table = series_on_dask.make_data(series=4, months=48)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        found = series_on_dask.forecast_on(client, table, parts=2, horizon=3)
    alone = series_on_dask.forecast_part(table, 3)
    assert found["shop"].tolist() == alone["shop"].tolist() and len(found) == 12
    for column in ("mean", "median", "lower", "upper"):
        np.testing.assert_allclose(found[column], alone[column], rtol=1e-9)
