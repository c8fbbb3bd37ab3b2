"""Digests: changed, cut or re-saved files of published families, and the label that follows (G2, G4, B6)."""

import hashlib

import pytest

from loadgen import catalogue
from loadgen.catalogue import BURSTGPT, ENTRIES, Entry, by_digest, entry
from loadgen.trace import read
from schedulers.errors import InputError
from tests.loadgen.trace_rows import BURST, BURST_ROWS, digest, write


@pytest.fixture
def pinned(tmp_path, monkeypatch):
    """A hand-made release file whose digest the catalogue knows for the length of a test."""
    path = write(tmp_path / "BurstGPT_1.csv", BURST, BURST_ROWS, end="\r\n")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    pin = Entry(
        "burstgpt-1", BURSTGPT, "https://host.invalid/BurstGPT_1.csv", path.stat().st_size, 6, sha256, "x"
    )
    monkeypatch.setattr(catalogue, "ENTRIES", (pin,))
    return path, pin


def test_a_pinned_file_is_real(pinned):
    path, pin = pinned
    info = read(path).info
    assert (info.label, info.source, info.sha256, info.bytes) == ("real", pin.name, pin.sha256, pin.bytes)
    assert info.licence == "CC-BY-4.0"
    assert "BurstGPT" in info.citation


def test_one_changed_byte_is_refused_or_labelled(pinned):
    path, pin = pinned
    path.write_bytes(path.read_bytes().replace(b"1087", b"1088"))
    with pytest.raises(InputError, match="digest") as caught:
        read(path)
    assert "--unpinned" in caught.value.fix
    info = read(path, unpinned=True).info
    assert info.label == "unpinned"
    assert info.sha256 == hashlib.sha256(path.read_bytes()).hexdigest() != pin.sha256


def test_a_file_cut_short_is_refused(pinned):
    path, _ = pinned
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="cut short"):
        read(path)


def test_line_feeds_in_place_of_the_pinned_form_are_the_same_file(pinned):
    path, pin = pinned
    release = read(path)
    path.write_bytes(path.read_bytes().replace(b"\r\n", b"\n"))
    git = read(path)
    assert git.info == release.info
    assert git.info.bytes == pin.bytes != path.stat().st_size
    assert digest(git) == digest(release)


def test_another_pinned_file_than_the_one_named(pinned):
    path, _ = pinned
    with pytest.raises(InputError, match="this is burstgpt-1, not burstgpt-2"):
        read(path, source="burstgpt-2")
    assert read(path, source="burstgpt").info.source == "burstgpt-1"


def test_a_renamed_pinned_file_is_known_by_its_digest(pinned):
    path, pin = pinned
    assert read(path.rename(path.with_name("x.csv"))).info.source == pin.name


def test_catalogue_is_consistent():
    assert len({one.name for one in ENTRIES}) == len(ENTRIES)
    pins = [one.sha256 for one in ENTRIES if one.sha256]
    assert len(set(pins)) == len(pins)
    assert all(len(pin) == 64 and set(pin) <= set("0123456789abcdef") for pin in pins)
    assert all(one.origin.licence and one.origin.citation for one in ENTRIES)
    assert all(one.url.startswith("https://") for one in ENTRIES)
    assert by_digest(("", "0" * 64)) is None
    # The pointer in git is not the data: these come from the address that serves LFS content.
    assert all("media.githubusercontent.com" in one.url for one in ENTRIES if one.origin.family == "bailian")


def test_unknown_names_list_the_known_ones():
    with pytest.raises(InputError) as caught:
        entry("azure")
    assert "azure2023-code" in caught.value.fix
    with pytest.raises(InputError, match="no request rows"):
        entry("servegen")
