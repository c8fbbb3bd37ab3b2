"""Downloads: resumed, checked before they have a name, and refused with a cure (G1, G2, G4)."""

import errno
import gzip
import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen import catalogue
from loadgen.catalogue import BURSTGPT, Entry
from loadgen.fetch import Fetch, adopt, cache_folder, fetch
from loadgen.trace import read
from schedulers.errors import InputError
from tests.loadgen.trace_rows import BURST, BURST_ROWS
from tests.loadgen.trace_server import serving

NAME = "BurstGPT_1.csv"
CONTENT = "\r\n".join([BURST, *(BURST_ROWS[row % 6] for row in range(20_000))]).encode()
PIN = Entry(
    "burstgpt-1",
    BURSTGPT,
    f"https://host.invalid/{NAME}",
    len(CONTENT),
    20_000,
    hashlib.sha256(CONTENT).hexdigest(),
    "computed",
)
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 5\n"


@pytest.fixture(autouse=True)
def pinned(monkeypatch):
    monkeypatch.setattr(catalogue, "ENTRIES", (PIN,))


@pytest.fixture
def shelf():
    with serving({NAME: CONTENT}) as open_shelf:
        yield open_shelf


@pytest.fixture
def how(tmp_path, shelf):
    return Fetch(folder=tmp_path / "cache", base_url=shelf.url, pause_s=0.0, attempts=3)


def left(how) -> list[str]:
    return sorted(path.name for path in how.folder.iterdir()) if how.folder.exists() else []


def test_a_file_is_downloaded_checked_and_named(how):
    seen = []
    found = fetch(PIN, how, lambda so_far, total: seen.append((so_far, total)))
    assert found.path.read_bytes() == CONTENT
    assert (found.label, found.fresh, found.sha256, found.bytes) == ("real", True, PIN.sha256, PIN.bytes)
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [so_far for so_far, _ in seen] == sorted(so_far for so_far, _ in seen)
    assert left(how) == [NAME]
    assert read(found.path).info.label == "real"


def test_what_is_there_is_not_downloaded_again(how, shelf):
    fetch(PIN, how)
    assert fetch(PIN, how).fresh is False
    assert len(shelf.asked) == 1


def test_a_dropped_connection_is_taken_up_where_it_broke(how, shelf):
    shelf.drops = [300_000, 200_000]
    assert fetch(PIN, replace(how, attempts=1)).path.read_bytes() == CONTENT
    starts = [int(wish.removeprefix("bytes=").rstrip("-") or 0) for _, wish in shelf.asked]
    assert starts == [0, 300_000, 500_000]


def test_an_interrupted_run_is_taken_up_by_the_next(how, shelf):
    shelf.drops = [200_000, 0]
    with pytest.raises(InputError, match="1 attempts in a row brought nothing") as caught:
        fetch(PIN, replace(how, attempts=1))
    assert "--from" in caught.value.fix
    assert left(how) == [NAME + ".part"]
    assert fetch(PIN, how).label == "real"
    assert shelf.asked[-1][1] == "bytes=200000-"


def test_a_server_without_ranges_starts_anew(how, shelf):
    shelf.ranges = False
    shelf.drops = [100_000]
    assert fetch(PIN, how).path.read_bytes() == CONTENT
    assert shelf.asked[-1][1] == "bytes=100000-"


def test_a_part_that_is_already_whole_needs_no_bytes(how, shelf):
    how.folder.mkdir()
    (how.folder / f"{NAME}.part").write_bytes(CONTENT)
    assert fetch(PIN, how).label == "real"
    assert left(how) == [NAME]


def test_a_part_of_another_file_is_fetched_again_from_the_start(how, shelf):
    how.folder.mkdir()
    (how.folder / f"{NAME}.part").write_bytes(b"x" * 1000)
    assert fetch(PIN, how).path.read_bytes() == CONTENT
    assert [wish for _, wish in shelf.asked] == ["bytes=1000-", ""]


def test_a_busy_server_is_asked_again(how, shelf):
    shelf.statuses = [503, 429]
    assert fetch(PIN, how).label == "real"
    assert len(shelf.asked) == 3


def test_a_missing_file_is_told_at_once(how, shelf):
    shelf.files.clear()
    with pytest.raises(InputError, match="404") as caught:
        fetch(PIN, how)
    assert caught.value.where.endswith(NAME)
    assert len(shelf.asked) == 1
    assert left(how) == []


def test_the_next_address_is_tried_where_one_lacks_the_file(tmp_path, shelf):
    entry = replace(PIN, url=f"{shelf.url}/gone/{NAME}", mirrors=(f"{shelf.url}/{NAME}",))
    assert fetch(entry, Fetch(tmp_path, pause_s=0.0)).label == "real"
    assert [path for path, _ in shelf.asked] == [f"/gone/{NAME}", f"/{NAME}"]


