"""Several devices and several processes give the answer of one; a process that is gone ends the others."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parent / "run_on_devices.py"
QUICK = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"


def start(*arguments, devices=1):
    # A flag that XLA does not know would end the process: ours are known where the tests themselves use them.
    quick = QUICK if QUICK in os.environ.get("XLA_FLAGS", "") else ""
    settings = {
        "XLA_FLAGS": f"{quick} --xla_force_host_platform_device_count={devices}".strip(),
        "JAX_PLATFORMS": "cpu",
    }
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answer(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-3000:]
    return json.loads(out.strip().splitlines()[-1])


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def alone():
    return answer(start("answer"))


def assert_same(found, wanted):
    assert set(found) == set(wanted)
    for key, value in wanted.items():
        if key != "devices":
            np.testing.assert_allclose(found[key], value, rtol=1e-9, atol=1e-9, err_msg=key)


@pytest.mark.thorough
@pytest.mark.slow
def test_eight_devices_of_one_process(alone):
    found = answer(start("answer", devices=8))
    assert (alone["devices"], found["devices"]) == (1, 8)
    assert_same(found, alone)


@pytest.mark.thorough
@pytest.mark.slow
def test_two_processes(alone):
    address = f"127.0.0.1:{free_port()}"
    both = [start("answer", address, rank) for rank in (0, 1)]
    for process in both:
        found = answer(process)
        assert found["devices"] == 2
        assert_same(found, alone)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_a_process_that_is_gone_ends_the_other(lost):
    address = f"127.0.0.1:{free_port()}"
    both = [start("lose", address, rank, lost) for rank in (0, 1)]
    out, err = both[1 - lost].communicate(timeout=120)
    both[lost].communicate(timeout=120)
    assert both[lost].returncode == 9
    assert both[1 - lost].returncode not in (0, 9)
    # Either our own error comes first, or that of JAX's runtime, which ends the process.
    assert "another one has ended" in err or "another task died" in err, out + err
