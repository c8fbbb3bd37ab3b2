"""The command ``windtunnel``: one line a part, and a part is imported only when it is named."""

import json
import os
import sys
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from schedulers.errors import InputError
from windtunnel.stopping import Terminated, exit_code, heed_termination

PARTS = {
    "demo": ("windtunnel.demo:demo", "Freeze, calibrate, sweep and rank in one go: start here."),
    "traces": ("windtunnel.traces:app", "List, fetch and inspect traffic files."),
    "windows": ("windtunnel.windows:app", "Freeze windows of a trace and verify them."),
    "schedulers": ("windtunnel.schedulers:app", "List the policies that ship, and check your own."),
    "profiles": ("windtunnel.profiles:app", "List step-time profiles with origin and error."),
    "plan": ("windtunnel.plans:plan_app", "List plans, and show what one would run and ask."),
    "calibrate": ("windtunnel.sweep:calibrate", "Measure the capacity of each window of a plan."),
    "cluster": ("windtunnel.cluster:app", "Simulate one window on one fleet, and watch it."),
    "size": ("windtunnel.size:size", "Find the fewest engines for a traffic file, tiers and targets."),
    "sweep": ("windtunnel.sweep:sweep", "Run every scheduler on every window in every region."),
    "study": ("windtunnel.study:app", "Run a whole study: windows, capacity, runs, statistics, report."),
    "rank": ("windtunnel.ranks:rank", "Rank the schedulers of a sweep, with intervals."),
    "attribute": ("windtunnel.attribute:attribute", "Say which axis of the traffic moves an order."),
    "hunt": ("windtunnel.hunt:hunt", "Look for the mildest change of workload that turns an order."),
    "report": ("windtunnel.ranks:report", "Write one self-contained HTML page about a sweep."),
    "results": ("windtunnel.ranks:results_app", "Verify result tables."),
    "up": ("windtunnel.up:up", "Start a dispatcher and simulated workers on this machine."),
    "down": ("windtunnel.up:down", "Stop them."),
    "status": ("windtunnel.up:status", "Show which of them run."),
    "replay": ("windtunnel.replay:replay", "Replay windows against live services, open loop."),
    "chaos": ("windtunnel.chaos:chaos", "Break live processes under load, and count what gets lost."),
    "compare": ("windtunnel.compare:compare", "Hold a live run against the simulator's."),
    "steps": ("windtunnel.steps:steps", "Compare two logs of engine steps, e.g. simulated and real."),
    "model": ("windtunnel.models:app", "Make small models for real engines."),
    "metrics": ("windtunnel.metrics:metrics", "List every metric that the services show."),
    "analysis": ("windtunnel.analysis:analysis", "Serve runs, comparisons and portability as web pages."),
    "doctor": ("windtunnel.doctor:doctor", "Say what is missing on this machine, with the remedy."),
    "profile": ("windtunnel.profile:profile", "Measure step times of a real engine, and fit a profile."),
    "validate": ("windtunnel.validate:validate", "Ask whether the simulator ranks as real engines do."),
    "bench": ("windtunnel.bench:app", "Measure the speed of the simulator."),
}
"""Name of a part: where it lives and what it does."""


UsageError = cast(type[Exception], typer.BadParameter.__base__)
"""What a missing option, an unknown command or a bad value raises; typer gives only some of its kinds a name."""

ROOT_ONLY = ("install_completion", "show_completion")
"""Options that only the root command shows."""


class Parts(TyperGroup):
    """The root command: knows names and one-line texts, and imports a part when it is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name, help=text) for name, (_, text) in PARTS.items()}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options of the root command, and note whether errors are wanted as JSON."""
        ctx.obj = {"json": "--json" in args}
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            note_misuse(error, ctx)
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the command by its name and replace the one-line stand-in by the real one."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, (None if name is None else load(name)), rest

    def invoke(self, ctx: Any) -> Any:
        """Run a command; say what went wrong in words, with the exit code that says it in numbers."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            complain(error, as_json=ctx.obj["json"])
            raise typer.Exit(2) from None
        except UsageError as error:
            note_misuse(error, ctx)
            raise  # typer says it on stderr, and exits with 2
        except KeyboardInterrupt as stop:
            typer.echo("Terminated." if isinstance(stop, Terminated) else "Interrupted.", err=True)
            raise typer.Exit(exit_code(stop)) from None


def load(name: str) -> Any:
    """Import the part ``name`` and return its command; a plain function becomes a command of its own."""
    module, _, attribute = PARTS[name][0].partition(":")
    part = getattr(import_module(module), attribute)
    if not isinstance(part, typer.Typer):
        single = typer.Typer(add_completion=False)
        single.command(name)(part)
        part = single
    command = typer.main.get_command(part)
    command.params = [one for one in command.params if one.name not in ROOT_ONLY]
    command.name = name
    return command


def complain(error: InputError, *, as_json: bool) -> None:
    """Say on stderr what is wrong, where, and how to mend it; with ``--json`` as an object on stdout too."""
    if as_json:
        echo_object(error)
    for title, text in (("Error", error.what), ("Where", error.where), ("Fix", error.fix)):
        if text:
            typer.echo(f"{title}: {text}", err=True)


def note_misuse(error: Any, ctx: Any) -> None:
    """With ``--json``, print a wrong use of the command line as bad input is printed; stdout only."""
    if ctx.obj["json"]:
        where = (getattr(error, "ctx", None) or ctx).command_path
        echo_object(InputError(error.format_message(), where=where, fix=f"read `{where} --help`"))


def echo_object(error: InputError) -> None:
    """Print an error as one JSON object."""
    typer.echo(json.dumps({"error": {"what": error.what, "where": error.where, "fix": error.fix}}))


app = typer.Typer(cls=Parts, no_args_is_help=True, pretty_exceptions_enable=False)


def tell_version(wanted: bool) -> None:
    """Print the installed version and stop, if it was asked for."""
    if wanted:
        from importlib.metadata import version

        typer.echo(version("windtunnel"))
        raise typer.Exit


@app.callback(epilog="Example: windtunnel demo --out out/demo")
def windtunnel(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=tell_version, is_eager=True)
    ] = False,
) -> None:
    """A wind tunnel for LLM-serving schedulers: which rankings hold, and how many priority tiers pay."""


def main() -> None:
    """Entry point of the console script."""
    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # small matrices: threads spin for longer than they help
    heed_termination()
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")  # a terminal that lacks a sign shows "?", not a traceback
    app(prog_name="windtunnel")
