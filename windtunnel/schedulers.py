"""``windtunnel schedulers``: the policies that ship, one in full, a new one of your own, and the contract check."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedulers.errors import InputError
from windtunnel.policies import SETS, facts, first_budget, page, shipped, table

if TYPE_CHECKING:
    from schedulers.load import Found

app = typer.Typer(help="List the policies that ship, show one, write and check your own.")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

ROOT = Path(__file__).resolve().parent.parent
DOCS, README = ROOT / "docs" / "schedulers.md", ROOT / "schedulers" / "README.md"
VLLM = ROOT / "docs" / "vllm.md"
TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- /table -->)", re.DOTALL)


@app.callback(invoke_without_command=True, epilog="Example: windtunnel schedulers")
def schedulers(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the policies that ship, show one, write and check your own."""
    if ctx.invoked_subcommand is None:
        list_policies(as_json=as_json)


@app.command("list", epilog="Example: windtunnel schedulers list")
def list_policies(
    as_json: AsJson = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table of schedulers/README.md.")
    ] = False,
) -> None:
    """List every policy that ships: set, layer, what it needs to know, parameters, paper."""
    policies = shipped()
    if as_json:
        typer.echo(json.dumps({"policies": policies}, allow_nan=False))
    elif markdown:
        typer.echo(table(), nl=False)
    else:
        for name, meaning in SETS.items():
            _print_set(name, meaning, [policy for policy in policies if policy["set"] == name])
        typer.echo(
            "A scheduler is ENGINE[:k=v,k=v][+CLUSTER[:k=v]], e.g. sarathi:phi=0.8+least-requests", err=True
        )


@app.command(epilog="Example: windtunnel schedulers show sarathi:phi=0.8")
def show(
    name: Annotated[str, typer.Argument(help="A policy: NAME, PATH.py:POLICY or package.module:POLICY.")],
    plan: Annotated[
        str, typer.Option(help="Plan on whose fleet and tiers a policy's own token budget is told.")
    ] = "canon",
    as_json: AsJson = False,
) -> None:
    """Show one policy: its idea, its rule in words, its parameters, and six requests under it as a timeline."""
    from schedulers.load import find
    from windtunnel.timeline import draw, story

    found = find(name)
    told = facts(found)
    budget = first_budget(found, plan)
    timeline, engines = story(found)
    if as_json:
        example = {"edges_s": timeline.edges_s, "rows": timeline.rows, "requests": timeline.facts}
        typer.echo(json.dumps({**told, "first_budget": budget, "example": example}, allow_nan=False))
        return
    _print_policy(told)
    if budget:
        where = f"plan {budget['plan']} ({budget['profile']}, tightest pace {budget['tightest_tpot_s']} s a token)"
        typer.echo(
            f"budget   {budget['tokens']} of {budget['limit_tokens']} tokens a step, when idle, on {where}"
        )
    over = "one small engine" if engines == 1 else f"{engines} small engines of fcfs-chunked"
    alike = " (C begins with 64 tokens of A's prompt, E with 48 of B's)" if "prefix" in told["reads"] else ""
    typer.echo(f"\nSix requests on {over}, step by step{alike}:\n")
    _print_timeline(draw(timeline, engines))


@app.command(epilog="Example: windtunnel schedulers new short-first")
def new(
    name: Annotated[str, typer.Argument(help="Name of the policy; the file is NAME.py, with _ for -.")],
    as_json: AsJson = False,
) -> None:
    """Write a commented policy file into the current folder: it keeps the contract, change it from there."""
    from schedulers.checks import NAME
    from schedulers.load import shipped_names
    from windtunnel.outline import outline

    if not NAME.fullmatch(name):
        raise InputError(
            f"{name!r} is no name", where="NAME", fix="letters, digits, - and _, e.g. short-first"
        )
    if name in shipped_names():
        raise InputError(f"a policy called {name!r} ships", where="NAME", fix="give yours another name")
    path = Path(re.sub(r"[-.]", "_", name) + ".py")
    try:
        with path.open("x") as file:
            file.write(outline(name, path.name))
    except FileExistsError:
        raise InputError(
            f"{path} is there already", where=str(path), fix="name another, or move it away"
        ) from None
    except OSError as error:
        path.unlink(missing_ok=True)
        raise InputError(f"{path} can't be written: {error.strerror}", where=str(path)) from None
    spec = f"{path}:POLICY"
    if as_json:
        typer.echo(json.dumps({"file": str(path), "name": name, "spec": spec}))
    else:
        typer.echo(f"Wrote {path}. Next: windtunnel schedulers check {spec}")


