"""Queries: every question that is asked of Prometheus, in one place."""

WINDOWS = ("1m", "5m", "15m", "1h", "6h")
"""How far back a live page may look."""

SECONDS = {"1m": 60, "5m": 300, "15m": 900, "1h": 3600, "6h": 21600}
POINTS = 60
"""Points of a timeline."""


def counted(name: str, by: str, window: str) -> str:
    """Return the query of how much a counter grew by a label: exact, where ``increase`` extrapolates.

    A series that began inside the window counts from 0; where the counter fell, after a restart, it is ``increase``.
    """
    now = f"sum by ({by}) ({name})"
    before = f"(sum by ({by}) ({name} offset {window}) or {now} * 0)"
    return f"(({now} - {before}) >= 0 or sum by ({by}) (increase({name}[{window}])))"


def attainment(window: str) -> str:
    """Return the query of the share of ended requests that met every target of their tier."""
    met = counted("windtunnel_slo_met_total", "tier", window)
    ended = counted("windtunnel_requests_total", "tier", window)
    return f"({met} or {ended} * 0) / ({ended} > 0)"


def quantile(name: str, share: float, window: str) -> str:
    """Return the query of a histogram's quantile by tier."""
    return f"histogram_quantile({share}, sum by (tier, le) (rate({name}_bucket[{window}])))"


def tier_queries(window: str) -> dict[str, str]:
    """Return what is asked for each tier, by the name that the answer goes by."""
    return {
        "attainment": attainment(window),
        "arrivals": counted("windtunnel_arrivals_total", "tier", window),
        "ended": counted("windtunnel_requests_total", "tier", window),
        "met": counted("windtunnel_slo_met_total", "tier", window),
        "queued": "sum by (tier) (windtunnel_queue_depth)",
        "in_flight": "sum by (tier) (windtunnel_requests_in_flight)",
        "ttft_p50_s": quantile("windtunnel_time_to_first_token_seconds", 0.5, window),
        "ttft_p95_s": quantile("windtunnel_time_to_first_token_seconds", 0.95, window),
        "tpot_p95_s": quantile("windtunnel_request_time_per_output_token_seconds", 0.95, window),
        "e2e_p95_s": quantile("windtunnel_e2e_request_latency_seconds", 0.95, window),
    }


def run_queries(window: str) -> dict[str, str]:
    """Return what is asked of the run as a whole."""
    return {
        "build": "windtunnel_build_info",
        "ends": counted("windtunnel_requests_total", "outcome, reason", window),
        "engines": "windtunnel_engine_state == 1",
        "journal_errors": "sum(windtunnel_journal_errors_total)",
    }


def replay_queries() -> dict[str, str]:
    """Return what is asked of runs that a load generator replays: its own counts, exact and over scored requests."""
    by_tier = {
        "planned": "windtunnel_replay_planned",
        "sent": "windtunnel_replay_sent_total",
        "open": "windtunnel_replay_open",
        "scored": "windtunnel_replay_scored_total",
        "met": "windtunnel_replay_slo_met_total",
    }
    by_run = {
        "info": "windtunnel_replay_info",
        "running": "windtunnel_replay_running",
        "valid": "windtunnel_replay_valid",
        "unsent": "windtunnel_replay_unsent",
        "lost": "windtunnel_replay_lost_tokens_total",
        "repeated": "windtunnel_replay_repeated_tokens_total",
        "lag_p50_s": 'windtunnel_replay_lag_exact_seconds{quantile="0.5"}',
        "lag_p99_s": 'windtunnel_replay_lag_exact_seconds{quantile="0.99"}',
    }
    return {name: f"sum by (run, tier) ({metric})" for name, metric in by_tier.items()} | by_run


def timeline_queries(window: str) -> dict[str, str]:
    """Return what is asked over time: shares and rates over a step a few points wide."""
    step = f"{max(15, 4 * SECONDS[window] // POINTS)}s"
    return {
        "attained": attainment(step),
        "rate": f"sum by (tier) (rate(windtunnel_arrivals_total[{step}]))",
    }
