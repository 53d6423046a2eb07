"""Modules that are imported while Python would wait."""

import sys

import pytest

from newtongp._runtime import spare_time


@pytest.fixture(autouse=True)
def nothing_expected(monkeypatch):
    monkeypatch.setattr(spare_time, "_expected", {})


def test_modules_are_imported_in_order_as_long_as_there_is_time(monkeypatch):
    imported = []
    monkeypatch.setattr(spare_time.importlib, "import_module", imported.append)
    spare_time.expect("one", "two", "three")
    spare_time.expect("one")
    spare_time.use(lambda: len(imported) < 2)
    assert imported == ["one", "two"]
    spare_time.use(lambda: True)
    assert imported == ["one", "two", "three"]
    spare_time.use(lambda: True)
    assert len(imported) == 3


def test_what_results_need_is_there():
    from newtongp.interface import results

    spare_time.expect(*results._NEXT)
    spare_time.use(lambda: True)
    assert all(module in sys.modules for module in results._NEXT)
