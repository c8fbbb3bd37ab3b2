"""Page: the templates of the report and how they show numbers."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analysis.numerals import number, share, tau

TEMPLATES = Path(__file__).parent / "templates"


def environment(*, html: bool = True) -> Environment:
    """Return the environment of the templates; text is escaped for HTML unless told otherwise."""
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"number": number, "tau": tau, "share": share}
    return found
