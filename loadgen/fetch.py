"""Downloads of published traffic files: resumed, checked against size and digest, then given their name.

Nothing runs by itself: a person asks for a file. What carries the final name in the cache was checked, or was
taken ``unpinned`` by a person's choice, and then reads as ``unpinned`` everywhere (traps G1, G2, G4).
"""

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from loadgen.catalogue import Entry, by_digest
from loadgen.formats.lines import Fingerprint, fingerprint, head, opened, refuse_pointer
from schedulers.errors import InputError

ATTEMPTS = 6
TIMEOUT_S = 30.0
PART = ".part"
_CHUNK_BYTES = 1 << 18
_OK, _PARTIAL, _PAST_END = 200, 206, 416
_TOO_MANY, _SERVER_FAULT = 429, 500

Progress = Callable[[int, int], None]
"""Called with bytes so far and bytes in all (0 if not known)."""


@dataclass(frozen=True)
class Fetched:
    """A file that is now in the cache under its final name."""

    entry: Entry
    path: Path
    label: str  # real | unpinned
    bytes: int
    sha256: str
    fresh: bool  # False: it was there already


@dataclass(frozen=True)
class Fetch:
    """How to fetch: where to, from where, and what to accept."""

    folder: Path
    unpinned: bool = False
    base_url: str = ""  # a mirror that holds the official file names; "" for the official addresses
    attempts: int = ATTEMPTS  # in a row that bring nothing
    pause_s: float = 1.0  # before the second of them, doubled before each further one


def cache_folder() -> Path:
    """Return where fetched traces lie: WINDTUNNEL_CACHE/traces if that is set, else under ~/.cache."""
    told = os.environ.get("WINDTUNNEL_CACHE")
    return (Path(told) if told else Path.home() / ".cache" / "windtunnel") / "traces"


def fetch(entry: Entry, how: Fetch, progress: Progress | None = None) -> Fetched:
    """Download ``entry`` into the cache, or say that it is there.

    A download that was cut short is taken up where it stopped, if the server can. Raises InputError if the
    digest is not known or another one (unless ``how.unpinned``), for an LFS pointer, and when the network or
    the disk fails; then nothing has the final name.
    """
    final = how.folder / entry.file
    if final.exists():
        return _present(entry, final, how.unpinned)
    if not entry.sha256 and not how.unpinned:
        raise InputError(
            f"the digest of {entry.name} is not known, so a download can't be checked",
            where=entry.url,
            fix="pass --unpinned to take it under that label",
        )
    urls = [f"{how.base_url.rstrip('/')}/{entry.file}"] if how.base_url else [entry.url, *entry.mirrors]
    part = final.with_name(final.name + PART)
    with _disk(final):
        how.folder.mkdir(parents=True, exist_ok=True)
        resumed = part.exists()
        _download(urls, part, how, progress)
        try:
            return _accept(entry, part, final, how.unpinned)
        except InputError:
            # What an interrupted earlier download left may be of another file: once more from the start.
            part.unlink(missing_ok=True)
            if not resumed:
                raise
        _download(urls, part, how, progress)
        try:
            return _accept(entry, part, final, how.unpinned)
        finally:
            part.unlink(missing_ok=True)


def adopt(entry: Entry, source: Path, how: Fetch) -> Fetched:
    """Copy ``entry`` from a local file, or from a folder that holds it (packed or not), into the cache.

    For machines without internet. Checks what ``fetch`` checks and raises the same errors.
    """
    final = how.folder / entry.file
    if final.exists():
        return _present(entry, final, how.unpinned)
    found = _find(entry, source)
    part = final.with_name(final.name + ".copy")
    head(found)  # refuses a pointer, an empty file, another kind of file
    unpack = not final.name.endswith(".gz")
    with _disk(final):
        how.folder.mkdir(parents=True, exist_ok=True)
        try:
            if unpack:
                with opened(found) as rows, part.open("wb") as copy:
                    shutil.copyfileobj(rows, copy, _CHUNK_BYTES)
            else:
                shutil.copyfile(found, part)
            return _accept(entry, part, final, how.unpinned)
        finally:
            part.unlink(missing_ok=True)


def _find(entry: Entry, source: Path) -> Path:
    if not source.exists():
        raise InputError("no such file or folder", where=str(source), fix="check --from")
    if source.is_file():
        return source
    names = {entry.file, entry.file.removesuffix(".gz"), f"{entry.file}.gz"}
    found = sorted(path for path in source.rglob("*") if path.name in names and path.is_file())
    if not found:
        raise InputError(f"no {entry.file} in this folder", where=str(source), fix="name the file itself")
    return found[0]


def _present(entry: Entry, final: Path, unpinned: bool) -> Fetched:
    """Check what already lies under the final name."""
    print_ = fingerprint(final)
    label = _label(entry, print_)
    if label != "real" and not unpinned:
        raise InputError(
            f"lies in the cache, but is not the published {entry.name}",
            where=str(final),
            fix="remove it and fetch again, or pass --unpinned to keep it under that label",
        )
    return Fetched(entry, final, label, print_.stored_bytes, print_.stored_sha256, fresh=False)


