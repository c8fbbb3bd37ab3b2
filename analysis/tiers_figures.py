"""Pictures of a study of tiers: attainment by number of tiers and load, who gains and who pays, effects, sets."""

from typing import TYPE_CHECKING, Any

from analysis.charts import Figure, as_spec, colour, ink_on, names_axis, over, steps, tips, unchecked
from analysis.tiers_effects import FACTORS

if TYPE_CHECKING:
    from analysis.tiers_answer import Answer

GROUPS = {"top": ("s1", "circle"), "U": ("ink", "square"), "bottom": ("s2", "triangle-up")}
"""Colour and mark of what a curve shows."""


def figures(found: "Answer") -> dict[str, list[Figure]]:
    """Return the figures of a report by section; a section without data has none."""
    with unchecked():
        return {
            "levels": level_curves(found),
            "loads": load_curves(found),
            "sets": sets(found),
            "effects": effects(found),
            "pareto": pareto(found),
        }


def level_curves(found: "Answer") -> list[Figure]:
    """Return one figure a source and system: attainment of top, bottom and all over the number of tiers, by load."""
    by_metric = {"U": found.levels} | {name: found.by_metric.get(name, []) for name in ("top", "bottom")}
    of, made = found.results, []
    for system in ("queue order", "all mechanisms"):
        for source in of.sources:
            rows = [
                {"tiers": k, "rho": one.setting.region, "what": metric, "mean": mean, "low": low, "high": high,
                 "windows": one.windows}
                for metric, levels in by_metric.items() for one in levels
                if one.system == system and one.setting == of.at(source, one.setting.region)
                for k, mean, low, high in zip(one.levels, one.means, one.low, one.high, strict=True)
            ]  # fmt: skip
            if rows:
                title = f"{source} ({of.labels[source]}), {system}"
                told = f"Attainment by number of tiers on {source} with {system}"
                name = f"levels-{source}-{system.replace(' ', '-')}"
                made.append(Figure(name, title, told, _curves(rows, "tiers", "number of tiers", of.regions)))
    return made


def load_curves(found: "Answer") -> list[Figure]:
    """Return one figure a source: attainment of each atom at one tier and at the plan's, over the load."""
    import altair as alt

    of, made = found.results, []
    wanted = "tiered:order=1,headroom=1+tier-freeness+rebalance"
    plain = of.place(wanted, 1)[0]
    for source in of.sources:
        rows = [
            {"rho": row["region"], "atom": row["atom"], "tiers": f"{row['tiers']} tier{'s' * (row['tiers'] > 1)}",
             "mean": row["attainment"], "low": row["low"], "high": row["high"], "arrivals": row["arrivals"]}
            for row in found.atoms
            if row["source"] == source and (row["scheduler"], row["tiers"] > 1) in ((wanted, True), (plain, False))
        ]  # fmt: skip
        if not rows:
            continue
        order = sorted({row["atom"] for row in rows}, key=lambda name: int(name.split("-")[0]))
        mark = alt.Chart()
        chart = over(
            mark.mark_rect(stroke=colour("box"), strokeWidth=1).encode(
                color=steps("mean", (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.98),
                            ("t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8"), "attainment")),
            mark.mark_text(fontSize=11).encode(
                text=alt.Text("mean:Q", format=".2f"), color=ink_on("datum.mean < 0.1 || datum.mean >= 0.9")),
        ).encode(
            x=alt.X("rho:O", title="rho", sort=list(of.regions), axis=names_axis("top")),
            y=alt.Y("atom:N", title="atom, 0 the most important", sort=order, axis=names_axis()),
            tooltip=tips("tiers", "atom", ("rho", "rho"), ("mean:.3f", "attainment"), ("low:.3f", "95% low"),
                         ("high:.3f", "95% high"), ("arrivals:.0f", "arrivals")),
        ).properties(width=alt.Step(52), height=alt.Step(22))  # fmt: skip
        chart = chart.facet(column=alt.Column("tiers:N", title=None), spacing=16)
        title = f"{source} ({of.labels[source]}): each atom, untold and told"
        made.append(Figure(f"loads-{source}", title, f"Attainment of each atom on {source} over load",
                           as_spec(chart, rows)))  # fmt: skip
    return made


