"""Compiled programs on disk: found by everything that they depend on, and by nothing else."""

import os
import pickle
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import newtongp as ng
from newtongp._runtime import compile_ahead, jax_settings, read_ahead, saved_programs, tiers
from newtongp._runtime.compilation import compiled
from newtongp._runtime.double import in_double

pytestmark = pytest.mark.versions


@pytest.fixture
def folder(tmp_path):
    saved_programs.save_programs(tmp_path / "programs", 2**24)
    yield tmp_path / "programs"
    saved_programs.save_programs(None)


def programs_in(folder):
    return sorted(folder.glob("*.program"))


class Counted:
    """A function that counts how often it is traced, as a process that starts would see it."""

    def __init__(self, function, static=(), donated=()):
        self.traced = 0

        def counting(*args):
            self.traced += 1
            return function(*args)

        counting.__module__, counting.__qualname__, counting.__name__ = "newtongp.example", "example", "example"
        self.arguments = counting, static, donated
        self.restart()

    def restart(self):
        compile_ahead.wait_for_uses()
        self.program = saved_programs.SavedPrograms(*self.arguments, lambda effort: None)
        if saved_programs._state["folder"] is not None:
            saved_programs.save_programs(saved_programs._state["folder"], saved_programs._state["max_bytes"])

    @in_double
    def __call__(self, *args):
        answer = self.program(args, "medium")
        compile_ahead.wait_for_uses()
        return answer


def test_a_program_that_was_started_is_traced_once(folder):
    function = Counted(lambda power, tree: {"sum": tree["a"] ** power + tree["b"]}, static=(0,))
    tree = {"a": np.arange(3.0), "b": 1.0}
    for _ in range(2):
        in_double(function.program.start)((2, tree), "medium")
        np.testing.assert_array_equal(function(2, tree)["sum"], [1.0, 2.0, 5.0])
        function.restart()
    assert function.traced == 1


def test_a_program_is_traced_once_for_all_processes(folder):
    function = Counted(lambda power, tree: {"sum": tree["a"] ** power + tree["b"]}, static=(0,))
    tree = {"a": np.arange(3.0), "b": 1.0}
    for _ in range(2):
        answer = function(2, tree)
        np.testing.assert_array_equal(answer["sum"], [1.0, 2.0, 5.0])
        assert answer["sum"].dtype == np.float64
        function.restart()
    assert function.traced == 1
    np.testing.assert_array_equal(function(3, tree)["sum"], [1.0, 2.0, 9.0])  # another static value
    function(2, {"a": np.arange(4.0), "b": 1.0})  # another shape
    function(2, {"a": np.arange(3), "b": 1.0})  # another type
    assert function.traced == 4
    with jax_settings.trace_variant("plain"):
        function(2, tree)
    assert function.traced == 5 and len(programs_in(folder)) == 5


def test_donated_arguments_stay_donated(folder):
    function = Counted(lambda kept, given: (given + kept["a"],), donated=(1,))
    given = jnp.ones(3)
    function({"a": np.float32(1.0)}, given)
    assert given.is_deleted()


def test_classes_of_others_are_not_saved(folder):
    class Own(eqx.Module):
        value: float

    assert Counted(lambda tree: tree.value + 1.0)(Own(1.0)) is None
    assert Counted(lambda function, x: function(x), static=(0,))(lambda x: x, 1.0) is None
    assert not list(folder.iterdir())


def test_keys_of_random_numbers_are_saved_as_their_data(folder):
    function = Counted(lambda key, scale: scale * jax.random.normal(key))
    normal = in_double(jax.random.normal)
    for seed in (0, 1):
        key = jax.random.key(seed)
        for _ in range(2):
            np.testing.assert_array_equal(function(key, 2.0), 2.0 * np.asarray(normal(key)))
            function.restart()
    assert function.traced == 1
    other = jax.random.key(0, impl="rbg")  # another kind of key, with data of another shape
    np.testing.assert_array_equal(function(other, 1.0), np.asarray(normal(other)))
    assert function.traced == 2
    (found,) = function.program.programs.values()
    answer = in_double(saved_programs._called_with_trees(found))(other, np.float64(3.0))
    np.testing.assert_array_equal(answer, 3.0 * np.asarray(normal(other)))


def test_values_with_equal_parts_have_one_program(folder):
    """Whether or not the parts are one object."""
    function = Counted(lambda names, x: x + len(names), static=(0,))
    part = ("a" * 300, 1.5)
    equal = ("".join(["a"] * 300), float("1.5"))
    np.testing.assert_array_equal(function((part, part), 1.0), 3.0)
    function.restart()
    np.testing.assert_array_equal(function((part, equal), 1.0), 3.0)
    assert function.traced == 1 and len(programs_in(folder)) == 1