def _label(entry: Entry, print_: Fingerprint) -> str:
    found = by_digest(print_.forms())
    if found is not None and found.name != entry.name:
        raise InputError(
            f"this is {found.name}, not {entry.name}", where=found.file, fix=f"ask for {found.name}"
        )
    return "unpinned" if found is None else "real"


def _accept(entry: Entry, part: Path, final: Path, unpinned: bool) -> Fetched:
    """Give the finished download its final name if it is what was asked for."""
    with part.open("rb") as handle:
        refuse_pointer(handle.read(256), Path(entry.url))
    print_ = fingerprint(part)
    label = _label(entry, print_)
    if label != "real" and not unpinned:
        size = (
            f", and {print_.stored_bytes:,} bytes where {entry.bytes:,} are published" if entry.bytes else ""
        )
        known = f"its digest {print_.stored_sha256[:12]}... is not the published {entry.sha256[:12]}..."
        raise InputError(
            f"not the published {entry.name}: {known}{size}"
            if entry.sha256
            else f"{entry.name} is not pinned",
            where=entry.file,
            fix="fetch again; if it stays so, the file has changed: --unpinned takes it under that label",
        )
    os.replace(part, final)
    return Fetched(entry, final, label, print_.stored_bytes, print_.stored_sha256, fresh=True)


def _download(urls: list[str], part: Path, how: Fetch, progress: Progress | None) -> None:
    """Bring one of ``urls`` to ``part``; the next is tried where one says that it has no such file."""
    for place, url in enumerate(urls):
        try:
            _with_patience(url, part, how, progress)
        except InputError:
            if place + 1 == len(urls):
                raise
            part.unlink(missing_ok=True)
        else:
            return


def _with_patience(url: str, part: Path, how: Fetch, progress: Progress | None) -> None:
    """Take the download up again and again, until ``how.attempts`` in a row have brought nothing."""
    fruitless, last = 0, ""
    plain = {"Accept-Encoding": "identity"}  # packed on the way, sizes and ranges would be other ones
    with httpx.Client(follow_redirects=True, timeout=TIMEOUT_S, headers=plain) as client:
        while fruitless < how.attempts:
            if fruitless:
                time.sleep(how.pause_s * 2 ** (fruitless - 1))
            before = part.stat().st_size if part.exists() else 0
            try:
                if _attempt(client, url, part, progress):
                    return
                last = "the server sent less than it announced"
            except httpx.HTTPError as error:
                last = f"{type(error).__name__}: {error}"
            moved = part.exists() and part.stat().st_size > before
            fruitless = 0 if moved else fruitless + 1
    raise InputError(
        f"download failed, {how.attempts} attempts in a row brought nothing; last: {last}",
        where=url,
        fix="run it again to take it up where it stopped, or copy the file here and use --from PATH",
    )


def _attempt(client: httpx.Client, url: str, part: Path, progress: Progress | None) -> bool:
    """Take up the download once; True when the server has sent all it announced."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    with client.stream("GET", url, headers=headers) as answer:
        if answer.status_code == _PAST_END:
            # Nothing lies behind what is here: it may be whole, and the digest tells.
            return True
        if answer.status_code == _TOO_MANY or answer.status_code >= _SERVER_FAULT:
            raise httpx.HTTPStatusError(
                f"status {answer.status_code}", request=answer.request, response=answer
            )
        if answer.status_code not in (_OK, _PARTIAL):
            raise InputError(
                f"the server answers {answer.status_code}",
                where=url,
                fix="the file may have moved: get it by hand and use --from PATH",
            )
        start = _start(answer, have)
        total = start + int(answer.headers.get("Content-Length", 0))
        with part.open("r+b" if start else "wb") as handle:
            handle.seek(start)
            handle.truncate()
            size = start
            for chunk in answer.iter_raw():  # as it comes: what has arrived is kept if the line breaks
                handle.write(chunk)
                size += len(chunk)
                if progress is not None:
                    progress(size, total)
    return total in (start, size)


def _start(answer: httpx.Response, have: int) -> int:
    """Return where the answer's bytes belong: 0 unless the server has understood the wish to go on."""
    told = answer.headers.get("Content-Range", "")
    if answer.status_code != _PARTIAL:
        return 0
    first = told.removeprefix("bytes ").partition("-")[0]
    if not first.isdigit() or int(first) > have:
        raise httpx.RemoteProtocolError(f"unexpected range {told!r}", request=answer.request)
    return int(first)


@contextmanager
def _disk(final: Path) -> Iterator[None]:
    """Say which file a full disk or a forbidden folder has stopped."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            fix = "free some space, or set WINDTUNNEL_CACHE to a folder that has it"
            raise InputError("the disk is full", where=str(final), fix=fix) from None
        if isinstance(error, PermissionError):
            fix = "set WINDTUNNEL_CACHE to a folder that you may write to"
            raise InputError("the cache folder may not be written", where=str(final), fix=fix) from None
        raise
