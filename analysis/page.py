"""Page: templates, stylesheet and chart script that the report and the web pages share, and how they show numbers."""

import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analysis.charts import COLOURS, Figure, config
from analysis.numerals import number, share, tau

TEMPLATES = Path(__file__).parent / "templates"


def environment(*, html: bool = True, beside: Sequence[Path] = ()) -> Environment:
    """Return the environment of the templates; text is escaped for HTML unless told otherwise.

    ``beside`` are folders of further templates, which may use those of the report.
    """
    found = Environment(
        loader=FileSystemLoader([*beside, TEMPLATES]),
        autoescape=html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"number": number, "tau": tau, "share": share}
    return found


def stylesheet() -> str:
    """Return the style of every page: colours for light, dark and paper, then the rules."""
    return environment(html=False).get_template("colours.css.j2").render(colours=COLOURS)


@cache
def chart_script() -> str:
    """Return the JavaScript of Vega, Vega-Lite and Vega-Embed, which no page may end early; a second or two."""
    import vl_convert

    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return str(bundle).replace("</script", "<\\/script")


def specs_json(figures: Iterable[Figure]) -> str:
    """Return charts' specifications and what they share as JSON that may stand inside HTML."""
    told = {"config": config(), "charts": {one.name: one.spec for one in figures}}
    return json.dumps(told, separators=(",", ":")).replace("<", "\\u003c")
