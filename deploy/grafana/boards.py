"""The five dashboards: run overview, engines, dispatcher, replay validity, two runs side by side."""

from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync

from deploy.grafana.panels import (
    annotation,
    curve,
    lanes,
    links,
    number,
    quantile,
    rate,
    source_variable,
    variable,
)

RUN = 'run=~"$run",tier=~"$tier"'
TIER = 'tier=~"$tier"'
RECENT = "[15s]"
"""How far annotations look back: some scrapes."""

Made = tuple[Any, list[tuple[Any, dict[str, Any]]]]
"""A dashboard's builder, and its annotations with the fields that the builder does not know."""


def board(uid: str, title: str, says: str, panels: list[Any], variables: list[Any]) -> Made:
    """A dashboard with everything that all of them have."""
    made = (
        dashboard.Dashboard(title).uid(uid).description(says).tags(["windtunnel", "vllm"]).timezone("browser")
        .time("now-15m", "now").refresh("5s").tooltip(DashboardCursorSync.CROSSHAIR).link(links())
        .variables([source_variable(), *variables])
    )  # fmt: skip
    for panel in panels:
        made = made.with_row(panel) if isinstance(panel, dashboard.Row) else made.with_panel(panel)
    return made, marks()


def marks() -> list[tuple[Any, dict[str, Any]]]:
    """What happened: runs, switches of the policy, moves, changes of the fleet."""
    return [
        annotation("Run", "windtunnel_replay_running == 1", "blue", "run {{run}}"),
        annotation("Policy switch", f"increase(windtunnel_policy_switches_total{RECENT}) > 0", "purple",
            "policy switched"),
        annotation(
            "Migration",
            f'sum by (cause) (increase(windtunnel_migrations_total{{outcome="committed"}}{RECENT})) > 0',
            "orange",
            "moves, cause {{cause}}",
        ),
        annotation(
            "Scaling",
            f"sum by (direction) (increase(windtunnel_scale_decisions_total{RECENT})) > 0",
            "green",
            "the fleet goes {{direction}}",
        ),
        annotation(
            "Worker lost", 'windtunnel_engine_state{state=~"away|lost"} == 1', "red",
                "engine {{engine}} is {{state}}"
        ),
    ]  # fmt: skip


def tier() -> Any:
    """Choose tiers."""
    return variable("tier", "label_values(windtunnel_arrivals_total, tier)", "Tier", several=True)


def run() -> Any:
    """Choose runs."""
    return variable("run", "label_values(windtunnel_replay_info, run)", "Run", several=True)


def overview() -> Made:
    """How the tiers fare."""
    met, scored = f"windtunnel_replay_slo_met_total{{{RUN}}}", f"windtunnel_replay_scored_total{{{RUN}}}"
    panels = [
        dashboard.Row("Tiers"),
        number(
            "Attainment of the run", {"tier {{tier}}": f"sum by (tier) ({met}) / (sum by (tier) ({scored}) > 0)"},
            "percentunit",
                "Share of the run's scored requests that met every target, as the load generator saw it.",
            width=8, good_from=0.9,
        ),
        number(
            "Attainment, last minute", {"tier {{tier}}": f"windtunnel:tier_attainment:ratio_rate1m{{{TIER}}}"},
            "percentunit", "The same as the dispatcher sees it, over all that ended.", width=8, good_from=0.9,
        ),
        number(
            "Burn rate, 5 minutes", {"tier {{tier}}": f"windtunnel:slo_burn:rate5m{{{TIER}}}"}, "none",
            "How many times faster than allowed the budget of misses is used up.", width=8, bad_from=2,
        ),
        curve(
            "Attainment over time", {"tier {{tier}}": f"windtunnel:tier_attainment:ratio_rate1m{{{TIER}}}"},
            "percentunit", "Over the last minute at each moment.", most=1,
        ),
        curve(
            "Time to first token, p95", {"tier {{tier}}": quantile(0.95, "windtunnel_time_to_first_token_seconds")},
            "s", "From arrival at the dispatcher.",
        ),
        curve(
            "Gap between tokens, p95", {"tier {{tier}}": quantile(0.95, "windtunnel_inter_token_latency_seconds")},
            "s", "Of messages, which may carry several tokens.",
        ),
        curve(
            "End to end, p95", {"tier {{tier}}": quantile(0.95, "windtunnel_e2e_request_latency_seconds")}, "s",
            "Of finished requests.",
        ),
        curve(
            "Targets missed", {"tier {{tier}} {{target}}": rate("windtunnel_slo_missed_total", "tier, target",
                TIER)},
            "reqps", "By target; dropped: it never finished.", stacked=True,
        ),
    ]  # fmt: skip
    says = "Tiers first."
    return board("windtunnel-overview", "Windtunnel: run overview", says, [*panels, *load()], [tier(), run()])


