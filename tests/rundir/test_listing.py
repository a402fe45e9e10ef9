"""One listing answers what several polls asked for."""

from __future__ import annotations

from pathlib import Path

from muster.rundir import AttemptPaths
from muster.rundir.listing import AttemptListing, read_listing


def test_a_listing_has_claims_terms_certificates_and_the_outcome(tmp_path: Path) -> None:
    for name in (
        "lead-0.json",
        "lead-10.json",
        "lead-2.json",
        "lead-0-gone.json",
        "status-2.json",
        "lead-3.json.claim",
    ):
        (tmp_path / name).touch()
    listing = read_listing(AttemptPaths(str(tmp_path)))
    assert listing is not None
    assert (listing.claims, listing.leaders_gone, listing.terms) == ([0, 2, 10], [0], [2])
    assert not listing.has_outcome
    (tmp_path / "outcome").touch()
    assert read_listing(AttemptPaths(str(tmp_path))) == AttemptListing(listing.names | {"outcome"})


def test_a_directory_that_cannot_be_read_has_no_listing(tmp_path: Path) -> None:
    assert read_listing(AttemptPaths(str(tmp_path / "missing"))) is None


def test_names_agree_with_the_paths_of_the_attempt(tmp_path: Path) -> None:
    attempt = AttemptPaths(str(tmp_path))
    for path in (attempt.outcome, attempt.leader(3), attempt.leader_gone(4), attempt.status(5)):
        Path(path).touch()
    listing = read_listing(attempt)
    assert listing is not None and listing.has_outcome
    assert (listing.claims, listing.leaders_gone, listing.terms) == ([3], [4], [5])
