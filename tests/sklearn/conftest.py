"""Which of scikit-learn's checks only repeat others."""

import pytest

# The check of training again, with arrays of other kinds: 300 rows of three classes.
REPEATED = "[GPClassifier()-check_classifiers_train(readonly_memmap=True"


def pytest_collection_modifyitems(items):
    for item in items:
        if REPEATED in item.nodeid:
            item.add_marker(pytest.mark.thorough)
