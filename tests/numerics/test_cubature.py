"""Integration rules: the moments they must get right, and the methods they turn into one another."""

import itertools

import numpy as np
import pytest

import newtongp as ng
from newtongp.numerics.cubature import orthogonal_array


def gaussian_moment(powers):
    """E[∏ zᵢ^pᵢ] for independent standard normals."""
    if any(p % 2 for p in powers):
        return 0.0
    return float(np.prod([np.prod(np.arange(1, p, 2)) for p in powers]))


def check_exactness(rule, dimension, degree):
    nodes, weights = rule.rule(dimension)
    assert weights.sum() == pytest.approx(1.0, abs=1e-13)
    for powers in itertools.product(range(degree + 1), repeat=dimension):
        if sum(powers) <= degree:
            value = weights @ np.prod(nodes ** np.array(powers), axis=1)
            assert value == pytest.approx(gaussian_moment(powers), abs=1e-11)


@pytest.mark.parametrize("dimension", [1, 2, 3, 6])
@pytest.mark.parametrize("order", [3, 5])
def test_unscented_rules_are_exact_up_to_their_order(order, dimension):
    check_exactness(ng.cubature.Unscented(order), dimension, order)


@pytest.mark.parametrize("dimension", [1, 2, 6])
def test_quasi_random_nodes_are_exact_up_to_degree_three_and_of_equal_weight(dimension):
    check_exactness(ng.cubature.QuasiRandom(64), dimension, 3)
    assert np.all(ng.cubature.QuasiRandom(64).rule(dimension)[1] == 1 / 64)


def test_the_error_of_quasi_random_nodes_falls_with_their_number():
    """E[exp(aᵀz)] = exp(|a|²/2); random draws have errors of 0.029 with 1024 nodes, 0.007 with 16384."""
    errors = []
    for count in (64, 1024, 16384):
        nodes, weights = ng.cubature.QuasiRandom(count).rule(7)
        errors.append(abs(weights @ np.exp(0.3 * nodes.sum(axis=1)) / np.exp(0.5 * 7 * 0.3**2) - 1.0))
    assert errors[0] > errors[1] and errors[1] < 0.01 and errors[2] < 0.1 * errors[1]


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_gauss_hermite_is_exact_up_to_twice_its_order(dimension):
    check_exactness(ng.cubature.GaussHermite(4), dimension, 7)


def test_the_third_order_rule_with_kappa_is_the_classical_unscented_transform():
    nodes, weights = ng.cubature.Unscented(3, kappa=2.0).rule(1)
    np.testing.assert_allclose(nodes[:, 0], [0.0, np.sqrt(3.0), -np.sqrt(3.0)])
    np.testing.assert_allclose(weights, [2 / 3, 1 / 6, 1 / 6])
    check_exactness(ng.cubature.Unscented(3, kappa=0.5), 2, 3)


def test_the_fifth_order_rule_has_negative_weights_above_four_dimensions_only():
    assert all(np.all(ng.cubature.Unscented(5).rule(d)[1] >= 0.0) for d in (1, 2, 3, 4))
    assert np.any(ng.cubature.Unscented(5).rule(5)[1] < 0.0)


def test_a_product_rule_that_would_not_fit_says_what_to_use():
    with pytest.raises(ValueError, match=r"Unscented\(5\)"):
        ng.cubature.GaussHermite(20).rule(6)


@pytest.mark.parametrize("dimension", [1, 2, 3, 6])
def test_spherical_rules_are_exact_up_to_degree_five_with_positive_weights(dimension):
    for rule in (ng.cubature.SphericalRule(2), ng.cubature.SphericalRule(3, copies=2)):
        check_exactness(rule, dimension, 5)
        assert np.all(rule.rule(dimension)[1] > 0.0)


@pytest.mark.parametrize("dimension", [5, 9, 13])
def test_orthogonal_arrays_have_all_signs_of_five_coordinates_equally_often(dimension):
    array = orthogonal_array(dimension)
    assert np.all(np.abs(array) == 1.0)
    for chosen in itertools.islice(itertools.combinations(range(dimension), 5), 0, None, 7):
        _, counts = np.unique(array[:, chosen], axis=0, return_counts=True)
        assert len(counts) == 32 and np.all(counts == len(array) // 32)


def test_spherical_rules_that_would_not_fit_say_what_to_use():
    with pytest.raises(ValueError, match="QuasiRandom"):
        ng.cubature.SphericalRule(50, copies=1000).rule(9)