def test_damaged_files_are_replaced(folder):
    function = Counted(lambda x: x + 1.0)
    function(np.ones(2))
    (file,) = programs_in(folder)
    whole = file.read_bytes()
    for damaged in (b"", whole[:100], whole[:-1], b"not a program"):
        file.write_bytes(damaged)
        function.restart()
        np.testing.assert_array_equal(function(np.ones(2))[()], [2.0, 2.0])
        assert len(file.read_bytes()) > 100
    assert function.traced == 5


def test_programs_that_cannot_be_run_are_replaced(folder, monkeypatch):
    function = Counted(lambda x: x + 1.0)
    function(np.ones(2))

    def broken(*args):
        raise jax.errors.JaxRuntimeError("NOT_FOUND: function not found")

    load = saved_programs._load
    monkeypatch.setattr(saved_programs, "_load", lambda file: (broken, *load(file)[1:]))
    function.restart()
    np.testing.assert_array_equal(function(np.ones(2)), [2.0, 2.0])
    assert function.traced == 2


def test_the_oldest_files_go_first(folder):
    function = Counted(lambda x: x + 1.0)
    function(np.ones(1))
    (first,) = programs_in(folder)
    os.utime(first, (0, 0))
    saved_programs.save_programs(folder, int(2.5 * first.stat().st_size))
    function(np.ones(2))
    assert first.exists()
    function(np.ones(3))
    assert not first.exists() and len(programs_in(folder)) == 2


@pytest.mark.cases(slow=["dense"], others="thorough")
@pytest.mark.parametrize("prior", [ng.MarkovGP("matern32"), ng.GP("matern52")], ids=["chain", "dense"])
def test_inference_from_saved_programs_is_the_same(folder, prior):
    x, y = np.linspace(0.0, 5.0, 12), np.array([0, 1, 1, 0, 2, 3, 5, 2, 1, 0, 0, 1])
    model = ng.Model(prior, "poisson")

    def answers():
        result = ng.infer(model, x, y)
        prediction = result.predict([2.5, 7.0])
        return result.energy, prediction.mean, prediction.quantile(0.9), result.steps

    from_disk = answers()
    assert programs_in(folder)
    saved_programs.save_programs(None)
    for one, other in zip(from_disk, answers(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def likelihood_as_edited(rate):
    """A user's own likelihood, whose class keeps its name while its code changes."""

    class Counts(ng.Likelihood):
        def log_prob(self, y, f):
            return y * f - rate * jnp.exp(f)

    Counts.__module__, Counts.__qualname__ = "newton_user", "Counts"
    return Counts()


@pytest.mark.slow
def test_a_changed_likelihood_is_not_mistaken_for_an_earlier_one(folder):
    for rate in (1.0, 4.0):
        model = ng.Model(ng.MarkovGP("matern32"), likelihood_as_edited(rate))
        first = ng.infer(model, [0.0, 1.0, 2.0], [1, 2, 0])
        saved_programs.save_programs(None)
        assert first.energy == pytest.approx(ng.infer(model, [0.0, 1.0, 2.0], [1, 2, 0]).energy, rel=1e-12)
        saved_programs.save_programs(folder, 2**24)


PROGRAM = """
import sys

import jax

lowered = []
def listen(event, duration, **details):
    if event.endswith("jaxpr_to_mlir_module_duration"):
        lowered.append(details.get("fun_name"))
jax.monitoring.register_event_duration_secs_listener(listen)

import newtongp as ng

ng.use_cache(sys.argv[1])
prior = ng.MarkovGP("matern32") if sys.argv[2] == "chain" else ng.GP("matern32")
result = ng.fit(ng.Model(prior, "poisson"), [0.0, 1.0, 2.0, 3.0], [1, 2, 0, 5])
str(result.summary())
print(result.status.name, result.energy, result.predict([0.5]).quantile(0.9)[0], len(lowered))
"""


@pytest.mark.slow
@pytest.mark.cases(thorough=["chain"], others="slow")
@pytest.mark.parametrize("prior", ["chain", "dense"])  # a dense one calls LAPACK, which JAX loads when it lowers
def test_a_second_process_lowers_nothing(tmp_path, prior):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "programs"), prior]
    lines = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(2)]
    # To load LAPACK, one function is lowered.
    assert int(lines[0][-1]) > 5 and int(lines[1][-1]) == (prior == "dense")
    assert lines[0][:-1] == lines[1][:-1]


class Reader:
    """Files as `Ahead` reads them, and which were read."""

    def __init__(self, folder):
        self.folder, self.read = folder, []

    def start(self):
        """As a new process would."""
        self.read = []
        return read_ahead.ReadAhead(self.folder, self.load, lambda file, content: file.write_bytes(content))

    def load(self, file):
        self.read.append(file.name)
        return file.read_text() if file.exists() else None


@pytest.fixture
def reader(tmp_path):
    for name in "abcd":
        (tmp_path / name).write_text(name.upper())
    return Reader(tmp_path)


def test_what_an_earlier_process_used_is_read_ahead(reader):
    files = reader.start()
    assert [files.use(name) for name in "acb"] == ["A", "C", "B"]
    files = reader.start()
    assert files.use("a") == "A"
    files.wait()
    assert sorted(reader.read) == ["a", "b", "c"]
    assert files.use("b") == "B" and len(reader.read) == 3


