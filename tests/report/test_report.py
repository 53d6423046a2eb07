"""The report page: it needs no network and no script, all that it refers to is there, and a browser shows it."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from html.parser import HTMLParser

import numpy as np
import pytest

import newtongp as ng
from newtongp.report import page as report

pytestmark = pytest.mark.versions

pyplot = pytest.importorskip("matplotlib.pyplot")

X = np.linspace(0.0, 4.0, 12)
COUNTS = np.array([2.0, 3, 1, 4, 6, 5, np.nan, 7, 4, 2, 1, 0])


@pytest.fixture(autouse=True)
def _nothing_stays_open():
    yield
    assert not pyplot.get_fignums()


@pytest.fixture(scope="module")
def counts():
    return ng.infer(ng.Model(ng.GP(ng.kernels.Matern32()), ng.likelihoods.Poisson()), X, COUNTS)


@pytest.fixture(scope="module")
def page(counts, tmp_path_factory):
    return counts.report(tmp_path_factory.mktemp("report") / "new" / "folder", "Counts & <more>")


class Reader(HTMLParser):
    """All tags, those that were left open, and what attributes refer to."""

    EMPTY = ("meta", "link", "img", "br")

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.references, self.anchors, self.text = [], [], [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in self.EMPTY:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), f"<{tag} {name}> is a script"
            if name in ("src", "href", "srcset", "poster", "data", "action"):
                self.references.append(value)
            if name == "id":
                self.anchors.append(value)
            if tag == "img" and name == "alt":
                assert value

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def check_page(page):
    """Whether a page is complete with the files beside it."""
    text = page.read_text(encoding="utf-8")
    found = Reader(text)
    assert not found.open
    assert not {"script", "iframe", "object", "embed", "form"} & set(found.tags)
    assert not re.search(r"https?:|@import|url\(|javascript:|//", text)
    files = [reference for reference in found.references if not reference.startswith(("#", "data:,"))]
    assert any(file.endswith(".png") for file in files)
    for file in files:
        assert "/" not in file and (page.parent / file).stat().st_size > 0, file
    for reference in found.references:
        assert not reference.startswith("#") or reference[1:] in found.anchors
    return found


@pytest.mark.slow
def test_a_result_reports_itself(page, counts):
    found = check_page(page)
    assert page.name == "index.html"
    assert found.tags.count("img") == 3 and found.tags.count("section") == 1
    for words in ("Counts & <more>", "kernel.lengthscale", "converged", "11 observed, 1 missing", "Calibration"):
        assert words in found.text
    again = ng.load(page.parent / "counts_more.ngp")
    assert again.energy == counts.energy
    for file in page.parent.glob("*.png"):
        picture = pyplot.imread(file)
        assert min(picture.shape[:2]) > 300 and len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 20


def test_several_sections_have_an_overview_and_names_of_their_own(tmp_path, counts):
    figure, ax = pyplot.subplots()
    ax.plot([0.0, 1.0])
    first = report.Section("Counts", counts, ["First <i>."], [report.Picture(figure, "A line & more")], code="x < 1")
    table = report.Table("Ahead", ["day", "mean"], [["Mon <1>", 3.14159265], ["Tue", 20000.4]])
    second = report.Section("counts", counts, findings=["About 5 % of it."], tables=[table])
    found = check_page(report.write_report(tmp_path, [first, second], "Both", ["Two of them."]))
    for words in ("First <i>.", "A line & more", "x < 1", "About 5\N{NO-BREAK SPACE}% of it.", "Two of them."):
        assert words in found.text
    for words in ("Ahead", "Mon <1>", "3.142", "20000"):
        assert words in found.text
    assert found.anchors == ["counts", "counts_2"] and found.references.count("#counts_2") == 1
    names = {"counts.ngp", "counts_1.png", "counts_2.ngp", "index.html"}
    assert {file.name for file in tmp_path.iterdir()} == names


@pytest.mark.slow
def test_what_cannot_be_drawn_or_saved_is_said(tmp_path):
    x = np.random.default_rng(0).normal(size=(12, 3))
    prior = ng.GP(ng.kernels.RBF(), ng.means.Function(lambda x: x[0]))
    result = ng.infer(ng.Model(prior, ng.likelihoods.Bernoulli()), x, x[:, 0] > 0.0)
    found = check_page(result.report(tmp_path))
    assert "Not drawn: plot draws one input" in found.text
    assert "could not be saved" in found.text
    assert found.tags.count("img") == 1  # calibration says nothing of 0 and 1


@pytest.mark.slow
def test_a_result_without_observations_reports_itself(tmp_path):
    x = np.random.default_rng(0).normal(size=(12, 2))
    result = ng.infer(ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Poisson()), x, np.full(12, np.nan))
    found = check_page(result.report(tmp_path))
    assert "Not drawn: calibration has no rows to draw" in found.text and "0 observed, 12 missing" in found.text


@pytest.mark.parametrize("titles", [["Fold 2", "Fold"], ["a 3", "a", "a"], ["a", "a", "a 2"]])
def test_numbered_titles_share_no_file(titles):
    assert len(set(report._file_names(titles))) == len(titles)


def test_without_jinja2_the_error_says_what_to_install_and_nothing_is_written(tmp_path, counts, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"reports need Jinja2: pip install 'newtongp\[plot\]'"):
        report.write_report(tmp_path / "new", [report.Section("Counts", counts)])
    assert not (tmp_path / "new").exists()


def test_nothing_to_report_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="at least one section"):
        report.write_report(tmp_path / "folder", [])
    assert not (tmp_path / "folder").exists()


# In a browser -------------------------------------------------------------------------------------------

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """Chromium without a window, spoken to over two pipes by its DevTools protocol."""

    LAUNCH = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""

    def __init__(self, profile):
        import fcntl  # which Windows has not

        theirs_in, self.ours_out = os.pipe()
        self.ours_in, theirs_out = os.pipe()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
        # Above 4, or what is copied to 3 might close what is to be copied to 4.
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.LAUNCH, *map(str, high), CHROMIUM, *options, f"--user-data-dir={profile}"],
            pass_fds=high,
            stderr=subprocess.DEVNULL,
        )
        for end in (theirs_in, theirs_out, *high):
            os.close(end)
        self.events, self.rest, self.number = [], b"", 0

    def ask(self, method, session=None, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.ours_out, json.dumps(message).encode() + b"\0")
        return self.until(lambda told: told.get("id") == self.number)["result"]

    def until(self, wanted):
        for told in self.events:
            if wanted(told):
                return told
        end = time.monotonic() + 60.0
        while time.monotonic() < end:
            while b"\0" not in self.rest:
                read = os.read(self.ours_in, 2**16)
                assert read, "chromium has ended"
                self.rest += read
            line, _, self.rest = self.rest.partition(b"\0")
            self.events.append(json.loads(line))
            if wanted(self.events[-1]):
                return self.events[-1]
        raise TimeoutError("chromium does not answer")

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.ours_out)
        os.close(self.ours_in)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine to open the page with")
@pytest.mark.skipif(os.name != "posix", reason="the browser is spoken to over pipes as only POSIX has them")
def test_a_browser_opens_the_page_without_errors_or_requests(page, tmp_path):
    browser = Browser(tmp_path / "profile")
    try:
        target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for room in ("Network", "Runtime", "Log", "Page"):
            browser.ask(f"{room}.enable", session)
        browser.ask("Page.navigate", session, url=page.as_uri())
        browser.until(lambda told: told.get("method") == "Page.loadEventFired")
        question = "[document.images.length, [...document.images].filter(i => i.naturalWidth > 0).length].join()"
        shown = browser.ask("Runtime.evaluate", session, expression=question)["result"]["value"]
        wide = "document.documentElement.scrollWidth <= window.innerWidth"
        assert browser.ask("Runtime.evaluate", session, expression=wide)["result"]["value"]
        events = browser.events
    finally:
        browser.close()
    assert shown == "3,3"
    urls = [told["params"]["request"]["url"] for told in events if told.get("method") == "Network.requestWillBeSent"]
    assert len(urls) >= 4 and all(url.startswith(("file://", "data:,")) for url in urls)
    complaints = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Network.loadingFailed")
    assert [told for told in events if told.get("method") in complaints] == []
