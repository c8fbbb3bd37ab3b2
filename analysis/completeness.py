"""Completeness: how many runs a sweep's plan asks for, so that a sweep in the middle is not read as done."""

import json
from pathlib import Path
from typing import Any


def expected_runs(folder: Path) -> int:
    """Return windows calibrated x regions x schedulers and controls of the plan; 0 if that isn't known.

    Windows are those of ``calibration.jsonl``, which a sweep writes whole before its first run.
    """
    plan = _objects(Path(folder) / "plan.json", whole=True)
    lines = _objects(Path(folder) / "calibration.jsonl")
    windows = {str(line["window_id"]) for line in lines if "window_id" in line}
    inner = plan[0].get("plan", plan[0]) if plan else {}
    if not isinstance(inner, dict):
        return 0
    sizes = {
        name: len(value) if isinstance(value := inner.get(name, ()), list) else 0
        for name in ("regions", "schedulers", "controls")
    }
    return len(windows) * sizes["regions"] * (sizes["schedulers"] + sizes["controls"])


def incomplete_words(stored: int, expected: int, failed: int = 0) -> str:
    """Return "229 of 336 runs: incomplete", or "" if no run of the plan is left that might be stored."""
    if stored + failed >= expected:
        return ""
    aside = f" ({failed:,} more failed)" if failed else ""
    return f"{stored:,} of {expected:,} runs{aside}: incomplete"


def _objects(path: Path, *, whole: bool = False) -> list[dict[str, Any]]:
    """Return the JSON objects of a file, one a line or one in all; what can't be read is left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    found = []
    for part in [text] if whole else text.splitlines():
        try:
            value = json.loads(part)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found