@app.command(epilog="Example: windtunnel schedulers check my_policy.py:POLICY")
def check(
    specs: Annotated[list[str], typer.Argument(help="Schedulers or policies, e.g. edf or my.py:POLICY.")],
    quick: Annotated[bool, typer.Option("--quick", help="Ask the hooks only, simulate nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Ask every hook on small views, then run small windows; exit 1 if anything breaks the contract.

    Whole runs ask: does each prompt end, is the truth never used, do times have no unit, do only declared targets
    matter, does attainment fall with load, does compiled code do the same as plain Python, and do jumps.
    """
    from schedulers.load import find, pieces

    results = []
    for spec in specs:
        for half in pieces(spec):
            if not quick:
                typer.echo(f"{half}: checking", err=True)
            findings = _findings(find(half, strict=False), quick)
            results.append({"spec": half, "findings": findings})
    broken = any(result["findings"] for result in results)
    if as_json:
        typer.echo(json.dumps({"good": not broken, "checked": results}))
    else:
        for result in results:
            _tell(result)
    raise typer.Exit(1 if broken else 0)


@app.command(epilog="Example: windtunnel schedulers vllm")
def vllm(as_json: AsJson = False) -> None:
    """Tell which policies run inside vLLM, and how each hook is asked there (the table of docs/vllm.md)."""
    from schedulers.load import engine_names, load
    from services.worker.vllm.capability import ABILITIES, VERSIONS, faults, needs

    if as_json:
        policies = [load(name).engine for name in engine_names()]
        rows = [
            {"name": one.name, "needs": sorted(needs(one)), "faults": faults(one, 1 << 20, 1 << 20)}
            for one in policies
        ]
        hooks = [one._asdict() for one in ABILITIES]
        typer.echo(json.dumps({"versions": VERSIONS, "hooks": hooks, "policies": rows}))
    else:
        typer.echo(vllm_table(), nl=False)


def vllm_table() -> str:
    """Return the generated table of docs/vllm.md."""
    from schedulers.load import engine_names, load
    from services.worker.vllm.capability import markdown

    return markdown([load(name).engine for name in engine_names()])


@app.command(epilog="Example: windtunnel schedulers pages --write")
def pages(
    write: Annotated[
        bool,
        typer.Option(
            "--write",
            help="Rewrite docs/schedulers.md and the tables of schedulers/README.md and docs/vllm.md.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the generated page about all policies; with --write bring the repository's pages up to date."""
    text = page()
    if not write:
        typer.echo(json.dumps({"page": text}) if as_json else text, nl=as_json)
        return
    if not (DOCS.parent.is_dir() and README.is_file()):
        raise InputError(
            "there are no pages to write", where=str(ROOT), fix="run it in a checkout of the sources"
        )
    readme = README.read_text()
    changed, pages = [], [(DOCS, text), (README, TABLE.sub(lambda _: table(), readme))]
    if VLLM.is_file():
        pages.append((VLLM, TABLE.sub(lambda _: vllm_table(), VLLM.read_text())))
    for path, new_text in pages:
        if not path.is_file() or path.read_text() != new_text:
            part = path.with_name(path.name + ".part")
            part.write_text(new_text)
            part.replace(path)
            changed.append(str(path.relative_to(ROOT)))
    said = f"Rewrote {' and '.join(changed)}." if changed else "All pages were up to date."
    typer.echo(json.dumps({"changed": changed}) if as_json else said)


def _findings(found: "Found", quick: bool) -> list[dict[str, str]]:
    """Both halves of the contract suite; whole runs only of a policy whose declarations are sound."""
    from schedulers import checks

    findings = checks.check(found.policy, idea=found.module.__doc__ or "")
    if not quick and not checks.declared(found.policy):
        from sim import checks as runs

        findings += runs.check(found.policy, values=found.values)
    return [finding._asdict() for finding in findings]


def _print_set(name: str, meaning: str, policies: list[dict[str, Any]]) -> None:
    """Print one set as a table."""
    from rich.console import Console
    from rich.table import Table

    title = f"{name} ({len(policies)}): {meaning}"
    grid = Table(
        title=title, title_justify="left", title_style="bold", box=None, header_style="dim", pad_edge=False
    )
    grid.add_column("name", no_wrap=True)
    for heading in ("layer", "needs", "parameters", "paper"):
        grid.add_column(heading, overflow="fold", no_wrap=heading == "parameters")
    for policy in policies:
        params = "\n".join(f"{param['name']}={param['value']}" for param in policy["params"])
        needs = ", ".join(policy["reads"])
        grid.add_row(
            policy["name"].removesuffix("@published"), policy["layer"], needs, params, policy["source"]
        )
    console = Console()
    console.print(grid)
    console.print()


def _print_policy(told: dict[str, Any]) -> None:
    """Print what a policy says of itself."""
    typer.echo(
        f"{told['name']} ({told['layer']} policy, {told['set']}, version {told['version']})\n{told['idea']}"
    )
    if told["remarks"]:
        typer.echo(f"\n{told['remarks']}")
    typer.echo("\nrule")
    for hook, words in told["rule"].items():
        first, *more = words.splitlines()
        typer.echo("\n".join([f"  {hook:9}{first}", *(f"{'':11}{line}".rstrip() for line in more)]))
    if not told["rule"]:
        typer.echo("  no hook of its own: the defaults of the engine and the dispatcher")
    typer.echo(f"\nneeds    {', '.join(told['reads']) or 'none'}")
    typer.echo(f"source   {told['source'] or 'our own'}\nfile     {told['file']}")
    for key, words in told["fidelity"].items():
        typer.echo(f"{key:10} {words or 'nothing'}")
    typer.echo(f"params   {'' if told['params'] else 'none'}".rstrip())
    for param in told["params"]:
        text = f"{param['value']}, from {param['low']} to {param['high']} {param['unit']}: {param['meaning']}"
        typer.echo(f"  {param['name']} = {text}")


def _print_timeline(lines: list[str]) -> None:
    """Print a drawing, in colour on a terminal."""
    from rich.console import Console
    from rich.text import Text

    from windtunnel.timeline import COLOURS

    console = Console(highlight=False)
    for line in lines:
        text = Text(line)
        before, bar, rest = line.partition("|")
        for place, sign in enumerate(rest.rpartition("|")[0] if bar else ""):
            if sign in COLOURS:
                text.stylize(COLOURS[sign], len(before) + 1 + place, len(before) + 2 + place)
        console.print(text, soft_wrap=True)


def _tell(result: dict[str, Any]) -> None:
    typer.echo(f"{result['spec']}: {'good' if not result['findings'] else 'breaks the contract'}")
    for finding in result["findings"]:
        typer.echo(f"  {finding['rule']}: {finding['message']}")
