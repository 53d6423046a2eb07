"""Double precision for newtongp, and nobody else's settings touched."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import newtongp as ng
from newtongp._runtime.double import in_double, to_host
from newtongp.validation.numbers import as_real, parameter

pytestmark = pytest.mark.versions

PROGRAM = """
import json, os
import jax, jax.numpy as jnp
before = jax.config.jax_enable_x64
kinds = [str(jnp.ones(2).dtype)]
import numpy as np
import newtongp as ng
assert jax.config.jax_enable_x64 == before, "at import"
kinds.append(str(jnp.ones(2).dtype))

def settled():
    assert jax.config.jax_enable_x64 == before
    kinds.append(str(jnp.sin(jnp.ones(2)).dtype))

@jax.jit
def of_the_program(x):
    return 2.0 * x

x = np.linspace(0.0, 3.0, 8)
y = np.array([1, 2, 0, 3, 4, 2, 1, 0])
model = ng.Model(ng.GP(ng.kernels.Matern32(lengthscale=1.3)), ng.likelihoods.Poisson())
kinds.append(str(of_the_program(jnp.ones(2)).dtype))
result = ng.infer(model, x, y, tol=1e-10)
settled()
prediction = result.predict(x + 0.1)
numbers = {
    "energy": np.array(result.energy), "linear": result.sites.linear, "marginals": result.marginals.covariance,
    "posterior": result.posterior.marginals.mean, "history": result.history.energy, "mean": prediction.mean,
    "std": prediction.std, "quantile": prediction.quantile(0.9), "log_density": result.log_density(x, y),
    "sample": result.sample(0, x, 2), "key": result.sample(jax.random.key(0), x, 2),
    "sample_y": result.sample_y(0, x, 2),
}
settled()
states = ng.iterate(model, x, y, ng.VI(), ng.Constant(0.5))
for _ in range(3):
    state = next(states)
    settled()
    of_the_program(jnp.ones(2))
numbers["state"], numbers["state marginals"] = state.sites.precision, state.posterior.marginals.mean
settled()
for call in (
    lambda: ng.infer(model, x, -y),
    lambda: ng.infer(model, x, y, sites=ng.Sites(np.zeros((8, 1)), np.full((8, 1, 1), -9.0)), step=ng.Constant(1.0)),
    lambda: result.predict(np.zeros((2, 2))),
):
    try:
        call()
    except (ValueError, ng.InferenceError):
        settled()
    else:
        raise AssertionError("no error")
kinds.append(str(of_the_program(jnp.ones(2)).dtype))
assert {str(value.dtype) for value in numbers.values()} == {"float64"}
print(json.dumps({"kinds": kinds, "numbers": {name: value.tolist() for name, value in numbers.items()}}))
"""


@pytest.fixture(scope="module")
def programs():
    """The same program with 32-bit and with 64-bit JAX around it."""
    running = {}
    for x64 in ("0", "1"):
        environment = {**os.environ, "JAX_ENABLE_X64": x64}
        running[x64] = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PROGRAM],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    outputs = {x64: process.communicate(timeout=300) for x64, process in running.items()}
    for out, error in outputs.values():
        assert out, error
    return {x64: json.loads(out.splitlines()[-1]) for x64, (out, _) in outputs.items()}


@pytest.mark.slow
def test_a_single_precision_program_stays_single_precision(programs):
    assert set(programs["0"]["kinds"]) == {"float32"}


@pytest.mark.slow
def test_a_double_precision_program_stays_double_precision(programs):
    assert set(programs["1"]["kinds"]) == {"float64"}


@pytest.mark.slow
def test_the_program_around_it_changes_no_result(programs):
    single, double = programs["0"]["numbers"], programs["1"]["numbers"]
    for name, value in single.items():
        np.testing.assert_allclose(value, double[name], rtol=1e-12, atol=1e-14, err_msg=name)


def test_in_double_puts_the_setting_back_after_an_error():
    before = jax.config.jax_enable_x64

    @in_double
    def fails():
        assert jnp.ones(1).dtype == np.float64
        raise KeyError("inside")

    with pytest.raises(KeyError):
        fails()
    assert jax.config.jax_enable_x64 == before and jnp.ones(1).dtype == (np.float64 if before else np.float32)


def test_in_double_keeps_the_name_and_the_docstring():
    assert ng.infer.__name__ == "infer" and ng.infer.__doc__


def test_hyperparameters_are_doubles_even_from_single_precision_arrays():
    assert ng.kernels.RBF(lengthscale=jnp.float32(0.5)).lengthscale.dtype == np.float64
    assert parameter(np.float16(0.5), "p").dtype == np.float64
    given = np.array([1.0, 2.0])
    kept = parameter(given, "p", max_ndim=1)
    given[0] = 7.0
    assert kept[0] == 1.0


@pytest.mark.slow
def test_hyperparameters_can_be_traced():
    slope = jax.grad(lambda value: ng.kernels.RBF(lengthscale=value).evaluate(jnp.zeros(1), jnp.ones(1)))(2.0)
    np.testing.assert_allclose(slope, np.exp(-1 / 8) / 8, rtol=1e-6)


def test_to_host_leaves_what_is_no_array():
    tree = to_host({"a": jnp.ones(2), "b": "word", "c": None})
    assert type(tree["a"]) is np.ndarray and tree["b"] == "word" and tree["c"] is None


def test_as_real_copies():
    given = np.arange(3.0)
    assert not np.shares_memory(as_real(given), given)


@pytest.mark.cases(slow=["SparseGP", "LinearModel"], thorough=["MarkovGP"])
@pytest.mark.parametrize(
    "prior",
    [
        ng.GP(ng.kernels.RBF()),
        ng.SparseGP(ng.kernels.RBF(), 2),
        ng.LinearModel(1.0),
        ng.MarkovGP(ng.kernels.Matern12()),
    ],
    ids=lambda prior: type(prior).__name__,
)
def test_posteriors_answer_with_arrays_that_stay_double(prior):
    x = np.arange(3.0)[:, None]
    posterior = ng.infer(ng.Model(prior, ng.likelihoods.Gaussian(0.1)), x, [1.0, 2.0, 0.0]).posterior
    answers = posterior.predict(x), posterior.joint(x), posterior.draw(jax.random.key(0), x, 2)
    for answer in jax.tree.leaves(answers):
        assert isinstance(answer, np.ndarray)
        assert (2.0 * answer).dtype == np.float64
