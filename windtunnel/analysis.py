"""`windtunnel analysis`: the analysis service on this machine, in the foreground."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel.up import AsJson

if TYPE_CHECKING:
    from services.local import State

USUAL = Path("out")


def analysis(
    results: Annotated[
        list[Path] | None,
        typer.Option("--results", help="Folder of results, or one that holds such; several may be given."),
    ] = None,
    traffic: Annotated[
        list[Path] | None,
        typer.Option(
            "--traffic", help="Folder whose traffic files may be characterised; several may be given."
        ),
    ] = None,
    prometheus: Annotated[str, typer.Option(help="http://HOST:PORT of a Prometheus, for live runs.")] = "",
    http: Annotated[str, typer.Option(help="HOST:PORT of the pages; port 0 is any.")] = "127.0.0.1:8300",
    as_json: AsJson = False,
) -> None:
    """Serve runs, comparisons, portability, tiers and traffic as pages and as JSON until Ctrl-C.

    Without --results the folder out/ is shown. Nothing is written, and pages ask no other machine for anything.

    Example: windtunnel analysis --results out/demo --http 127.0.0.1:8300
    """
    import asyncio

    from services.analysis.config import AnalysisConfig, checked
    from services.dispatcher.logs import configure

    config = checked(
        AnalysisConfig(
            results=tuple(results or [USUAL]), traffic=tuple(traffic or ()), prometheus=prometheus, http=http
        )
    )
    configure("info" if as_json else "warning")

    def tell(address: str) -> None:
        if as_json:
            typer.echo(json.dumps({"event": "ready", "http": address}))
        else:
            typer.echo(f"Analysis: http://{address}/   stop it with Ctrl-C")
        sys.stdout.flush()

    from services.analysis.process import serve

    with asyncio.Runner() as runner:
        runner.run(serve(config, tell))


def beside(state: "State", results: Path) -> "State":
    """Start the pages about results as one more process of a running testbed; `windtunnel down` ends it too.

    Raises NotReadyError naming its log; the testbed goes on then.
    """
    from dataclasses import replace

    from services.local import ANALYSIS, NotReadyError, Running, launch, read_state, stop_all, write_state

    folder = Path(state.folder)
    results.mkdir(parents=True, exist_ok=True)
    begun: list[Running] = []

    def others() -> "State":
        now = read_state(folder) or state  # a scaler may have written since
        return replace(now, processes=tuple(one for one in now.processes if one.name != ANALYSIS))

    def note(one: Running) -> None:
        begun[:] = [one]
        write_state(folder, replace(others(), processes=(*others().processes, one)))

    module = ["services.analysis", "--results", str(results.resolve()), "--http", "127.0.0.1:0"]
    try:
        launch(folder, ANALYSIS, module, note)
    except NotReadyError:
        stop_all(begun, grace_s=0.0)
        write_state(folder, others())
        raise
    return read_state(folder) or state
