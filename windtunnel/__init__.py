"""The command line: one Typer app that composes the other packages."""
