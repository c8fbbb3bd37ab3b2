"""The answer of a fidelity study in tables, for a page, for files and for the terminal."""

from collections.abc import Mapping
from typing import Any

from analysis.fidelity import LATENCIES
from analysis.tables import Table, table
from analysis.validity import FAILS, HOLDS
from analysis.words import metric_words

DRIVERS = {
    "paced": "real engines whose steps are stretched to their profile (paced)",
    "vllm": "real engines at their own speed",
    "live": "simulated engines in live processes",
}
"""What a run's driver means."""

Told = Mapping[str, Any]


def tables(of: Told) -> dict[str, Table]:
    """Return the tables of a study by name: answer, claims, ranks, errors, pressure, drift."""
    return {
        "answer": answer_table(of), "claims": claim_table(of), "ranks": place_table(of), "errors": error_table(of),
        "drift": drift_table(of), "pressure": pressure_table(of),
    }  # fmt: skip


def told_of(of: Told | None) -> dict[str, Any] | None:
    """Return what a page says of a study beside its figures and tables; None without one."""
    if of is None:
        return None
    tone = {HOLDS: "good", FAILS: "bad"}.get(of["verdict"]["says"], "open")
    return {"words": of["verdict"]["words"], "tone": tone, "sentences": sentences(of)}


def answer_table(of: Told) -> Table:
    """Return a condition a row and all together: agreement, its ceiling, and what live runs show clearly."""
    columns = ("window", "rho", "agreement (tau-b)|tau", "repeats among themselves|tau", "clear live|count",
               "same way round|count", "between schedulers|number", "between repeats|number")  # fmt: skip
    rows = [
        (one["window"], one["region"], _nan(one["tau"]), _nan(one["ceiling"]), one["clear"], one["same"],
         _nan(one["effect"]), _nan(one["noise"]))
        for one in of["conditions"]
    ]  # fmt: skip
    told = of["verdict"]
    rows.append(("all", "", _nan(told["tau"]), _nan(told["ceiling"]), told["clear"], told["same"],
                 _nan(told["effect"]), _nan(told["noise"])))  # fmt: skip
    return table("fidelity-answer", f"Agreement by {of['metric']}", columns, rows)


def claim_table(of: Told) -> Table:
    """Return the claims that were registered, with what became of each."""
    columns = ("claim", "first", "second", "so", "held|count", "broken|count", "unclear|count", "least gap|number",
               "first better at", "second better at")  # fmt: skip
    rows = []
    for one in of["pairs"]:
        pair = one["pair"]
        where = [
            ", ".join(place_words(name) for name, sign in sorted(pair["signs"].items()) if sign == side)
            for side in (1, -1)
        ]
        rows.append((pair["kind"], short(pair["first"]), short(pair["second"]), one["says"], one["held"],
                     one["broken"], one["unclear"], pair["least_gap"], *where))  # fmt: skip
    return table("fidelity-claims", "Claims registered before anything ran live", columns, rows)


def place_table(of: Told) -> Table:
    """Return each scheduler's value and place, simulated and live, a condition."""
    columns = ("window", "rho", "scheduler", "simulated|fine", "live mean|fine", "live lowest|fine",
               "live highest|fine", "place simulated|count", "place live|count")  # fmt: skip
    rows = [
        (one["window"], one["region"], short(row["scheduler"]), row["simulated"], row["mean"], min(row["live"]),
         max(row["live"]), row["rank_simulated"], row["rank_live"])
        for one in of["conditions"] for row in one["schedulers"]
    ]  # fmt: skip
    return table("fidelity-places", f"Schedulers by {of['metric']}, simulated and live", columns, rows)


def error_table(of: Told) -> Table:
    """Return errors of requests beside those between two repeats, which no simulator can undercut."""
    columns = ("of", "against", "signed median|share", "median|share", "p90|share", "median, s|number",
               "p90, s|number", "median, steps|number", "p90, steps|number")  # fmt: skip
    sides = (("simulated", "the simulator"), ("repeats", "another repeat"))
    rows = [
        (name.upper(), words, *(found.get(part, float("nan")) for part in (
            "signed_p50", "p50", "p90", "p50_s", "p90_s", "p50_steps", "p90_steps")))
        for name in LATENCIES for side, words in sides if (found := of["errors"][side].get(name))
    ]  # fmt: skip
    return table("fidelity-errors", "Errors of requests, medians over runs", columns, rows)


