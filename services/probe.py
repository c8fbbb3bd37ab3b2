"""``python -m services.probe [HOST:PORT[/PATH]]`` asks a service whether it is up: a container's health check."""

import sys
from http.client import HTTPConnection, HTTPException

DEFAULT = "127.0.0.1:8000/live"
PATIENCE_S = 8.0


def asked(place: str, patience_s: float = PATIENCE_S) -> int:
    """Return 0 if the place answers with 200, else 1."""
    address, _, path = place.partition("/")
    try:
        connection = HTTPConnection(address, timeout=patience_s)
        connection.request("GET", f"/{path or 'live'}")
        return int(connection.getresponse().status != 200)
    except (OSError, HTTPException):
        return 1


if __name__ == "__main__":
    sys.exit(asked(sys.argv[1] if len(sys.argv) > 1 else DEFAULT))