def load() -> list[Any]:
    """What comes, and what becomes of it."""
    return [
        dashboard.Row("Load"),
        curve(
            "Arrivals", {"tier {{tier}}": rate("windtunnel_arrivals_total", "tier", TIER)}, "reqps",
            "Requests that came.", stacked=True,
        ),
        curve(
            "Waiting for a first token", {"tier {{tier}}": f"windtunnel_queue_depth{{{TIER}}}"}, "short",
            "In the dispatcher's queue and in engines' queues.", stacked=True,
        ),
        curve(
            "Turned away", {
                "tier {{tier}} {{reason}}": rate(
                    "windtunnel_requests_total", "tier, reason", f'{TIER},outcome=~"rejected|expired"'
                )
            }, "reqps", "Shed, refused or expired, by reason.", stacked=True,
        ),
        curve("Tokens", {"tokens": rate("windtunnel_link_tokens_total")}, "short", "From all workers, a second."),
        number("Engines serving", {"engines": 'sum(windtunnel_engine_state{state="serving"})'}, "short", "Now."),
        number(
            "Engine-seconds", {"engines": "sum(windtunnel_engine_seconds_total)"}, "s", "What the fleet has cost."
        ),
    ]  # fmt: skip


def engines() -> Made:
    """What goes on inside the engines."""
    kv = {"{{engine}}": "vllm:kv_cache_usage_perc"}
    panels = [
        lanes(
            "State of the engines", {"{{engine}} {{state}}": "windtunnel_engine_state"},
            "One lane an engine and state; 1 while it is in it.",
        ),
        curve("KV memory in use", kv, "percentunit", "Share of the blocks, engine by engine.", most=1),
        curve("Batch", {"{{engine}}": "vllm:num_requests_running"}, "short", "Requests that run."),
        curve("Queue", {"{{engine}}": "vllm:num_requests_waiting"}, "short", "Requests that wait inside engines."),
        curve(
            "Preemptions", {"{{engine}}": rate("vllm:num_preemptions_total", "engine")}, "reqps",
            "Requests thrown out of a batch, a second.",
        ),
        curve(
            "Step time, p95", {"{{engine}}": quantile(0.95, "windtunnel_step_seconds", "engine", "")}, "s",
            "Of one batch forward.",
        ),
        curve("Tokens made", {"{{engine}}": rate("vllm:generation_tokens_total", "engine")}, "short", "A second."),
        curve(
            "Time to first token inside engines, p95",
            {"{{engine}}": quantile(0.95, "vllm:time_to_first_token_seconds", "engine", "")}, "s",
            "From enqueueing at the engine; the rest of a client's wait is the dispatcher's.",
        ),
        curve(
            "Queue time inside engines, p95",
            {"{{engine}}": quantile(0.95, "vllm:request_queue_time_seconds", "engine", "")},
                "s", "To the first step.",
        ),
        curve(
            "Migrations", {"{{cause}} {{outcome}}": rate("windtunnel_migrations_total", "cause, outcome")}, "reqps",
            "Moves of running requests, a second.",
        ),
        curve(
            "Bytes of moves", {"{{engine}} {{direction}}": rate("windtunnel_migration_bytes_total",
                "engine, direction")},
            "Bps", "KV blocks as they travel.",
        ),
        number(
            "Downtime of moves, mean", {
                "mean": "sum(windtunnel_migration_stall_seconds_sum) "
                "/ clamp_min(sum(windtunnel_migration_stall_seconds_count), 1)"
            }, "s", "Gap between tokens around a move; 0 where nothing moved.", width=12,
        ),
        number(
            "Age of the latest report", {"{{engine}}": "windtunnel_engine_report_age_seconds"}, "s",
            "An engine whose report is old gets nothing new.", width=12, bad_from=1,
        ),
    ]  # fmt: skip
    return board("windtunnel-engines", "Windtunnel: engines", "Lanes of memory, batch and moves.", panels, [])


