"""``python -m services.analysis --results DIR``: pages and API about results until SIGTERM."""

import argparse
import sys
from pathlib import Path

from schedulers.errors import InputError
from services.analysis.config import AnalysisConfig, checked
from services.dispatcher.logs import configure


def options(arguments: list[str]) -> AnalysisConfig:
    """The settings that the command line asks for; raises InputError."""
    parser = argparse.ArgumentParser(prog="python -m services.analysis", description=__doc__)
    parser.add_argument("--results", action="append", type=Path, default=[], metavar="DIR",
                        help="folder of results, or one that holds such; several may be given")  # fmt: skip
    parser.add_argument("--traffic", action="append", type=Path, default=[], metavar="DIR",
                        help="folder whose traffic files may be characterised")  # fmt: skip
    parser.add_argument("--prometheus", default="", metavar="URL", help="http://HOST:PORT, for live runs")
    parser.add_argument("--http", default=AnalysisConfig.http, metavar="HOST:PORT", help="port 0 is any")
    parser.add_argument("--host-name", action="append", default=[], metavar="NAME",
                        help="a name by which it may be asked, beside loopback; * for any")  # fmt: skip
    parser.add_argument("--upload-mib", type=int, default=AnalysisConfig.upload_bytes >> 20, metavar="N")
    given = parser.parse_args(arguments)
    if not 1 <= given.upload_mib <= 4096:
        raise InputError("out of range", where="--upload-mib", fix="1 to 4096")
    return checked(
        AnalysisConfig(
            results=tuple(given.results), traffic=tuple(given.traffic), prometheus=given.prometheus,
            http=given.http, hosts=tuple(given.host_name), upload_bytes=given.upload_mib << 20,
        )
    )  # fmt: skip


def main() -> int:
    """Run; 0 after a graceful end, 2 for wrong usage or input."""
    import uvloop

    configure()
    try:
        config = options(sys.argv[1:])
        from services.analysis.process import (
            say_ready,
            serve,
        )  # takes a second or two: wrong usage is told before

        uvloop.run(serve(config, say_ready))
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