def _curves(rows: list[dict[str, Any]], x: str, title: str, regions: tuple[str, ...]) -> dict[str, Any]:
    import altair as alt

    names = list(GROUPS)
    hue = alt.Color("what:N", scale=alt.Scale(domain=names, range=[colour(GROUPS[one][0]) for one in names]),
                    legend=alt.Legend(title=None, orient="top", symbolOpacity=1))  # fmt: skip
    shape = alt.Shape("what:N", scale=alt.Scale(domain=names, range=[GROUPS[one][1] for one in names]))
    values = sorted({row[x] for row in rows})
    mark = alt.Chart()
    chart = over(
        mark.mark_area(opacity=0.15).encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q")),
        mark.mark_line(strokeWidth=2).encode(y=alt.Y("mean:Q", title=None, scale=alt.Scale(domain=[0, 1]))),
        mark.mark_point(filled=True, size=40).encode(y=alt.Y("mean:Q"), shape=shape),
    ).encode(
        x=alt.X(f"{x}:Q", title=title, axis=alt.Axis(values=values, format="d", grid=False)),
        color=hue,
        tooltip=tips("what", (f"{x}:d", title), ("rho", "rho"), ("mean:.3f", "mean"), ("low:.3f", "95% low"),
                     ("high:.3f", "95% high"), "windows"),
    ).properties(width=170, height=150)  # fmt: skip
    chart = chart.facet(facet=alt.Facet("rho:N", title="rho", sort=list(regions)), columns=4, spacing=14)
    return as_spec(chart, rows)


def sets(found: "Answer") -> list[Figure]:
    """Return one figure a system: which numbers of tiers survive as best in each condition."""
    import altair as alt

    made = []
    for system in dict.fromkeys(one.system for one in found.levels):
        rows = []
        for one in found.levels:
            if one.system != system:
                continue
            at = one.setting
            where = f"{at.source}, {at.mix}{'' if at.chain == 'top-first' else ', ' + at.chain}" \
                    f"{'' if at.ladder == found.results.home.ladder else ', ' + at.ladder}"  # fmt: skip
            top = max(one.means)
            rows += [
                {"where": where, "rho": at.region, "tiers": k, "mean": mean, "behind": top - mean, "p": p,
                 "set": "survives" if k in one.survivors else "shown worse",
                 "text": ("★" if k == one.least else "•") if k in one.survivors else ""}
                for k, mean, p in zip(one.levels, one.means, one.p_worse, strict=True)
            ]  # fmt: skip
        mark = alt.Chart()
        chart = over(
            mark.mark_rect(stroke=colour("box"), strokeWidth=1).encode(
                color=steps("behind", (0.005, 0.02, 0.05, 0.1), ("t7", "t6", "t5", "t4", "t3"), "behind best")
            ),
            mark.mark_text(fontSize=12).encode(text=alt.Text("text:N"), color=ink_on("datum.behind < 0.005")),
        ).encode(
            x=alt.X("tiers:O", title="tiers", axis=names_axis("top")),
            y=alt.Y("where:N", title=None, axis=names_axis()),
            tooltip=tips("where", ("rho", "rho"), "tiers", "set", ("mean:.3f", "U"),
                         ("behind:.3f", "behind the best"), ("p:.2g", "p that it is worse")),
        ).properties(width=alt.Step(24), height=alt.Step(20))  # fmt: skip
        order = list(found.results.regions)
        chart = chart.facet(column=alt.Column("rho:N", title="rho", sort=order), spacing=12)
        made.append(Figure(f"sets-{system.replace(' ', '-').replace('(', '').replace(')', '')}",
                           f"Numbers of tiers that may be best: {system}",
                           f"Which numbers of tiers are not shown worse than the best with {system}",
                           as_spec(chart, rows)))  # fmt: skip
    return made


