"""Report of a study of tiers: one HTML file without network, and a page of the answer in Markdown."""

import json
from collections.abc import Sequence

import numpy as np

from analysis.charts import COLOURS, config
from analysis.page import chart_script, environment
from analysis.tables import Table, table
from analysis.tiers_answer import Answer
from analysis.tiers_effects import FACTORS
from analysis.tiers_figures import figures
from analysis.tiers_levels import Levels
from analysis.tiers_results import METRICS
from analysis.tiers_words import points


def report_text(found: Answer) -> str:
    """Return the report as HTML; same results, same bytes."""
    drawn = figures(found)
    charts = {one.name: one.spec for listed in drawn.values() for one in listed}
    specs = json.dumps({"config": config(), "charts": charts}, separators=(",", ":")).replace("<", "\\u003c")
    return environment().get_template("tiers.html.j2").render(
        found=found, of=found.results, figs=drawn, tabs=tables(found), facts=facts(found), colours=COLOURS,
        script=chart_script(), specs=specs,
    )  # fmt: skip


def page_text(found: Answer) -> str:
    """Return the answer in long form as Markdown."""
    return environment(html=False).get_template("tiers.md.j2").render(
        found=found, of=found.results, facts=facts(found), tables=page_tables(found), markdown=markdown
    )  # fmt: skip


def facts(found: Answer) -> dict[str, str]:
    """Return what was run, a line each (reference multitier, section 11, item 1)."""
    of, plan = found.results, found.results.plan
    atoms, fleet, cluster = plan["atoms"], plan["fleet"], plan.get("cluster") or {}
    board = found.board
    windows = {one: max(row["windows"] for row in board if row["source"] == one) for one in of.sources}
    rho = {region: [row["rho_reached"] for row in board if row["region"] == region] for region in of.regions}
    return {
        "traffic": "; ".join(f"{one} ({of.labels[one]}): {windows[one]} windows" for one in of.sources),
        "requests scored": "the middle four fifths of each window; all are served to their end, without a time limit",
        "load": "; ".join(f"rho {one} aimed, {np.mean(every):.2f} reached on average" for one, every in rho.items()),
        "fleet": f"{fleet['engines']} engines {fleet['profile']}, {fleet['sequences_max']} sequences and "
        f"{fleet['budget_max']} tokens a step at most, KV blocks of {fleet['block_tokens']} tokens as memory holds",
        "reports": f"every {cluster.get('period_s', 0) * 1e3:g} ms, {cluster.get('delay_s', 0) * 1e3:g} ms late",
        "mix, chain, ladder": f"{atoms['mix']}, {atoms['chain']}, {atoms['ladder']}; the top is worth "
        f"{atoms['ratio']:g} times the bottom",
        "headroom": f"{atoms['eta']:g} of each engine's blocks, split {atoms['split']}, by admission where on",
        "switches of the published study": "none: all are repaired",
        "tiers": "an assumption: no published trace has any",
    }  # fmt: skip


def tables(found: Answer) -> dict[str, list[Table]]:
    """Return the tables of the report by section."""
    return {
        "levels": [levels_table(found.levels), steps_table(found.levels)],
        "metrics": [metrics_table(found)],
        "effects": [effects_table(found), alone_table(found), factorial_table(found)],
        "board": board_tables(found),
        "moves": [moves_table(found)],
        "atoms": atom_tables(found),
        "travel": [travel_table(found)],
        "placebo": [placebo_table(found)],
        "cost": [one for one in (fleets_table(found), scaling_table(found)) if one.rows],
        "checks": [checks_table(found)],
    }


def where(one: Levels) -> tuple[str, ...]:
    """Return a condition's names for a row."""
    at = one.setting
    return (one.system, at.source, at.region, at.mix, at.chain, at.ladder)


WHERE = ("system", "source", "rho", "mix", "chain", "ladder")


def levels_table(levels: Sequence[Levels]) -> Table:
    """Return the surviving numbers of tiers a condition."""
    return table(
        "levels", "Numbers of tiers that may be best, by weighted attainment",
        (*WHERE, "K*", "set", "highest mean", "U at 1|fine", "U at 4|fine", "U of the best|fine", "windows|count"),
        [
            (*where(one), str(one.least), " ".join(map(str, one.survivors)), str(one.best), of_level(one, 1),
             of_level(one, 4), max(one.means), one.windows)
            for one in levels
        ],
    )  # fmt: skip


def of_level(one: Levels, tiers: int) -> float | None:
    """Return the mean at a number of tiers, None if it was not run."""
    return one.means[one.levels.index(tiers)] if tiers in one.levels else None


def steps_table(levels: Sequence[Levels]) -> Table:
    """Return what each further tier adds, with the verdict."""
    return table(
        "steps", "What one more tier adds to weighted attainment, percentage points",
        (*WHERE, "from", "to", "adds", "95 %", "verdict"),
        [
            (*where(one), str(step.below), str(step.above), points(step.effect.mean),
             f"{points(step.effect.low)} to {points(step.effect.high)}", step.verdict)
            for one in levels for step in one.steps
        ],
    )  # fmt: skip


