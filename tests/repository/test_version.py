"""The version is that of version.py wherever it is written down for people."""

import re
from pathlib import Path

import newtongp as ng

ROOT = Path(__file__).resolve().parents[2]


def test_the_citation_has_this_version_and_its_date():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    version = re.search(r"^version: (.+)$", citation, re.MULTILINE)
    date = re.search(r"^date-released: (.+)$", citation, re.MULTILINE)
    assert version and version[1] == ng.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert date and f"## [{ng.__version__}] - {date[1]}\n" in changelog
