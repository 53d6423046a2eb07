"""scikit-learn's own checks of estimators: all of them with `make test-slow`, a few with `make test`."""

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from newtongp.sklearn import GPClassifier, GPRegressor

ESTIMATORS = [GPRegressor(), GPClassifier()]


@pytest.mark.slow
@parametrize_with_checks(ESTIMATORS)
def test_all_checks(estimator, check):
    check(estimator)


QUICK = {
    "check_estimator_cloneable",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_estimator_repr",
    "check_no_attributes_set_in_init",
    "check_estimators_unfitted",
    "check_do_not_raise_errors_in_init_or_set_param",
    "check_mixin_order",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    "check_complex_data",
    "check_estimators_empty_data_messages",
    "check_estimator_sparse_tag",
    "check_estimator_sparse_array",
    "check_supervised_y_no_nan",
    "check_classifiers_regression_target",
    "check_requires_y_none",
    "check_estimators_pickle",
    "check_dict_unchanged",
    "check_supervised_y_2d",
    "check_n_features_in",
}


def few_checks():
    """Checks that fit nothing, or data of few shapes."""
    for estimator in ESTIMATORS:
        for each, check in estimator_checks_generator(estimator, mark=None):
            name = getattr(check, "func", check).__name__
            if name in QUICK and not getattr(check, "keywords", {}).get("readonly_memmap"):
                yield pytest.param(each, check, id=f"{type(each).__name__}-{name}")


@pytest.mark.parametrize(("estimator", "check"), list(few_checks()))
def test_a_few_checks(estimator, check):
    check(estimator)
