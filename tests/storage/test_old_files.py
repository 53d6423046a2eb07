"""Files that version 0.1 wrote still load: keys of classes do not follow the modules that classes are in."""

import json
from pathlib import Path

import numpy as np
import pytest

import newtongp as ng
from newtongp.storage.registry import class_of, key_of, known_classes

pytestmark = pytest.mark.versions

FOLDER = Path(__file__).parents[1] / "data" / "version_0_1"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())


@pytest.mark.cases(slow=["fit_markov_student.ngp"])
@pytest.mark.parametrize("name", EXPECTED)
def test_a_file_of_version_0_1_loads_and_predicts_as_it_did(name):
    expected = EXPECTED[name]
    result = ng.load(FOLDER / name)
    times = isinstance(expected["x"][0], str)
    x = np.array(expected["x"], dtype="datetime64[D]") if times else expected["x"]
    assert result.status.name == expected["status"]
    assert result.energy == expected["energy"]
    np.testing.assert_allclose(result.predict(x).mean, expected["mean"], rtol=1e-9)
    for parameter, value in expected.get("learned", {}).items():
        np.testing.assert_array_equal(result.learned[parameter], value)


def test_every_key_leads_to_a_class_and_back():
    assert all(key_of(cls) == key and class_of(key) is cls for key, cls in known_classes().items())


def test_classes_that_files_do_not_hold_have_no_key():
    assert key_of(ng.InferenceError) is None
    assert class_of("programs._Program") is None