def metrics_table(found: Answer) -> Table:
    """Return in how many conditions each number of tiers survives, by metric."""
    rows = []
    for metric, levels in (("U", found.levels), *found.by_metric.items()):
        for system in dict.fromkeys(one.system for one in levels):
            mine = [one for one in levels if one.system == system and one.informative]
            known = sorted({k for one in mine for k in one.levels})
            told = ", ".join(f"{k}: {sum(k in one.survivors for one in mine)}" for k in known)
            rows.append((METRICS[metric], system, len(mine), told or "–"))
    return table("metrics", "In how many conditions each number of tiers survives as best, by metric",
                 ("metric", "system", "conditions that differ|count", "tiers: conditions"), rows)  # fmt: skip


def effects_table(found: Answer) -> Table:
    """Return pooled effects with intervals."""
    rows = [
        (metric, name, " x ".join(FACTORS[letter] for letter in name), points(one.mean),
         f"{points(one.low)} to {points(one.high)}", one.shown or "not shown")
        for metric, named in found.pooled.items() for name, one in named.items()
    ]  # fmt: skip
    return table("effects", "Main effects and interactions, percentage points",
                 ("metric", "effect", "of", "mean", "95 %", "shown"), rows)  # fmt: skip


def alone_table(found: Answer) -> Table:
    """Return what mechanisms add alone and together."""
    rows = [
        (metric, row["what"], points(row["mean"]), f"{points(row['low'])} to {points(row['high'])}")
        for metric, listed in found.alone.items() for row in listed
    ]  # fmt: skip
    return table("alone", "What each mechanism adds to the plain scheduler, alone and together, points",
                 ("metric", "added", "mean", "95 %"), rows)  # fmt: skip


def factorial_table(found: Answer) -> Table:
    """Return effects a condition: main ones, dispatch by tier, the share of interactions."""
    rows = []
    for one in found.factorials:
        crossed = sum(share for name, share in one.shares.items() if len(name) > 1)
        by_tier = "–" if one.d_by_tier is None else points(one.d_by_tier.mean)
        cells = (
            points(one.effects[name].mean) + ("*" if one.effects[name].shown else "") for name in FACTORS
        )
        at = one.setting
        rows.append((one.metric, at.source, at.region, str(at.tiers), *cells, by_tier, crossed))
    return table("factorial", "Effects a condition, points (* shown), and the interactions' share of squares",
                 ("metric", "source", "rho", "tiers", *FACTORS.values(), "dispatch by tier", "interactions|share"),
                 rows)  # fmt: skip


def board_tables(found: Answer) -> list[Table]:
    """Return one table a source and region: every scheduler at the plan's tiers, and at one where it knows none."""
    made = []
    for source in found.results.sources:
        for region in found.results.regions:
            rows = [
                (row["scheduler"], str(row["tiers"]), row["U"], f"{row['U_low']:.3f} to {row['U_high']:.3f}",
                 row["top"], row["bottom"],
                 "undefined" if row["price"] is None else f"{row['price']:.2f}", row["inverted"], row["starved"],
                 row["wait_most_s"], row["idle_most_s"], row["jain"], row["worst_atom"], row["top_ttft_p95"],
                 row["bottom_ttft_p95"], row["top_e2e_p95"], row["bottom_e2e_p95"], row["rejected"],
                 row["engine_h_per_1000"], row["kv_peak"], row["batch_most"])
                for row in found.board if (row["source"], row["region"]) == (source, region)
            ]  # fmt: skip
            made.append(table(
                f"board-{source}-{region}", f"{source}, rho {region}",
                ("scheduler", "tiers", "U|fine", "95 %", "top|fine", "bottom|fine", "price", "inverted|share",
                 "starved|share", "longest wait s|number", "longest idle of an atom s|number", "Jain|number",
                 "worst atom|number", "TTFT P95 top s|number", "bottom s|number", "E2E P95 top s|number",
                 "bottom s |number", "rejected|count", "engine-h a 1,000|number", "KV peak|share", "batch|count"),
                rows,
            ))  # fmt: skip
    return made


def moves_table(found: Answer) -> Table:
    """Return moves, evictions and work done again, of those that move or evict."""
    rows = [
        (row["source"], row["region"], row["scheduler"], row["moves_started"], row["moves_committed"],
         row["moves_aborted"], row["moved_bytes"] / 1e9, row["downtime_ms"], row["moving_share"], row["evictions"],
         row["recomputed_tokens"])
        for row in found.board if row["moves_started"] or row["evictions"]
    ]  # fmt: skip
    return table("moves", "Migrations, evictions and recomputed tokens",
                 ("source", "rho", "scheduler", "started|count", "committed|count", "aborted|count", "GB|number",
                  "downtime ms a move|number", "share of engine time moving|share", "evictions|count",
                  "recomputed tokens|count"), rows)  # fmt: skip


