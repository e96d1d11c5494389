"""`docs/security.md` claims to stop nothing that no test shows. It is read by the reader of `docs/guarantees.md`."""

import pytest

from tests.tidy.sources import ROOT
from tests.tidy.test_guarantees import FILE, Catalogue, Promise, promises

PAGE = "docs/security.md"
THREATS = [f"S{number}" for number in range(1, 17)]
PARTS = ("**Threat.**", "**What stops it.**", "**Limits.**")
NOT_YET = "## Not promised yet"


@pytest.fixture(scope="module")
def page() -> list[Promise]:
    return promises((ROOT / PAGE).read_text("utf-8"))


def test_every_threat_is_on_the_page(page: list[Promise]) -> None:
    assert [threat.name for threat in page] == THREATS


def test_every_threat_says_what_stops_it_and_where_that_ends(page: list[Promise]) -> None:
    missing = [f"{threat.name}: {part}" for threat in page for part in PARTS if part not in threat.text]
    assert missing == []
    assert [threat.name for threat in page if not FILE.search(threat.text.partition("Tests:")[0])] == []


def test_every_file_that_is_named_exists(page: list[Promise]) -> None:
    named = {name for threat in page for name in FILE.findall(threat.text)}
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_every_threat_has_tests_that_run(page: list[Promise]) -> None:
    assert [threat.name for threat in page if not threat.tests] == []
    catalogue = Catalogue(ROOT)
    faults = {f"{threat.name}: {test}": catalogue.fault(test) for threat in page for test in threat.tests}
    assert {name: fault for name, fault in faults.items() if fault} == {}


def test_what_is_not_promised_yet_is_said_before_what_is() -> None:
    text = (ROOT / PAGE).read_text("utf-8")
    said = text.partition(NOT_YET)[2].partition("\n## S1 ")[0]
    for word in ("TLS is the operator's", "Encryption of content", "Erasure"):
        assert f"- **{word}.**" in said
