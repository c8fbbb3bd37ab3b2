"""Settings of the analysis service, with every limit that it keeps."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from schedulers.errors import InputError

LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")


@dataclass(frozen=True)
class AnalysisConfig:
    """Where results lie, whom to ask about live runs, and how much is taken."""

    results: tuple[Path, ...] = ()  # folders of results, or folders that hold such
    traffic: tuple[Path, ...] = ()  # folders whose files may be pointed to
    prometheus: str = ""  # http(s)://HOST:PORT, "" for none
    http: str = "127.0.0.1:8300"
    hosts: tuple[str, ...] = ()  # names by which it may be asked beside loopback's; "*" for any
    upload_bytes: int = 64 << 20
    describe_s: float = 60.0  # to characterise one file
    describe_bytes: int = 4 << 30  # memory to do so
    query_s: float = 5.0  # for one answer of Prometheus
    patience_s: float = 10.0  # a page waits so long for statistics, then says that they are being made
    kept: int = 4  # answers about whole folders that stay in memory

    @property
    def names(self) -> tuple[str, ...]:
        """Host names that are answered: loopback's if that is where it listens, else any unless told."""
        host = self.http.rpartition(":")[0]
        return self.hosts + LOOPBACK if host in LOOPBACK or self.hosts else ("*",)


def checked(config: AnalysisConfig) -> AnalysisConfig:
    """Return the settings with absolute folders; raises InputError for what can't be."""
    for flag, folders in (("--results", config.results), ("--traffic", config.traffic)):
        for folder in folders:
            if not folder.is_dir():
                raise InputError("no such folder", where=f"{flag} {folder}", fix="make it, or name another")
    if config.prometheus:
        told = urlsplit(config.prometheus)
        if told.scheme not in ("http", "https") or not told.hostname:
            raise InputError("not an address", where="--prometheus", fix="write http://HOST:PORT")
    host, _, port = config.http.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise InputError("not an address", where="--http", fix="write HOST:PORT; port 0 is any")
    return AnalysisConfig(
        **{
            **vars(config),
            "results": tuple(folder.resolve() for folder in config.results),
            "traffic": tuple(folder.resolve() for folder in config.traffic),
            "prometheus": config.prometheus.rstrip("/"),
        }
    )