@pytest.mark.parametrize(
    "content", [CONTENT[:-1], CONTENT[: len(CONTENT) // 2], CONTENT.replace(b"1087", b"1088")]
)
def test_another_digest_is_refused_or_taken_unpinned(how, shelf, content):
    shelf.files[NAME] = content
    with pytest.raises(InputError, match="not the published") as caught:
        fetch(PIN, how)
    assert f"{len(content):,} bytes where {PIN.bytes:,}" in caught.value.what
    assert left(how) == []
    found = fetch(PIN, replace(how, unpinned=True))
    assert found.label == "unpinned"
    assert read(found.path, unpinned=True).info.label == "unpinned"
    with pytest.raises(InputError, match="lies in the cache"):
        fetch(PIN, how)
    assert fetch(PIN, replace(how, unpinned=True)).fresh is False


def test_the_form_with_line_feeds_is_the_same_file(how, shelf):
    shelf.files[NAME] = CONTENT.replace(b"\r\n", b"\n")
    assert fetch(PIN, how).label == "real"


def test_an_unknown_digest_is_not_even_downloaded(how, shelf):
    unknown = replace(PIN, sha256="", bytes=0)
    with pytest.raises(InputError, match="digest of burstgpt-1 is not known"):
        fetch(unknown, how)
    assert shelf.asked == []


def test_an_unknown_digest_is_taken_unpinned(how, monkeypatch):
    unknown = replace(PIN, sha256="", bytes=0)
    monkeypatch.setattr(catalogue, "ENTRIES", (unknown,))
    assert fetch(unknown, replace(how, unpinned=True)).label == "unpinned"


@pytest.mark.parametrize("unpinned", [False, True])
def test_a_pointer_is_refused_whatever_is_allowed(how, shelf, unpinned):
    shelf.files[NAME] = POINTER
    with pytest.raises(InputError, match="LFS pointer"):
        fetch(PIN, replace(how, unpinned=unpinned))
    assert left(how) == []


def test_no_server_at_all(tmp_path):
    how = Fetch(tmp_path, base_url="http://127.0.0.1:9", attempts=2, pause_s=0.0)
    with pytest.raises(InputError, match="ConnectError"):
        fetch(PIN, how)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_names_the_file(how, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match="disk is full") as caught:
        fetch(PIN, how)
    assert NAME in caught.value.where
    assert NAME not in left(how)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("folder", [False, True])
def test_adopted_from_a_file_or_a_folder(tmp_path, packed, folder):
    place = tmp_path / "usb" / "deep"
    place.mkdir(parents=True)
    source = place / (NAME + ".gz" if packed else NAME)
    source.write_bytes(gzip.compress(CONTENT) if packed else CONTENT)
    found = adopt(PIN, tmp_path / "usb" if folder else source, Fetch(tmp_path / "cache"))
    assert found.path.read_bytes() == CONTENT
    assert found.label == "real"
    assert adopt(PIN, source, Fetch(tmp_path / "cache")).fresh is False


def test_adopting_checks_what_fetching_checks(tmp_path):
    how, source = Fetch(tmp_path / "cache"), tmp_path / "x.csv"
    with pytest.raises(InputError, match="no such file"):
        adopt(PIN, source, how)
    with pytest.raises(InputError, match=f"no {NAME} in this folder"):
        adopt(PIN, tmp_path, how)
    source.write_bytes(POINTER)
    with pytest.raises(InputError, match="LFS pointer"):
        adopt(PIN, source, how)
    source.write_bytes(CONTENT[:-5])
    with pytest.raises(InputError, match="not the published"):
        adopt(PIN, source, how)
    assert left(how) == []
    assert adopt(PIN, source, replace(how, unpinned=True)).label == "unpinned"


def test_another_published_file_is_named(tmp_path, monkeypatch):
    other = replace(PIN, name="burstgpt-2", url="https://host.invalid/BurstGPT_2.csv", sha256="0" * 64)
    monkeypatch.setattr(catalogue, "ENTRIES", (PIN, other))
    source = tmp_path / "x.csv"
    source.write_bytes(CONTENT)
    with pytest.raises(InputError, match="this is burstgpt-1, not burstgpt-2"):
        adopt(other, source, Fetch(tmp_path / "cache", unpinned=True))


def test_the_cache_is_where_the_variable_says(monkeypatch, tmp_path):
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path / "traces"
    monkeypatch.delenv("WINDTUNNEL_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "windtunnel" / "traces"


def test_real_files_are_adopted(traces_dir, tmp_path, monkeypatch):
    monkeypatch.undo()
    found = adopt(catalogue.entry("mooncake-synthetic"), traces_dir, Fetch(tmp_path))
    assert (found.label, found.bytes) == ("real", 1_136_313)
    assert found.path.name == "synthetic_trace.jsonl"
