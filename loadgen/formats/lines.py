"""Bytes of a trace file: unpacked, hashed, and cut into blocks of whole lines."""

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, cast

from schedulers.errors import InputError

CHUNK_BYTES = 1 << 20
LFS_OPENING = b"version https://git-lfs.github.com/spec/"
GZIP_OPENING = b"\x1f\x8b"
BOM = b"\xef\xbb\xbf"

_STRANGERS = (
    (b"PAR1", "is a parquet file", "write it as CSV or JSONL"),
    (b"PK\x03\x04", "is a zip archive", "unpack it"),
    (b"\x28\xb5\x2f\xfd", "is packed with zstd", "unpack it, or pack it with gzip"),
    (b"\xff\xfe", "is UTF-16 text", "save it as UTF-8"),
    (b"\xfe\xff", "is UTF-16 text", "save it as UTF-8"),
)


class Fingerprint(NamedTuple):
    """What a file's bytes say about its identity; ``unpacked`` means after gzip, if it is packed."""

    unpacked_bytes: int
    unpacked_sha256: str
    stored_bytes: int
    stored_sha256: str
    crlf_bytes: int  # the unpacked text with every line end as CR LF: the form some releases pin
    crlf_sha256: str

    def forms(self) -> tuple[str, ...]:
        """Digests under which a catalogue may know this file."""
        return (self.unpacked_sha256, self.stored_sha256, self.crlf_sha256)


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open ``path`` for reading its unpacked bytes.

    Raises InputError for a missing or unreadable file, and for gzip data that is damaged or cut short.
    """
    try:
        with path.open("rb") as stored:
            packed = stored.read(2) == GZIP_OPENING
            stored.seek(0)
            if not packed:
                yield stored
                return
            with gzip.GzipFile(fileobj=stored) as unpacked:
                yield cast(IO[bytes], unpacked)
    except FileNotFoundError:
        raise InputError(
            "no such file", where=str(path), fix="check the path; `traces list` names files"
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"gzip data is damaged or cut short ({error})", where=str(path), fix="fetch the file again"
        ) from None
    except (IsADirectoryError, PermissionError) as error:
        reason = "is a folder" if isinstance(error, IsADirectoryError) else "may not be read"
        raise InputError(
            f"{reason}, not a trace file", where=str(path), fix="name one readable file"
        ) from None


def head(path: Path, size: int = 1 << 16) -> bytes:
    """Return the first ``size`` unpacked bytes without a byte-order mark.

    Raises InputError for an empty file, a Git LFS pointer (traps G1) and what is no text at all.
    """
    with opened(path) as handle:
        first = handle.read(size)
    refuse_pointer(first, path)
    for opening, what, fix in _STRANGERS:
        if first.startswith(opening):
            raise InputError(f"{what}, not text lines", where=str(path), fix=fix)
    first = first.removeprefix(BOM)
    if not first.strip():
        raise InputError("the file is empty", where=str(path), fix="fetch or export it again")
    if b"\0" in first:
        raise InputError("binary data, not text lines", where=str(path), fix="write it as CSV or JSONL")
    return first


def refuse_pointer(first: bytes, path: Path) -> None:
    """Raise InputError if ``first``, the opening bytes, are a Git LFS pointer in place of data."""
    if first.startswith(LFS_OPENING):
        raise InputError(
            "this is a Git LFS pointer of three lines, not the data it points at",
            where=str(path),
            fix="run `git lfs pull`, or `windtunnel traces fetch NAME`, or download from "
            "https://media.githubusercontent.com/media/REPO/REF/PATH",
        )


def whole_lines(handle: IO[bytes], size: int) -> Iterator[bytes]:
    """Yield blocks of about ``size`` bytes that end with a line end (the last may lack it), BOM removed."""
    rest, first = b"", True
    while more := handle.read(size):
        if first:
            more, first = more.removeprefix(BOM), False
        cut = more.rfind(b"\n") + 1
        if cut == 0:
            rest += more
            continue
        yield rest + more[:cut]
        rest = more[cut:]
    if rest:
        yield rest


def fingerprint(path: Path) -> Fingerprint:
    """Hash ``path`` as stored, unpacked, and with CR LF line ends (trap B6), in bounded memory."""
    unpacked, crlf = hashlib.sha256(), hashlib.sha256()
    sizes = [0, 0]
    with opened(path) as handle:
        for block in _pieces(handle):
            unpacked.update(block)
            windows = block.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
            crlf.update(windows)
            sizes[0] += len(block)
            sizes[1] += len(windows)
    unpacked_sha256 = unpacked.hexdigest()
    stored_bytes, stored_sha256 = path.stat().st_size, unpacked_sha256
    if stored_bytes != sizes[0]:
        with path.open("rb") as stored:
            stored_sha256 = hashlib.file_digest(stored, "sha256").hexdigest()
    return Fingerprint(sizes[0], unpacked_sha256, stored_bytes, stored_sha256, sizes[1], crlf.hexdigest())


def _pieces(handle: IO[bytes]) -> Iterator[bytes]:
    """Yield blocks that never end between a CR and its LF."""
    rest = b""
    while more := handle.read(CHUNK_BYTES):
        block = rest + more
        rest = b"\r" if block.endswith(b"\r") else b""
        yield block[: len(block) - len(rest)]
    if rest:
        yield rest