def test_another_first_file_has_another_list(reader):
    files = reader.start()
    for name in "ac":
        files.use(name)
    files = reader.start()
    assert files.begin("b") and not files.begin("missing") and files.use("b") == "B"
    files.wait()
    assert reader.read == ["b"]
    assert files.use("missing") is None


def test_lists_are_bounded_and_may_be_damaged(reader, monkeypatch):
    monkeypatch.setattr(read_ahead, "_MOST", 2)
    files = reader.start()
    for name in "abcd":
        files.use(name)
    listed = reader.folder / "a.next"
    assert listed.read_text().split() == ["b", "c"]
    for content in (b"\xff\xfe", b"../b\nc", b"gone\nc"):
        listed.write_bytes(content)
        files = reader.start()
        assert files.use("a") == "A" and files.use("c") == "C"


def test_answers_about_the_machine_are_saved(folder):
    asked = []

    def ask():
        asked.append(1)
        return True

    assert saved_programs.answered("one", ask) and saved_programs.answered("one", ask) and len(asked) == 1
    assert not saved_programs.answered("another", lambda: False)
    assert not saved_programs.answered("another", ask) and len(asked) == 1
    for file in folder.glob("*.answer"):
        file.write_bytes(b"damaged")
    assert saved_programs.answered("one", ask) and len(asked) == 2
    saved_programs.save_programs(None)
    assert saved_programs.answered("one", ask) and len(asked) == 3


class Process:
    """A function as `compiled` wraps it, in what is a new process to it; `traced` counts over all processes."""

    traced = 0

    def __init__(self, folder):
        saved_programs.save_programs(folder, wanted=False)

        def example(power, tree):
            Process.traced += 1
            return {"sum": tree["a"] ** power + tree["b"]}

        example.__module__, example.__qualname__ = "newtongp.example", "example"
        self.function = compiled(example, static_argnums=0)

    @in_double
    def run(self):
        for _ in range(4):
            answer = self.function(2, {"a": np.arange(3.0), "b": 1.0})
            np.testing.assert_array_equal(answer["sum"], [1.0, 2.0, 5.0])
            tiers.wait_for_compilations()
            compile_ahead.wait_for_uses()

    @in_double
    def prepare(self):
        use = self.function.prepare(2, {"a": np.arange(3.0), "b": 1.0})
        tiers.wait_for_compilations()
        return use


@pytest.fixture
def efforts(folder, monkeypatch):
    """Functions that say how often something was traced since the last call, and how many programs there are."""
    monkeypatch.setattr(tiers, "_PATIENCE", 0.0)
    monkeypatch.delenv("NEWTONGP_EFFORT", raising=False)
    Process.traced = 0

    def traced_and_saved():
        before, Process.traced = Process.traced, 0
        return before, len(programs_in(folder))

    return traced_and_saved


def test_what_was_compiled_again_is_used_by_later_processes(folder, efforts, monkeypatch):
    Process(folder).run()
    assert efforts() == (2, 2)  # low and then medium effort
    for _ in range(2):
        Process(folder).run()
        assert efforts() == (0, 2)  # never again
    assert Process(folder).prepare().successor is not None
    assert efforts() == (0, 2)
    monkeypatch.setenv("NEWTONGP_EFFORT", "low")
    (low,) = (file for file in programs_in(folder) if file.stat().st_mtime == min(map(modified, programs_in(folder))))
    os.utime(low, (0, 0))
    Process(folder).run()
    assert efforts() == (0, 2) and modified(low) > 0  # it was read, and not the other one


def modified(file):
    return file.stat().st_mtime


def test_a_program_from_disk_is_compiled_again_after_as_long_as_compiling_takes(folder, efforts, monkeypatch):
    """As in the process that has compiled it: not sooner because reading it took no time."""
    monkeypatch.setattr(tiers, "_PATIENCE", 1e3)
    Process(folder).run()
    (file,) = programs_in(folder)
    *others, seconds = pickle.loads(file.read_bytes())
    assert 0.0 < seconds < 60.0
    monkeypatch.setattr(tiers, "_PATIENCE", 1.0)
    monkeypatch.setattr(tiers, "LEAST", 0.0)
    file.write_bytes(pickle.dumps((*others, 1e3)))
    Process(folder).run()
    assert efforts() == (1, 1)
    file.write_bytes(pickle.dumps((*others, 0.0)))
    monkeypatch.setattr(tiers, "_PATIENCE", 0.0)
    Process(folder).run()
    assert efforts() == (1, 2)


def test_a_damaged_program_of_more_effort_is_replaced_by_one(folder, efforts):
    Process(folder).run()
    for file in programs_in(folder):
        file.write_bytes(b"damaged")
    efforts()
    Process(folder).run()
    assert efforts()[1] == 2
    Process(folder).run()
    assert efforts() == (0, 2)