def effects(found: "Answer") -> list[Figure]:
    """Return the effects of the factorial, pooled, with intervals: on all, on the top, on the bottom."""
    import altair as alt

    rows: list[dict[str, Any]] = [
        {"effect": name if len(name) > 1 else f"{name} {FACTORS[name]}", "what": metric, "mean": 100 * one.mean,
         "low": 100 * one.low, "high": 100 * one.high, "order": len(name)}
        for metric, named in found.pooled.items() for name, one in named.items()
    ]  # fmt: skip
    if not rows:
        return []
    names, order = list(GROUPS), list(dict.fromkeys(str(row["effect"]) for row in rows))
    mark = alt.Chart()
    chart = over(
        mark.mark_rule(color=colour("line")).encode(x=alt.datum(0)),
        mark.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q"), x2=alt.X2("high:Q")),
        mark.mark_point(filled=True, size=60, opacity=1).encode(x=alt.X("mean:Q", title="percentage points")),
    ).encode(
        y=alt.Y("effect:N", title=None, sort=order, axis=names_axis()),
        color=alt.Color("what:N", legend=None,
                        scale=alt.Scale(domain=names, range=[colour(GROUPS[one][0]) for one in names])),
        tooltip=tips("effect", "what", ("mean:.2f", "points"), ("low:.2f", "95% low"), ("high:.2f", "95% high")),
    ).properties(width=200, height=alt.Step(20))  # fmt: skip
    chart = chart.facet(column=alt.Column("what:N", title=None, sort=names), spacing=14)
    told = "Main effects and interactions of dispatch, queue order, headroom and migration"
    return [
        Figure("effects", f"Effects at {found.results.home.tiers} tiers, pooled", told, as_spec(chart, rows))
    ]


def pareto(found: "Answer") -> list[Figure]:
    """Return what each scheduler gives the top against what it takes from the bottom, beside one plain tier."""
    import altair as alt

    of = found.results
    plain = of.place("tiered+least-kv", 1)[0]
    rows: list[dict[str, Any]] = []
    for source in of.sources:
        for region in of.regions:
            here = [row for row in found.board if (row["source"], row["region"]) == (source, region)]
            base = next((row for row in here if row["scheduler"] == plain), None)
            rows += [] if base is None else [
                {"scheduler": row["scheduler"], "source": source, "rho": region,
                 "gain": 100 * (row["top"] - base["top"]), "loss": 100 * (row["bottom"] - base["bottom"]),
                 "U": row["U"], "price": "undefined" if row["price"] is None else f"{row['price']:.2f}",
                 "kind": kind(row["scheduler"], row["tiers"])}
                for row in here
            ]  # fmt: skip
    if not rows:
        return []
    for row in rows:
        rivals = [one for one in rows if (one["source"], one["rho"]) == (row["source"], row["rho"])]
        row["front"] = not any(
            one["gain"] >= row["gain"] and one["loss"] >= row["loss"]
            and (one["gain"] > row["gain"] + 1e-9 or one["loss"] > row["loss"] + 1e-9) for one in rivals
        )  # fmt: skip
    kinds = ("one tier", "queue order", "headroom", "both", "other tiered")
    mark = alt.Chart()
    chart = over(
        mark.mark_rule(color=colour("line")).encode(x=alt.datum(0)),
        mark.mark_rule(color=colour("line")).encode(y=alt.datum(0)),
        mark.mark_point(size=50).encode(
            x=alt.X("loss:Q", title="bottom, points"), y=alt.Y("gain:Q", title="top, points"),
            color=alt.Color("kind:N", legend=alt.Legend(title=None, orient="top", columns=3, symbolStrokeWidth=2),
                            scale=alt.Scale(domain=kinds, range=[colour(f"s{i}") for i in range(1, 6)])),
        ),
        mark.mark_point(size=50, filled=True, opacity=1).transform_filter("datum.front").encode(
            x=alt.X("loss:Q"), y=alt.Y("gain:Q"), color=alt.Color("kind:N")),
    ).encode(
        tooltip=tips("scheduler", "source", ("rho", "rho"), ("gain:.1f", "top, points"),
                     ("loss:.1f", "bottom, points"), ("U:.3f", "U"), ("price", "price of isolation"), "front"),
    ).properties(width=170, height=150)  # fmt: skip
    chart = chart.facet(row=alt.Row("source:N", title=None, sort=list(of.sources)),
                        column=alt.Column("rho:N", title="rho", sort=list(of.regions)), spacing=12)  # fmt: skip
    told = "Gain of the top against loss of the bottom, beside one tier; full marks are on the front"
    return [Figure("pareto", "Who gains and who pays", told, as_spec(chart, rows))]


def kind(spec: str, tiers: int) -> str:
    """Return by which tier mechanism a scheduler works, for its colour."""
    if tiers == 1:
        return "one tier"
    order, room = "order=1" in spec, "headroom=1" in spec
    return "both" if order and room else "queue order" if order else "headroom" if room else "other tiered"
