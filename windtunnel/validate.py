"""`windtunnel validate`: are the simulator's ranks those of the running testbed, real engines above all?"""

import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedulers.errors import InputError
from windtunnel.up import DEFAULT_FOLDER, AsJson, Folder

if TYPE_CHECKING:
    from analysis.validity import Value

POLICIES = ("fcfs-chunked", "sjf-pred", "edf", "strict-tiers:preempt=1", "vtc", "lifo")
"""Compared unless others are named: all run inside vLLM, and they differ."""

REGISTERED = "registered.json"
NO_VERDICT = 1


def validate(
    windows: Annotated[Path, typer.Argument(help="Folder of frozen windows.", metavar="WINDOWS")],
    out: Annotated[Path, typer.Option("--out", help="Folder of the study: sim, live, claims and the table.")],
    region: Annotated[list[float] | None, typer.Option(help="Pressure (rho); several may be given.")] = None,
    scheduler: Annotated[list[str] | None, typer.Option(help="ENGINE+CLUSTER; several.")] = None,
    window: Annotated[
        list[str] | None, typer.Option(help="Ids of windows, if not all of the folder.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Live runs of each cell.")] = 3,
    metric: Annotated[str, typer.Option(help="What is ranked by; the plan's metric if unsaid.")] = "",
    lag_p99_ms: Annotated[float, typer.Option(help="Most lag of a valid run, 99th percentile.")] = 50.0,
    folder: Folder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Simulate, write down what is claimed, replay all of it on the testbed again and again, and judge the ranks.

    Claims are written from the simulator's results before anything runs live, and never changed. Repeats take turns
    over all schedulers. Exits 1 if the order does not hold, or if repeats differ more than schedulers do.

    Example: windtunnel validate windows --region 0.7 --region 1.2 --out out/fidelity
    """
    from analysis.fidelity import held, pooled
    from analysis.validity import as_table, judge, verdict

    specs = tuple(scheduler or [f"{name}+least-requests" for name in POLICIES])
    ids = set(window or [])
    plan, target = _system(folder, windows, specs, tuple(region or (0.7, 1.2)))
    asked = metric or plan.primary
    _simulate(plan, out, ids)
    pairs = _claims(out, asked, ids)
    places = [out / "live" / f"repeat-{number}" for number in range(1, repeats + 1)]
    for place in places:
        _replay(plan, place, ids, target, lag_p99_ms)
    live = [_values(place, asked, ids) for place in places if (place / "runs").is_dir()]
    judged = judge(pairs, live)
    told = verdict(_values(out / "sim", asked, ids), live, asked)
    errors = pooled([error for place in places for error in _errors(held, out, place)])
    text = f"# Fidelity of {target.driver} engines\n\n" + as_table(told, judged, errors)
    (out / "fidelity.md").write_text(text, encoding="utf-8")
    if as_json:
        summary = told._asdict() | {"errors": errors, "driver": target.driver}
        summary["pairs"] = [one._asdict() | {"pair": one.pair._asdict()} for one in judged]
        typer.echo(json.dumps(summary))
    else:
        typer.echo(text)
    if not told.words.startswith("The simulator's order holds"):
        raise typer.Exit(NO_VERDICT)


def _system(
    folder: Path, windows: Path, specs: tuple[str, ...], regions: tuple[float, ...]
) -> tuple[Any, Any]:
    """Return the plan of the study and the testbed that runs in a folder."""
    from windtunnel.aims import Aims
    from windtunnel.replay import about

    place, known = Aims(folder, "", "", "", "", "", 1.0, False, "").resolve()
    return about(known, windows, specs, regions), place


def _simulate(plan: Any, out: Path, ids: set[str]) -> None:
    """Sweep the plan in the simulator, keeping every request; what is there stays."""
    from loadgen.plan import toml

    out.mkdir(parents=True, exist_ok=True)
    written = out / "plan.toml"
    written.write_text(toml(plan), encoding="utf-8")
    command = [sys.executable, "-m", "windtunnel", "sweep", str(written), "--out", str(out / "sim")]
    command += ["--windows", str(plan.windows), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"the sweep failed: {done.stderr.strip()[-300:]}", where=str(out / "sim"))


def _values(place: Path, metric: str, ids: set[str]) -> "Value":
    """Return a metric of the runs in a folder, of the windows named or of all."""
    from analysis.validity import values
    from loadgen.result import read_runs

    found = values(read_runs(place, sketches=False), metric)
    return {key: value for key, value in found.items() if not ids or key[0][0] in ids}


def _claims(out: Path, metric: str, ids: set[str]) -> list[Any]:
    """Return what is claimed, written before the first live run; InputError if the simulator changed since."""
    from analysis.validity import Pair, register

    simulated = _values(out / "sim", metric, ids)
    digest = sha256(repr(sorted(simulated.items())).encode()).hexdigest()
    path = out / REGISTERED
    if path.exists():
        told = json.loads(path.read_text(encoding="utf-8"))
        if told["simulated_sha256"] != digest or told["metric"] != metric:
            fix = "use a new --out: what was claimed stands"
            raise InputError(
                "the simulator says something else than when claims were made", where=str(path), fix=fix
            )
        return [Pair(**one) for one in told["pairs"]]
    if (out / "live").exists():
        raise InputError("there are live runs and no claims", where=str(path), fix="use a new --out")
    pairs = register(simulated)
    told = {"metric": metric, "simulated_sha256": digest, "pairs": [pair._asdict() for pair in pairs]}
    path.write_text(json.dumps(told, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return pairs


def _replay(plan: Any, place: Path, ids: set[str], target: Any, lag_p99_ms: float) -> None:
    """Run every cell once; a run that could not keep its schedule is tried once more."""
    from loadgen.replay.lag import LagLimits
    from loadgen.replay.run import ReplayRules
    from windtunnel.aims import Watch
    from windtunnel.replay import run_all

    limits = LagLimits(0.05, lag_p99_ms / 1e3)
    rules = ReplayRules(limits=limits, drain_s=300.0, stop_open=0, checked=target.driver == "live")
    for _ in range(2):
        accounts = run_all(plan, place, ids, target, rules, "absolute", Watch("none"))
        if all(one.kept_in == "runs" for one in accounts):
            return


def _errors(held: Any, out: Path, place: Path) -> list[Any]:
    if not (place / "runs").is_dir():
        return []
    found: list[Any] = held(out / "sim", place)["errors"]
    return found
