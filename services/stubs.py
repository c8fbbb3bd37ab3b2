"""Makes the Python stubs of the wire contract: ``python -m services.stubs`` writes services/rpc from proto/."""

import os
import re
import sys
from importlib.resources import files
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = '"""Stubs made from proto/ by `python -m services.stubs`: never edited by hand."""\n'
IMPORT = re.compile(r"^(from|import) windtunnel\.v1\b", re.MULTILINE)


def generate(out: Path) -> list[Path]:
    """Write stubs, type stubs and package files under ``out``; return the files written.

    Raises RuntimeError if protoc refuses a file. protoc names modules by the path of the .proto file, which
    would be the import name of our command line; imports are turned to where the stubs lie.
    """
    from grpc_tools import protoc  # type: ignore[import-untyped] # a development tool: the services run without it

    sources = sorted((ROOT / "proto").rglob("*.proto"))
    include = str(files("grpc_tools") / "_proto")
    out.mkdir(parents=True, exist_ok=True)
    command = [
        "protoc", f"-I{ROOT / 'proto'}", f"-I{include}", f"--python_out={out}", f"--grpc_python_out={out}",
        f"--mypy_out=quiet:{out}", f"--mypy_grpc_out=quiet:{out}", *map(str, sources),
    ]  # fmt: skip
    beside_python = str(Path(sys.executable).parent)  # protoc looks for its plug-ins on the PATH
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = beside_python + os.pathsep + before
    try:
        if protoc.main(command) != 0:
            raise RuntimeError("protoc failed: " + " ".join(command))
    finally:
        os.environ["PATH"] = before
    made = [path for path in out.rglob("*") if path.suffix in (".py", ".pyi")]
    for path in made:
        path.write_text(IMPORT.sub(r"\1 services.rpc.windtunnel.v1", path.read_text("utf-8")), "utf-8")
    for package in {path.parent for path in made} | {out, out / "windtunnel"}:
        (package / "__init__.py").write_text(HEADER, encoding="utf-8")
    return sorted(path for path in out.rglob("*") if path.suffix in (".py", ".pyi"))


if __name__ == "__main__":
    for written in generate(ROOT / "services" / "rpc"):
        sys.stdout.write(f"{written.relative_to(ROOT)}\n")