def drift_table(of: Told) -> Table:
    """Return how repeats differ as wholes."""
    columns = ("repeat|count", f"{of['metric']}, mean of all cells|fine", "engines slower than profile|fine",
               "in the worst run|fine")  # fmt: skip
    rows = [
        (one["repeat"], _nan(one["level"]), _nan(one["slowness"]), _nan(one["slowness_worst"]))
        for one in of["drift"]
    ]
    return table("fidelity-drift", "Drift of the host between repeats", columns, rows)


def pressure_table(of: Told) -> Table:
    """Return the pressure that each live run met beside the simulated one."""
    columns = ("window", "rho", "scheduler", "repeat|count", "simulated|number", "live|number",
               "engines slower than profile|fine", "missed")  # fmt: skip
    rows = [
        (one["window_id"], one["region"], short(one["scheduler"]), one["repeat"], one["simulated"], one["live"],
         _nan(one["slowness"]), "yes" if one["missed"] else "no")
        for one in of["pressure"]
    ]  # fmt: skip
    return table("fidelity-pressure", "Pressure reached, simulated and live", columns, rows)


def sentences(of: Told) -> list[str]:
    """Return what must be read beside the verdict."""
    told, registered = of["verdict"], of["registered"]
    kinds = [one for one in of["pairs"] if one["pair"]["kind"] != "borderline"]
    count = {word: sum(one["says"] == word for one in kinds) for word in ("held", "broken", "unclear")}
    turned = [one for one in of["pairs"] if one["pair"]["kind"] == "reversal"]
    came = sum(one["says"] == "held" for one in turned)
    found = [
        f"Run on {DRIVERS.get(of['driver'], of['driver'])}, ranked by the {metric_words(of['metric'])} "
        f"({registered['metric_why']}).",
        f"{told['schedulers']} schedulers, {told['conditions']} conditions picked from {registered['candidates']} "
        f"before anything ran live ({registered['why']}), {told['repeats']} repeats.",
        f"Of {len(turned)} reversals that were predicted {came} occurred. Of {len(kinds)} claims {count['held']} "
        f"held, {count['broken']} were broken and {count['unclear']} lie within the noise of repeats.",
    ]
    if told["chance"] is not None:
        found.append(f"A random order agrees as well in {told['chance']:.2%} of draws.")
    if of["attainment"]:
        off = of["attainment"]
        found.append(
            f"Attainment live is off by {off['mean']:+.3f} on average, {off['size_mean']:.3f} in size, "
            f"{off['size_max']:.3f} at most."
        )
    same = of["errors"]["same_engine"]
    if same["simulated"] is not None:
        beside = "" if same["repeats"] is None else f", between repeats {same['repeats']:.0%}"
        found.append(
            f"{same['simulated']:.0%} of requests ran on the engine that the simulator chose{beside}."
        )
    if len(of["pressure"]) < of["asked"]:
        lost = of["asked"] - len(of["pressure"])
        found.append(
            f"{lost} of {of['asked']} live runs are missing: they did not count, or never ran. "
            "A scheduler without all of its repeats is left out of that condition; the same command makes them."
        )
    missed = sum(one["missed"] for one in of["pressure"])
    if missed:
        found.append(f"{missed} of {len(of['pressure'])} live runs missed their pressure by more than 10 %.")
    return found


def as_markdown(of: Told) -> str:
    """Return the answer as Markdown, the verdict first."""
    lines = [
        f"# Fidelity: {DRIVERS.get(of['driver'], of['driver'])}",
        "",
        f"**{of['verdict']['words']}**",
        "",
    ]
    lines += [f"* {sentence}" for sentence in sentences(of)]
    for one in tables(of).values():
        if one.rows:
            lines += [
                "",
                f"{one.title}:",
                "",
                f"| {' | '.join(one.columns)} |",
                "|---" * len(one.columns) + "|",
            ]
            lines += [f"| {' | '.join(row)} |" for row in one.shown()]
    return "\n".join(lines) + "\n"


def place_words(condition: str) -> str:
    """Return a condition, "WINDOW RHO", with the window by its digest: "c044a3c88a at rho 1.5"."""
    window, _, region = condition.rpartition(" ")
    return f"{window.rpartition('-')[2]} at rho {region}"


def short(scheduler: str) -> str:
    """Return a scheduler's name without the cluster policy that all share."""
    return scheduler.removesuffix("+least-requests")


def _nan(value: float | None) -> float:
    return float("nan") if value is None else value
