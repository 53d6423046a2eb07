"""The script behind docs/methods.md, and what that page has to contain."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import newtongp as ng

ROOT = Path(__file__).resolve().parents[2]


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


script = load("methods_table", ROOT / "docs" / "scripts" / "methods_table.py")
page = script.PAGE.read_text(encoding="utf-8")


def test_the_script_runs_every_method_of_the_smoke_test():
    smoke = load("smoke_for_methods_table", ROOT / "tests" / "repository" / "test_smoke.py")
    assert set(script.METHODS) - {"power ep gauss-newton"} == set(smoke.METHODS)
    for name, method in smoke.METHODS.items():
        assert repr(script.method_of(name)) == repr(method)


def small(problem, rows=16):
    return problem._replace(
        x=problem.x[:rows], y=problem.y[:rows], held_out_x=problem.held_out_x[:5], held_out_y=problem.held_out_y[:5]
    )


@pytest.mark.slow
def test_a_small_run_makes_a_table():
    problem = small(script.counts())
    rows = [script.run(name, problem) for name in ("vi", "newton")]
    assert all(row.status == "converged" and np.isfinite(row.nlpd) for row in rows)
    text = script.table(problem, rows)
    assert "### Counts" in text
    assert f"| vi | {rows[0].energy:.3f} | {rows[0].nlpd:.4f} |" in text


def test_a_method_that_does_not_apply_says_so():
    problem = small(script.counts())
    row = script.run("power ep gauss-newton", problem)
    assert "no Gauss-Newton form" in row.refusal
    assert "does not apply" in script.table(problem, [row])


@pytest.mark.slow
def test_a_run_that_ends_early_shows_its_residual():
    problem = small(script.robust_regression())
    row = script.run("vi", problem, max_steps=1)
    assert row.status == "max_steps"
    assert "max_steps, residual" in script.table(problem, [row])


def test_every_data_set_has_held_out_rows_in_the_support():
    for problem in script.problems():
        assert isinstance(problem.model, ng.Model)
        assert len(problem.x) == len(problem.y) and len(problem.held_out_x) == len(problem.held_out_y) >= 30
        assert str(len(problem.y)) in problem.about


def test_text_goes_between_the_markers():
    old = f"before\n{script.BEGIN}\nold\n{script.END}\nafter\n"
    assert script.put_between_markers(old, "new") == f"before\n{script.BEGIN}\n\nnew\n\n{script.END}\nafter\n"
    with pytest.raises(ValueError, match="no <!-- tables"):
        script.put_between_markers("nothing", "new")


def test_the_page_has_every_method_in_every_table():
    by_name, tables = page.split(script.BEGIN)
    for name, code in script.METHODS.items():
        assert tables.count(f"| {name} |") == 3, name
        assert code in by_name or "GaussNewton" in code, name
    for problem in script.problems():
        assert f"### {problem.title}" in tables and problem.about in tables
