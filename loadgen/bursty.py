"""Bursty windows: a window's requests arriving as a Gamma renewal process of a given variation, over the same span.

The burstiness axis of reference/multitier.md section 4. All variations of a window share the luck of their gaps, its
lengths, tiers and sessions: only how bunched the arrivals are differs.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from loadgen.draws import uniforms
from loadgen.hybrid import HYBRID, freeze_made, made_line
from loadgen.manifest import MANIFEST, read_manifest
from loadgen.reshape import gamma_quantiles
from loadgen.window import Window, named, read_window
from schedulers.errors import InputError
from schedulers.view import Floats

SEED = 4
"""Of the gaps' luck."""


def freeze_bursty(folder: Path, out: Path, cvs: Sequence[float]) -> Path:
    """Write each window of ``folder`` with Gamma arrivals of each variation into ``out``; return ``out``.

    Windows of the first source alone are taken, and become sources named by their variation. A folder that holds
    windows already is taken as it is if they are of the same variations. Raises InputError if not.
    """
    lines = read_manifest(folder)
    first = min(line.source for line in lines)
    wanted = {source_of(first, cv) for cv in cvs}
    if (out / MANIFEST).is_file():
        held = {line.source for line in read_manifest(out)}
        if held != wanted:
            fix = "use a new --out, or the same --cv as before"
            raise InputError(f"this folder holds {', '.join(sorted(held))}", where=str(out), fix=fix)
        return out
    windows = [read_window(folder, line) for line in lines if line.source == first]
    freeze_made(out, [bursty(window, cv) for cv in dict.fromkeys(cvs) for window in windows])
    return out


def source_of(source: str, cv: float) -> str:
    """Return the source's name of such windows."""
    return f"{source}.gamma-cv{cv:g}"


def bursty(window: Window, cv: float) -> Window:
    """Return the window with Gamma gaps of coefficient of variation ``cv``, over the span that it had."""
    arrival_s = gamma_arrivals(np.asarray(window.arrival_s, np.float64), cv, window.line.content_sha256)
    made = window._replace(arrival_s=arrival_s)
    line = made_line(made, window.line, HYBRID, {"gamma": {"base": window.line.id, "cv": cv}})
    return named(made._replace(line=replace(line, source=source_of(window.line.source, cv), trace="gamma")))


def gamma_arrivals(arrival_s: Floats, cv: float, belongs_to: str) -> Floats:
    """Return as many arrivals over the same span, shape (n,), with Gamma gaps of variation ``cv``."""
    count = len(arrival_s)
    if count < 3:
        return arrival_s
    gaps = gamma_quantiles(uniforms(SEED, belongs_to, "gamma", count - 1), cv)
    times = np.concatenate([[0.0], np.cumsum(gaps)])
    return np.asarray(arrival_s[0] + times / times[-1] * (arrival_s[-1] - arrival_s[0]), np.float64)
