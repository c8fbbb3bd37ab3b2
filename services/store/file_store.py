"""The embedded store: one append-only file, each batch with its length and checksum."""

import asyncio
import fcntl
import os
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from schedulers.errors import InputError

HEADER = struct.Struct("<II")
MAGIC = b"windtunnel-journal-1\n"
BATCH_MAX = 1 << 30


class FileStore:
    """A journal in one local file; ``sync`` is "always", "second" (at most two seconds are lost with the machine,
    nothing with the process) or "never"."""

    durable = True

    def __init__(self, path: Path, sync: str = "second") -> None:
        self.path, self.sync, self.name = path, sync, f"file:{path}"
        self._file = -1
        self._synced_s = 0.0
        self._syncing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open or make the file and lock it; raises InputError if another process has it or it isn't ours."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            self._file = -1
            fix = "stop the other dispatcher, or give this one a store of its own"
            raise InputError("another process has the journal", where=str(self.path), fix=fix) from None
        if os.fstat(self._file).st_size == 0:
            os.write(self._file, MAGIC)
        elif os.pread(self._file, len(MAGIC), 0) != MAGIC:
            fix = "name another file, or move this one away"
            raise InputError("the file is not a journal", where=str(self.path), fix=fix)

    async def read(self) -> AsyncIterator[bytes]:
        """Yield the batches; a torn last one (the machine stopped while it was written) is cut off.

        Raises InputError for damage before the end: what follows it can't be trusted, or left out in silence.
        """
        at, size = len(MAGIC), os.fstat(self._file).st_size
        while at < size:
            batch = self._batch_at(at, size)
            if batch is None:
                if self._sound_after(at, size):
                    fix = "restore the file from a copy, or move it away and lose what it holds"
                    raise InputError(f"the journal is damaged at byte {at}", where=str(self.path), fix=fix)
                os.ftruncate(self._file, at)
                return
            yield batch
            at += HEADER.size + len(batch)

    def _batch_at(self, at: int, size: int) -> bytes | None:
        head = os.pread(self._file, HEADER.size, at)
        if len(head) < HEADER.size:
            return None
        length, checksum = HEADER.unpack(head)
        if length > BATCH_MAX or at + HEADER.size + length > size:
            return None
        batch = os.pread(self._file, length, at + HEADER.size)
        return batch if zlib.crc32(batch) == checksum else None

    def _sound_after(self, at: int, size: int) -> bool:
        """True if a sound batch follows a damaged one whose length is believable: not a torn end."""
        head = os.pread(self._file, HEADER.size, at)
        if len(head) < HEADER.size:
            return False
        following = at + HEADER.size + HEADER.unpack(head)[0]
        return following < size and self._batch_at(following, size) is not None

    async def write(self, batch: bytes) -> None:
        """Append one batch; a half-written one is taken back before OSError is raised."""
        frame = HEADER.pack(len(batch), zlib.crc32(batch)) + batch
        size = os.fstat(self._file).st_size
        try:
            done = 0
            while done < len(frame):
                done += os.write(self._file, frame[done:])
        except OSError:
            os.ftruncate(self._file, size)
            raise
        await self._sync()

    async def _sync(self) -> None:
        """Bring it to the disk; "second" does so beside what goes on, and tells a failure with the next batch."""
        if self.sync == "always":
            await asyncio.to_thread(os.fdatasync, self._file)
            return
        now_s = asyncio.get_running_loop().time()
        if self.sync == "second" and now_s - self._synced_s >= 1.0:
            await self._synced()
            self._synced_s = now_s
            self._syncing = asyncio.create_task(asyncio.to_thread(os.fdatasync, self._file))

    async def _synced(self) -> None:
        """Await the sync under way; raises its OSError."""
        syncing, self._syncing = self._syncing, None
        if syncing is not None:
            await syncing

    async def replace(self, batches: list[bytes]) -> None:
        """Write a new file beside the old one and put it in its place."""
        fresh = self.path.with_name(self.path.name + ".new")
        file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            body = MAGIC + b"".join(HEADER.pack(len(one), zlib.crc32(one)) + one for one in batches)
            done = 0
            while done < len(body):
                done += os.write(file, body[done:])
            os.fdatasync(file)
            os.replace(fresh, self.path)
        except OSError:
            os.close(file)
            fresh.unlink(missing_ok=True)
            raise
        with suppress(OSError):  # of the file that was replaced
            await self._synced()
        os.close(self._file)
        self._file = file

    async def close(self) -> None:
        """Give the file and its lock back."""
        with suppress(OSError):
            await self._synced()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
