"""The few shapes that all dashboards are built of: a query, a curve, a number, a row of lanes, an annotation."""

from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    GraphDrawStyle,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableHide,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
DATASOURCE_UID = "windtunnel-prometheus"
"""The provisioned data source, and the variable that stands for it in every panel."""

Queries = dict[str, str]
"""Expressions by what the legend says of each."""


def queries(panel: Any, given: Queries) -> Any:
    """Give a panel its queries: A, B, C... in order."""
    for place, (legend, expr) in enumerate(given.items()):
        query = prometheus.Dataquery().expr(expr).legend_format(legend).ref_id(chr(ord("A") + place)).range()
        panel = panel.with_target(query.datasource(SOURCE))
    return panel.datasource(SOURCE)


def curve(title: str, given: Queries, unit: str, says: str, **more: Any) -> Any:
    """Values over time; ``stacked`` fills and stacks them, ``width`` is in 24ths, ``most`` the end of the axis."""
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.TABLE).placement(LegendPlacement.BOTTOM)
    tooltip = common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
    panel = (
        timeseries.Panel().title(title).description(says).unit(unit).min(0).line_width(2)
        .show_points(VisibilityMode.NEVER).span_nulls(False).tooltip(tooltip)
        .legend(legend.show_legend(True).calcs(["lastNotNull", "max"]))
        .height(8).span(more.get("width", 12))
    )  # fmt: skip
    if "most" in more:
        panel = panel.max(more["most"])
    if more.get("stacked"):
        panel = panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(30)
        panel = panel.draw_style(GraphDrawStyle.LINE)
    return queries(panel, given)


def number(title: str, given: Queries, unit: str, says: str, **more: Any) -> Any:
    """The latest value, large; ``good_from`` turns it green from there on, ``bad_from`` red."""
    steps = [Threshold(value=None, color="text")]
    if "good_from" in more:
        steps = [Threshold(value=None, color="red"), Threshold(value=more["good_from"], color="green")]
    if "bad_from" in more:
        steps = [Threshold(value=None, color="green"), Threshold(value=more["bad_from"], color="red")]
    thresholds = dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
    panel = (
        stat.Panel().title(title).description(says).unit(unit).thresholds(thresholds)
        .color_mode(BigValueColorMode.VALUE).reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .height(more.get("height", 4)).span(more.get("width", 4))
    )  # fmt: skip
    return queries(panel, given)


def lanes(title: str, given: Queries, says: str) -> Any:
    """One lane a series: when it was in which state."""
    panel = statetimeline.Panel().title(title).description(says).height(8).span(24).fill_opacity(70)
    return queries(panel, given)


def quantile(share: float, metric: str, by: str = "tier", where: str = 'tier=~"$tier"') -> str:
    """A quantile of a histogram over the rate interval, by labels."""
    grouped = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({grouped}) (rate({metric}_bucket{{{where}}}[$__rate_interval])))"


def rate(metric: str, by: str = "", where: str = "") -> str:
    """A counter's growth a second, summed by labels."""
    grouped = f"sum by ({by})" if by else "sum"
    return f"{grouped} (rate({metric}{{{where}}}[$__rate_interval]))"


def annotation(name: str, expr: str, colour: str, text: str) -> Any:
    """Marks over time wherever an expression has a value; the text may name its labels."""
    made = (
        dashboard.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(colour).expr(expr)
    )
    return made, {"step": "5s", "titleFormat": name, "textFormat": text, "useValueForTime": False}


def variable(name: str, query: str, label: str, *, several: bool) -> Any:
    """A variable with the values of a label, all of them at first where several may be chosen."""
    made = (
        dashboard.QueryVariable(name).label(label).query(query).datasource(SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)
    )  # fmt: skip
    if several:
        all_of_them = VariableOption(text="All", value="$__all")
        made = made.multi(True).include_all(True).all_value(".*").current(all_of_them)
    return made


def source_variable() -> Any:
    """Which Prometheus is asked."""
    chosen = VariableOption(text="Windtunnel", value=DATASOURCE_UID)
    return (
        dashboard.DatasourceVariable("datasource")
        .label("Data source")
        .type("prometheus")
        .current(chosen)
        .hide(VariableHide.DONT_HIDE)
    )


def links() -> Any:
    """The other dashboards."""
    made = dashboard.DashboardLink("Windtunnel").type(DashboardLinkType.DASHBOARDS).tags(["windtunnel"])
    return (
        made.as_dropdown(False).include_vars(True).keep_time(True).icon("external link").url("").tooltip("")
    )
