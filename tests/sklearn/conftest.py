"""Which of scikit-learn's checks only repeat others, or show what is known."""

import pytest

REPEATED = (
    # The check of training again, with arrays of other kinds: 300 rows of three classes.
    "[GPClassifier()-check_classifiers_train(readonly_memmap=True",
    # Expected failures with learned hyperparameters; with fixed ones these checks pass, and are slow tests.
    "()-check_sample_weight_equivalence_on_dense_data",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if any(name in item.nodeid for name in REPEATED):
            item.add_marker(pytest.mark.thorough)
