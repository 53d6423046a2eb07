"""A few files of the campaign in files.py, so that it runs and its checks can fail."""

import numpy as np
import pytest

import newtongp as ng
from newtongp.storage import encode, records
from tests.campaigns import files

QUICK = [number for number in range(len(files.RESULTS)) if number < 10]


@pytest.mark.parametrize("number", QUICK)
def test_files_are_refused_or_what_constructors_make(number, tmp_path):
    for seed in range(8):
        ending, found, *_ = files.one(number, seed, tmp_path)
        assert ending in ("refused", "loaded") and not found, (number, seed, ending, found)


@pytest.mark.parametrize("number", QUICK)
def test_what_was_saved_comes_back(number, tmp_path):
    tree, arrays = encode(files.result(number))
    files.write(tmp_path / "file.ngp", tree, arrays)
    again = ng.load(tmp_path / "file.ngp", classes=files.CLASSES)
    assert files.differences(files.said(tree, arrays), files.said(*encode(again))) == []


@pytest.mark.parametrize(
    ("number", "field", "value"),
    [(0, "link", "|V8"), (0, "exposure", -1.0), (1, "pieces", 0), (2, "lapse", 0.7), (7, "probability", 2.0)],
)
def test_fields_without_their_constructor_are_a_fault(number, field, value, tmp_path, monkeypatch):
    tree, arrays = encode(files.result(number))
    place = next(place for place in files.places(tree) if place[-1] == field)
    files.at(tree, place[:-1])[field] = value
    files.write(tmp_path / "file.ngp", tree, arrays)
    assert files.faults_of(tmp_path / "file.ngp", tree, arrays) == ("refused", [])
    monkeypatch.setattr(records, "construct", records._set_fields)
    ending, found = files.faults_of(tmp_path / "file.ngp", tree, arrays)
    assert ending == "loaded" and found


def test_numbers_that_were_changed_are_a_fault(tmp_path, monkeypatch):
    tree, arrays = encode(files.result(0))
    files.write(tmp_path / "file.ngp", tree, arrays)
    right = records.construct

    def wrong(cls, values):
        return right(
            cls, {**values, "exposure": 2.0 * np.asarray(values["exposure"])} if "exposure" in values else values
        )

    monkeypatch.setattr(records, "construct", wrong)
    assert "exposure" in files.faults_of(tmp_path / "file.ngp", tree, arrays)[1][0]
