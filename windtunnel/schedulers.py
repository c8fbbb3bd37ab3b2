"""``windtunnel schedulers``: the policies that ship, one in full, and the contract check for your own."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from schedulers.load import Found

app = typer.Typer(no_args_is_help=True, help="List the policies that ship, and check your own.")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("list", epilog="Example: windtunnel schedulers list")
def list_policies(
    as_json: AsJson = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table of schedulers/README.md.")
    ] = False,
) -> None:
    """List every policy that ships, with its idea."""
    policies = _shipped()
    if as_json:
        typer.echo(json.dumps({"policies": policies}, allow_nan=False))
        return
    if markdown:
        typer.echo(table(), nl=False)
        return
    from rich.console import Console
    from rich.table import Table

    grid = Table("name", "kind", "idea", box=None, header_style="bold", pad_edge=False)
    for policy in policies:
        grid.add_row(policy["name"], "control" if policy["control"] else policy["kind"], policy["idea"])
    Console().print(grid)
    typer.echo(
        "\nA scheduler is ENGINE[:k=v,k=v][+CLUSTER[:k=v]], e.g. sarathi:phi=0.8+least-requests", err=True
    )


@app.command(epilog="Example: windtunnel schedulers show sarathi")
def show(
    name: Annotated[str, typer.Argument(help="A policy: NAME, PATH.py:POLICY or package.module:POLICY.")],
    as_json: AsJson = False,
) -> None:
    """Show one policy: its idea, its hooks, its parameters with units and ranges."""
    from schedulers.load import find

    facts = _facts(find(name))
    if as_json:
        typer.echo(json.dumps(facts, allow_nan=False))
        return
    typer.echo(f"{facts['name']} ({facts['kind']} policy, version {facts['version']})\n{facts['idea']}\n")
    for key in ("hooks", "reads", "source", "file"):
        value = facts[key]
        typer.echo(f"{key:8}{', '.join(value) if isinstance(value, list) else value or 'none'}")
    typer.echo(f"{'params':8}{'' if facts['params'] else 'none'}")
    for param in facts["params"]:
        text = f"{param['value']}, from {param['low']} to {param['high']} {param['unit']}: {param['meaning']}"
        typer.echo(f"  {param['name']} = {text}")


@app.command(epilog="Example: windtunnel schedulers check my_policy.py:POLICY")
def check(
    specs: Annotated[list[str], typer.Argument(help="Schedulers or policies, e.g. edf or my.py:POLICY.")],
    as_json: AsJson = False,
) -> None:
    """Ask every hook of a policy on small views; report what breaks the contract, exit 1 if anything does."""
    from schedulers import checks
    from schedulers.load import find, halves

    results = []
    for spec in specs:
        for half in halves(spec):
            if half:
                found = find(half, strict=False)
                findings = checks.check(found.policy, idea=found.module.__doc__ or "")
                results.append({"spec": half, "findings": [finding._asdict() for finding in findings]})
    broken = any(result["findings"] for result in results)
    if as_json:
        typer.echo(json.dumps({"good": not broken, "checked": results}))
    else:
        for result in results:
            _tell(result)
    raise typer.Exit(1 if broken else 0)


def table() -> str:
    """Return the table of shipped policies in Markdown, as it stands in schedulers/README.md."""
    lines = ["| name | kind | idea | reads | parameters (default, range) |", "|---|---|---|---|---|"]
    for policy in _shipped():
        params = [
            f"`{p['name']}` {p['value']} {p['unit']} ({p['low']}..{p['high']})" for p in policy["params"]
        ]
        cells = (
            f"`{policy['name']}`",
            policy["kind"],
            policy["idea"],
            ", ".join(policy["reads"]),
            "; ".join(params),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _shipped() -> list[dict[str, Any]]:
    """Return the facts of all shipped policies: engine, cluster, then controls."""
    from schedulers.load import cluster_names, engine_names, find

    facts = [_facts(find(name)) for name in engine_names() + cluster_names()]
    return sorted(facts, key=lambda policy: "control" in policy["kind"])


def _facts(found: "Found") -> dict[str, Any]:
    """Return what a policy declares, in plain values; an infinite number is the text "inf"."""
    from schedulers.checks import CLUSTER_HOOKS, ENGINE_HOOKS
    from schedulers.policy import EnginePolicy

    policy = found.policy
    engine = isinstance(policy, EnginePolicy)
    return {
        "name": policy.name,
        "kind": ("engine" if engine else "cluster") + (", control" if policy.control else ""),
        "idea": found.idea,
        "hooks": [hook for hook in (ENGINE_HOOKS if engine else CLUSTER_HOOKS) if getattr(policy, hook)],
        "params": [
            {
                "name": param.name,
                "value": _plain(value),
                "low": _plain(param.low),
                "high": _plain(param.high),
                "unit": param.unit,
                "meaning": param.meaning,
            }
            for param, value in zip(policy.params, found.values, strict=True)
        ],
        "reads": list(policy.reads),
        "control": policy.control,
        "oracle": policy.oracle,
        "version": policy.version,
        "source": policy.source,
        "file": str(found.module.__file__),
    }


def _plain(value: float) -> float | int | str:
    if value in (float("inf"), float("-inf")):
        return str(value)
    return int(value) if value == int(value) else value


def _tell(result: dict[str, Any]) -> None:
    typer.echo(f"{result['spec']}: {'good' if not result['findings'] else 'breaks the contract'}")
    for finding in result["findings"]:
        typer.echo(f"  {finding['rule']}: {finding['message']}")
