import numpy as np

from newtongp import datasets


def test_motorcycle_is_the_source():
    x, y = datasets.motorcycle()
    assert x.shape == y.shape == (133,)
    assert x.dtype == y.dtype == np.float64
    np.testing.assert_array_equal([x[0], y[0], x[-1], y[-1]], [2.4, 0.0, 57.6, 10.7])
    np.testing.assert_allclose([x.sum(), y.sum()], [3348.8, -3397.6], rtol=1e-12)
    assert np.all(np.diff(x) >= 0)
    assert np.unique(x).size == 94


def test_motorcycle_is_a_fresh_copy_each_time():
    x, y = datasets.motorcycle()
    x[:] = y[:] = 0.0
    again_x, again_y = datasets.motorcycle()
    assert np.all(again_x > 0)
    assert np.any(again_y != 0)
