"""The scripts in examples/ run, and do what they say."""

import numpy as np
import pytest

from examples import batch_of_data_sets, network_as_mean, sampling_hyperparameters


@pytest.mark.slow
def test_a_batch_of_data_sets(capsys):
    rates = batch_of_data_sets.main(sets=8, rows=20)
    assert rates.shape == (8, 20) and np.all(rates > 0.0)
    assert "8 of 8 series converged" in capsys.readouterr().out


@pytest.mark.slow
def test_a_network_as_mean():
    energies = network_as_mean.main(steps=40)
    assert energies[-1] < energies[0] - 1.0


@pytest.mark.slow
def test_sampling_hyperparameters():
    pytest.importorskip("blackjax")
    draws = sampling_hyperparameters.main(draws=30, warmup=30)
    assert draws.shape == (30, 2) and np.all(np.isfinite(draws)) and np.all(np.std(draws, axis=0) > 0.0)
