"""``python -m services.dispatcher --config FILE.toml``: one dispatcher until SIGTERM."""

import argparse
import gc
import sys
from dataclasses import replace
from pathlib import Path

from schedulers.errors import InputError
from services.config import Config, checked, listening, read
from services.dispatcher.logs import configure
from services.secret import make, secret

KEYS = ("admin", "worker", "scaler")
"""Secrets of a stack of containers, a folder each: who needs one sees only that."""

GARBAGE = (20_000, 20, 50)
"""Objects, and younger collections, between two collections: with thousands of streams open each stops all."""


def options(arguments: list[str]) -> Config:
    """The configuration that the command line asks for; a flag wins over the file. Keys that it lacks may come
    from WINDTUNNEL_ADMIN_KEY, WINDTUNNEL_WORKER_KEY and WINDTUNNEL_SCALER_KEY (or ..._FILE). Raises InputError."""
    parser = argparse.ArgumentParser(prog="python -m services.dispatcher", description=__doc__)
    parser.add_argument("--config", type=Path, help="TOML file (services/config.py names the fields)")
    parser.add_argument("--http", default="", help="HOST:PORT of the HTTP door; port 0 takes a free one")
    parser.add_argument("--grpc", default="", help="HOST:PORT of the gRPC door")
    parser.add_argument("--store", default="", help="file:PATH, redis://HOST:PORT or none")
    parser.add_argument("--scheduler", default="", help="ENGINE[:k=v]+CLUSTER[:k=v]")
    parser.add_argument(
        "--make-keys", type=Path, help="folder for random keys where it has none: " + ", ".join(KEYS)
    )
    parser.add_argument("--workers-min", type=int, help="workers that scaling leaves")
    parser.add_argument(
        "--workers-max", type=int, help="workers that scaling may run; 0: the fleet is left alone"
    )
    given = parser.parse_args(arguments)
    if given.make_keys:
        for name in KEYS:
            make(given.make_keys / name, ("key",))
    config = listening(read(given.config) if given.config else Config(), given.http, given.grpc)
    if given.store:
        config = replace(config, store=replace(config.store, url=given.store))
    if given.scheduler:
        config = replace(config, scheduling=replace(config.scheduling, scheduler=given.scheduler))
    least = config.scaling.least if given.workers_min is None else given.workers_min
    most = config.scaling.most if given.workers_max is None else given.workers_max
    config = replace(config, scaling=replace(config.scaling, least=least, most=most))
    keys = config.keys
    config = replace(
        config,
        keys=replace(
            keys,
            admin=keys.admin or secret("WINDTUNNEL_ADMIN_KEY"),
            worker=keys.worker or secret("WINDTUNNEL_WORKER_KEY"),
            scaler=keys.scaler or secret("WINDTUNNEL_SCALER_KEY"),
        ),
    )
    return checked(config)


def main() -> int:
    """Run; 0 after a drain, 2 for wrong usage or input."""
    import uvloop

    from services.dispatcher.process import print_line, serve

    configure()
    try:
        config = options(sys.argv[1:])
        gc.collect()
        gc.freeze()  # what is here now stays: collections need not look at it
        gc.set_threshold(*GARBAGE)
        uvloop.run(serve(config, print_line))
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