def dispatcher() -> Made:
    """Whether the dispatcher itself is in the way."""
    panels = [
        curve(
            "Requests under way", {"tier {{tier}} {{state}}": f"windtunnel_requests_in_flight{{{TIER}}}"}, "short",
            "By where they are.", stacked=True,
        ),
        curve(
            "Wait for an engine", {
                "p50 tier {{tier}}": quantile(0.5, "windtunnel_queue_wait_seconds"),
                "p95 tier {{tier}}": quantile(0.95, "windtunnel_queue_wait_seconds"),
            }, "s", "From arrival to the first dispatch.",
        ),
        curve(
            "First in line waits", {"tier {{tier}}": f"windtunnel_queue_oldest_seconds{{{TIER}}}"}, "s",
            "A lower tier whose line grows while others go down starves.",
        ),
        curve(
            "Ended, by reason", {
                "{{outcome}} {{reason}}": rate("windtunnel_requests_total", "outcome, reason", TIER) + " > 0"
            }, "reqps", "All of them.", stacked=True,
        ),
        curve(
            "Dispatched", {"engine {{engine}} tier {{tier}}": rate("windtunnel_dispatch_total", "engine, tier",
                TIER)},
            "reqps", "Which engine got what.", stacked=True,
        ),
        curve(
            "Decisions", {"{{decision}} {{reason}}": rate("windtunnel_decisions_total", "decision, reason")}, "ops",
            "What the policy decided.",
        ),
        curve(
            "Time of a decision, p99", {"{{hook}}": quantile(0.99, "windtunnel_decision_seconds", "hook", "")}, "s",
            "By what was asked.",
        ),
        curve(
            "Loop lag, p99", {
                "p99": quantile(0.99, "windtunnel_loop_lag_seconds", "", "")
            }, "s", "How late its loop wakes: everything it does is late by as much.",
        ),
        curve("CPU", {"{{job}}": "rate(process_cpu_seconds_total[$__rate_interval])"},
            "percentunit", "Cores, by job."),
        curve("Memory", {"{{job}}": "process_resident_memory_bytes"}, "bytes", "Resident, by job.", width=12),
        curve(
            "Journal flush, p99", {
                "p99": quantile(0.99, "windtunnel_journal_append_seconds", "", "")
            }, "s", "A request is accepted only once it is in the journal.",
        ),
        curve(
            "Messages on worker links", {"{{direction}}": rate("windtunnel_link_messages_total", "direction")},
                "ops",
            "A second.",
        ),
    ]  # fmt: skip
    says = "Is it in the way?"
    return board("windtunnel-dispatcher", "Windtunnel: dispatcher", says, [*panels, *troubles()], [tier()])


def troubles() -> list[Any]:
    """Numbers that should be 0, and some that may be."""
    return [
        number("Streams resumed", {"clients": "windtunnel_stream_resumes_total"},
            "short", "Clients that came back."),
        number("Journal away", {"away": "windtunnel_journal_away"},
            "short", "1: new requests are refused.", bad_from=1),
        number("Journal errors", {"errors": "windtunnel_journal_errors_total"},
            "short", "Records not written.", bad_from=1),
        number("Policy faults", {"faults": "windtunnel_policy_faults"},
            "short", "Answers that were refused.", bad_from=1),
        number("Gaps in streams", {"gaps": "windtunnel_stream_gaps_total"}, "short", "Asked for again at workers."),
        number("Duplicates dropped", {"tokens": "windtunnel_stream_duplicates_total"}, "short", "Seen before."),
    ]  # fmt: skip


