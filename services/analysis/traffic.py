"""Traffic: a file characterised in a process of its own, with limits on time and memory; nothing of it stays.

``python -m services.analysis.traffic FILE SOURCE COLUMNS BYTES`` is that process; it prints one JSON object.
"""

import asyncio
import json
import os
import resource
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from schedulers.errors import InputError
from services.analysis.config import AnalysisConfig

RATE_POINTS = 60
"""Points of the rate over time."""

MOST_FILES = 500
AT_ONCE = 2
"""So many files are characterised at a time; others wait."""

NAME_MAX = 120
CHUNK = 1 << 20


class Upload(Protocol):
    """What an upload looks like: a name and bytes."""

    filename: str | None

    async def read(self, size: int = -1) -> bytes:
        """Return the next bytes, b"" at the end."""
        ...


class Traffic:
    """The files that may be pointed to, and the work of characterising one."""

    def __init__(self, config: AnalysisConfig) -> None:
        self.config = config
        self._slots = asyncio.Semaphore(AT_ONCE)

    def files(self) -> dict[str, Path]:
        """Return the files of the given folders by "FOLDER/NAME", no links followed out of them."""
        found: dict[str, Path] = {}
        for folder in self.config.traffic:
            for path in sorted(folder.rglob("*")):
                inside = path.is_file() and path.resolve().is_relative_to(folder)
                if inside and not any(part.startswith(".") for part in path.relative_to(folder).parts):
                    found[f"{folder.name}/{path.relative_to(folder).as_posix()}"] = path
                if len(found) >= MOST_FILES:
                    return found
        return found

    async def describe(self, path: Path, source: str, columns: str, shown: str = "") -> dict[str, Any]:
        """Return a file's facts and statistics; raises InputError that names the line, or the limit reached.

        ``shown`` stands for the file's path in what is said about it.
        """
        async with self._slots:
            config = self.config
            command = [sys.executable, "-m", __name__, str(path), source, columns, str(config.describe_bytes)]
            here = str(Path(__file__).resolve().parents[2])
            before = os.environ.get("PYTHONPATH", "")
            paths = os.environ | {"PYTHONPATH": f"{here}{os.pathsep}{before}" if before else here}
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL, env=paths,
            )  # fmt: skip
            try:
                out, _ = await asyncio.wait_for(process.communicate(), config.describe_s)
            except TimeoutError:
                fix = "take a part of it, or use `windtunnel traces inspect`"
                raise InputError(
                    f"took over {config.describe_s:g} s to read", where=shown or path.name, fix=fix
                ) from None
            finally:
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        process.kill()
                    await process.wait()
        return _answer(out, str(path), shown or path.name)

    @asynccontextmanager
    async def received(self, upload: Upload) -> AsyncIterator[tuple[Path, str]]:
        """Hold an upload as a file, deleted at the end, with the name to show; raises InputError if it is empty."""
        name = "".join(one for one in Path(upload.filename or "").name if one.isprintable())[-NAME_MAX:]
        with tempfile.TemporaryDirectory(prefix="windtunnel-traffic-") as folder:
            path = Path(folder) / ("upload" + "".join(Path(name).suffixes[-2:])[:20].replace("/", ""))
            size = 0
            with open(path, "wb") as file:
                while part := await upload.read(CHUNK):
                    size += len(part)
                    await asyncio.to_thread(file.write, part)
            if not size:
                raise InputError("the file is empty", where=name or "upload", fix="choose a traffic file")
            yield path, name or "upload"


def _answer(out: bytes, path: str, shown: str) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads(out)
    except ValueError:
        told = {"error": {"what": "could not be read within the limit on memory", "where": path,
                          "fix": "take a part of it"}}  # fmt: skip
    wrong = told.get("error")
    if wrong is not None:
        parts = [str(wrong[part]).replace(path, shown) for part in ("what", "where", "fix")]
        raise InputError(parts[0], where=parts[1], fix=parts[2])
    told["trace"]["file"] = shown
    return told


def characterise(path: Path, source: str, columns: str) -> dict[str, Any]:
    """Return what a file is and its statistics as plain data; raises InputError."""
    from dataclasses import asdict

    from loadgen.describe import describe, rate_series
    from loadgen.trace import parse_columns, read

    trace = read(path, source=source or "auto", unpinned=True, columns=parse_columns(columns) or None)
    rates, width_s = rate_series(trace.arrival_ns, RATE_POINTS)
    return {
        "trace": asdict(trace.info),
        "statistics": describe(trace).as_dict(),
        "rates": rates.tolist(),
        "rate_width_s": width_s,
    }


def main(arguments: list[str]) -> int:
    """Characterise one file and print the answer, an error included."""
    path, source, columns, most = arguments
    resource.setrlimit(resource.RLIMIT_AS, (int(most), int(most)))
    try:
        told = characterise(Path(path), source, columns)
    except InputError as error:
        told = {"error": {"what": error.what, "where": error.where, "fix": error.fix}}
    except MemoryError:
        told = {
            "error": {"what": "needs more memory than it may have", "where": path, "fix": "take a part of it"}
        }
    sys.stdout.write(json.dumps(told, allow_nan=False))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