def atom_tables(found: Answer) -> list[Table]:
    """Return one table a source and region: arrivals, attainment and percentiles of each atom and scheduler."""
    made = []
    names = (
        "ttft_p50",
        "ttft_p95",
        "ttft_p99",
        "tpot_p50",
        "tpot_p95",
        "tpot_p99",
        "e2e_p50",
        "e2e_p95",
        "e2e_p99",
    )
    for source in found.results.sources:
        for region in found.results.regions:
            rows = [
                (row["scheduler"], str(row["tiers"]), row["atom"], row["arrivals"], row["attainment"],
                 f"{row['low']:.3f} to {row['high']:.3f}", *(row[name] for name in names), row["rejected"],
                 row["preempted"], row["migrated"])
                for row in found.atoms if (row["source"], row["region"]) == (source, region)
            ]  # fmt: skip
            heads = (f"{name.replace('_p', ' P').replace('e2e', 'E2E').upper()} s|number" for name in names)
            made.append(table(
                f"atoms-{source}-{region}", f"{source}, rho {region}",
                ("scheduler", "tiers", "atom", "arrivals|count", "attainment|fine", "95 %", *heads, "rejected|count",
                 "preempted|count", "migrated|count"), rows,
            ))  # fmt: skip
    return made


def travel_table(found: Answer) -> Table:
    """Return agreement of the surviving sets along each axis, beside the ceiling."""
    rows = [
        (one.axis, one.system, one.pairs, f"{one.overlap:.2f}", f"{one.ceiling:.2f}",
         f"{one.gap_low:.2f} to {one.gap_high:.2f}", one.inside, one.inside_ceiling,
         "yes" if one.testable else "no: too few windows")
        for one in found.travel
    ]  # fmt: skip
    return table("travel", "Do the sets agree? Halves of windows against halves",
                 ("across", "system", "pairs|count", "overlap (Jaccard)", "noise ceiling", "gap, 95 %",
                  "K* in the other's set|share", "between halves|share", "can halves show any worse"),
                 rows)  # fmt: skip


def placebo_table(found: Answer) -> Table:
    """Return what tiers gain that say nothing."""
    rows = [
        (at.source, at.region, str(at.tiers), spec, points(one.mean), f"{points(one.low)} to {points(one.high)}")
        for at, spec, one in found.placebo
    ]  # fmt: skip
    return table("placebo", "Gain in weighted attainment over one tier where tiers are shown at random, points",
                 ("source", "rho", "tiers", "scheduler", "gain", "95 %"), rows)  # fmt: skip


def fleets_table(found: Answer) -> Table:
    """Return attained shares by fleet, and the fewest engines that attain the aim."""
    rows = [
        (one.source, one.region, one.spec, str(one.tiers),
         "; ".join(f"{n}: {top:.2f}/{u:.2f}/{bottom:.2f}" for n, (top, u, bottom) in
                   zip(one.engines, one.attained, strict=True)),
         str(one.least) if one.least else "none", one.fraction,
         f"{one.fraction_low:.2f} to {one.fraction_high:.2f}" if np.isfinite(one.fraction) else "–",
         "; ".join(f"{n}: {hours:.3f}" for n, hours in zip(one.engines, one.hours_per_1000, strict=True)))
        for one in found.fleets
    ]  # fmt: skip
    return table("fleets", "Engines at equal attainment (top 0.95, U 0.90, bottom 0.70)",
                 ("source", "rho of the plan's fleet", "scheduler", "tiers", "engines: top/U/bottom",
                  "fewest that attain all", "U alone|number", "95 %", "engine-hours a 1,000 attained"),
                 rows)  # fmt: skip


def scaling_table(found: Answer) -> Table:
    """Return what autoscaling attained and cost."""
    rows = [
        (row["source"], row["region"], row["scheduler"], str(row["tiers"]), f"{row['boot_s']:g}", row["U"],
         row["top"], row["bottom"], row["engine_h"], row["engine_h_per_1000"], row["boots"], row["drains"])
        for row in found.scaling
    ]  # fmt: skip
    return table("scaling", "Autoscaled fleets",
                 ("source", "rho of the plan's fleet", "scheduler", "tiers", "boot s", "U|fine", "top|fine",
                  "bottom|fine", "engine-hours|number", "a 1,000 attained|number", "boots|count", "drains|count"),
                 rows)  # fmt: skip


def checks_table(found: Answer) -> Table:
    """Return what must hold, and what was seen."""
    words = {True: "holds", False: "does not hold", None: "not shown"}
    rows = [(one["check"], words[one["holds"]], one["seen"]) for one in found.checks]
    return table("checks", "What must hold", ("check", "holds", "seen|prose"), rows)


def page_tables(found: Answer) -> list[Table]:
    """Return the tables of the Markdown page: those that answer, in full."""
    made = tables(found)
    return [
        *made["checks"],
        made["levels"][0],
        *made["metrics"],
        *made["effects"][:2],
        *made["travel"],
        *made["cost"],
    ]


def markdown(one: Table) -> str:
    """Return a table as Markdown."""
    lines = ["| " + " | ".join(one.columns) + " |", "|" + " --- |" * len(one.columns)]
    lines += ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in one.shown()]
    return "\n".join(lines)