def validity() -> Made:
    """Whether a run measured the system or the load generator."""
    one = 'run=~"$run"'
    panels = [
        lanes("Runs", {"{{run}}": f"windtunnel_replay_running{{{one}}}"}, "When each run went on."),
        number("Counts", {"{{run}}": f"windtunnel_replay_valid{{{one}}}"},
            "short", "1: it keeps its schedule.", width=6, good_from=1),
        number("Unsent", {"{{run}}": f"windtunnel_replay_unsent{{{one}}}"},
            "short", "Overdue.", width=6, bad_from=1),
        number("Tokens lost", {"{{run}}": f"windtunnel_replay_lost_tokens_total{{{one}}}"},
            "short", "Must stay 0.", width=6, bad_from=1),
        number("Tokens repeated", {"{{run}}": f"windtunnel_replay_repeated_tokens_total{{{one}}}"},
            "short", "Must stay 0.", width=6, bad_from=1),
        curve(
            "Sending lag against its limits", {
                "{{run}} q{{quantile}}": f"windtunnel_replay_lag_exact_seconds{{{one}}}",
                "limit q{{quantile}}": f"windtunnel_replay_lag_limit_seconds{{{one}}}",
            }, "s", "Actual minus intended time, never relative to its own best; quantile 1 is the most.",
        ),
        curve(
            "Planned, sent, open", {
                "planned": f"sum(windtunnel_replay_planned{{{RUN}}})",
                    "sent": f"sum(windtunnel_replay_sent_total{{{RUN}}})",
                "open": f"sum(windtunnel_replay_open{{{RUN}}})",
            }, "short", "An open loop sends whatever the system does.",
        ),
        curve(
            "Ended",
                {
                "tier {{tier}} {{outcome}} {{reason}}": "sum by (tier, outcome, reason) "
                f"(windtunnel_replay_requests_total{{{RUN}}})"
            },
            "short", "As the client saw it.", stacked=True,
        ),
        curve(
            "The generator's own loop", {"{{run}} q{{quantile}}": f"windtunnel_replay_loop_lag_seconds{{{one}}}"},
                "s",
            "A loop that is late can't tell when tokens came.",
        ),
        curve("The generator's CPU", {"{{run}}": f"windtunnel_replay_cpu_share{{{one}}}"},
            "percentunit", "Of one core; from 90 % on it may be the bottleneck.", most=1),
    ]  # fmt: skip
    return board(
        "windtunnel-validity", "Windtunnel: replay validity", "Did it count?", panels, [tier(), run()]
    )


def compare() -> Made:
    """Two runs side by side, at their ends."""
    panels: list[Any] = []
    for name in ("run_a", "run_b"):
        at = f'run=~"${name}",{TIER}'
        over = "[$__range]"

        def last(metric: str, by: str = "tier", at: str = at, over: str = over) -> str:
            return f"sum by ({by}) (max_over_time(windtunnel_replay_{metric}{{{at}}}{over}))"

        def tail(share: float, metric: str, last: Any = last) -> str:
            return f"histogram_quantile({share}, {last(metric + '_seconds_bucket', 'le, tier')})"

        panels.append(dashboard.Row(f"${name}"))
        panels += [
            number(
                "Attainment", {"tier {{tier}}": f"{last('slo_met_total')} / ({last('scored_total')} > 0)"},
                    "percentunit",
                "Of scored requests.", width=6, good_from=0.9,
            ),
            number("TTFT p95", {"tier {{tier}}": tail(0.95, "time_to_first_token")},
                "s", "From the intended time.", width=6),
            number("TPOT p95", {"tier {{tier}}": tail(0.95, "request_time_per_output_token")},
                "s", "Mean gap.", width=6),
            number("End to end p95", {"tier {{tier}}": tail(0.95, "e2e_request_latency")},
                "s", "Whole answers.", width=6),
            number("Longest gap p95", {"tier {{tier}}": tail(0.95, "token_gap_max")},
                "s", "The worst pause.", width=6),
            number("Ended", {"{{outcome}}": last("requests_total", "outcome")}, "short", "By outcome.", width=6),
            number("Lag p99",
                {
                "lag": "max(max_over_time(windtunnel_replay_lag_exact_seconds"
                f'{{run=~"${name}",quantile="0.99"}}{over}))'
            }, "s", "Of sending.", width=6),
            number("Counts", {"valid": f'min(min_over_time(windtunnel_replay_valid{{run=~"${name}"}}{over}))'},
                "short", "1: it does.", width=6, good_from=1),
        ]  # fmt: skip
    choices = [
        variable(name, "label_values(windtunnel_replay_info, run)", label, several=False)
        for name, label in (("run_a", "Run A"), ("run_b", "Run B"))
    ]
    return board(
        "windtunnel-compare", "Windtunnel: compare two runs", "Side by side.", panels, [*choices, tier()]
    )


BOARDS = {
    "overview": overview,
    "engines": engines,
    "dispatcher": dispatcher,
    "validity": validity,
    "compare": compare,
}
"""File name of each dashboard, and what makes it."""
