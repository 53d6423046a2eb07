"""Every file of `data/r` is used by a test."""

from . import inla_models, mixed_models, test_r_series, test_r_smooth


def test_every_case_is_used():
    """The forecast scores, which the README describes too, are not here."""
    used = [*mixed_models.MODELS, *inla_models.NAMES, *test_r_smooth.GPS, *test_r_smooth.SMOOTHS, *test_r_series.CASES]
    used.append("kriging_meuse")  # test_r.py
    found = {path.stem for path in mixed_models.DATA.glob("*.json")}
    assert found == set(used) and len(used) == 33


def test_every_table_is_used():
    cases = [mixed_models.load(path.stem)[0] for path in mixed_models.DATA.glob("*.json")]
    tables = {case[part] for case in cases for part in ("data", "design") if part in case}
    assert tables == {f"data/{path.name}" for path in (mixed_models.DATA / "data").iterdir()}
