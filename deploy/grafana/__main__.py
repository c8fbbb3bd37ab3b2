"""``python -m deploy.grafana`` writes the dashboards' JSON; with ``--check`` it only says which are out of date."""

import json
import sys
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana.boards import BOARDS

FOLDER = Path(__file__).resolve().parent / "dashboards"


def made(name: str) -> dict[str, Any]:
    """One dashboard as Grafana reads it."""
    builder, marks = BOARDS[name]()
    for mark, _ in marks:
        builder = builder.annotation(mark)
    told: dict[str, Any] = json.loads(JSONEncoder(sort_keys=True).encode(builder.build()))
    for row, (_, more) in zip(told["annotations"]["list"], marks, strict=True):
        row |= more  # fields of Prometheus' annotations that the model does not know
    for place, panel in enumerate(told["panels"], start=1):
        panel["id"] = place
    return told | {"id": None}


def text(name: str) -> str:
    """The file."""
    return json.dumps(made(name), indent=1, sort_keys=True) + "\n"


def main(arguments: list[str]) -> int:
    """Write what differs, or with --check say so and return 1."""
    stale = []
    for name in BOARDS:
        path = FOLDER / f"{name}.json"
        if not path.exists() or path.read_text(encoding="utf-8") != text(name):
            stale.append(path.name)
            if "--check" not in arguments:
                path.write_text(text(name), encoding="utf-8")
    sys.stdout.write(f"{'stale' if '--check' in arguments else 'written'}: {', '.join(stale) or 'none'}\n")
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
