"""Models: what the API takes and answers; pages show the same."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Axis = Literal["source", "region", "metric", "slo"]
Sort = Literal["stored", "attainment", "scheduler", "window"]
Number = float | None


class Strict(BaseModel):
    """Refuses what it does not know."""

    model_config = ConfigDict(extra="forbid")


class Problem(BaseModel):
    """Something that can't be read, and the remedy."""

    what: str
    where: str
    fix: str


class ErrorBody(BaseModel):
    """An error; ``code`` is for programs."""

    code: str
    message: str
    where: str = ""
    fix: str = ""


class ErrorOut(BaseModel):
    """What every refusal looks like."""

    error: ErrorBody


class StudyOut(BaseModel):
    """A folder of results."""

    id: str
    name: str
    runs: int
    invalid: int
    partial: int
    schedulers: list[str]
    sources: dict[str, str]  # name -> label
    regions: list[str]
    drivers: list[str]
    facts: bool  # requests of its runs are kept
    stored: str  # when the latest shard was written, ISO 8601, "" if none
    problems: list[Problem]


class Studies(BaseModel):
    """All of them."""

    studies: list[StudyOut]


class RunQuery(Strict):
    """Which runs: words that all must be somewhere in a run's names, and exact values."""

    q: str = Field("", max_length=200)
    study: str = Field("", max_length=300)
    driver: Literal["", "sim", "live"] = ""
    source: str = Field("", max_length=100)
    scheduler: str = Field("", max_length=300)
    region: str = Field("", max_length=20)
    standing: Literal["", "ranked", "invalid", "partial"] = ""
    sort: Sort = "stored"
    page: int = Field(1, ge=1, le=1_000_000)
    size: int = Field(50, ge=1, le=500)


class RunOut(BaseModel):
    """One run in a list."""

    run_id: str
    study: str
    standing: str
    driver: str
    scheduler: str
    source: str
    label: str
    region: str
    window_id: str
    control: bool
    arrivals: int
    finished: int
    rejected: int
    expired: int
    failed: int
    attainment: Number  # by tiers' own targets, over scored arrivals
    worst_group: Number
    ttft_p95_s: Number
    stored: str


class RunPage(BaseModel):
    """A page of runs; ``choices`` are the values that filters may take."""

    total: int
    page: int
    pages: int
    runs: list[RunOut]
    choices: dict[str, list[str]]
    problems: list[Problem]


class TierOut(BaseModel):
    """One tier of one run, over its scored arrivals."""

    tier: int
    name: str
    targets: dict[str, Number]
    weight: float
    arrivals: int
    ends: dict[str, int]
    attainment: Number
    latencies: dict[str, Number]


class StretchOut(BaseModel):
    """A piece of a run's time, all arrivals in it."""

    begin_s: float
    end_s: float
    arrivals: list[int]
    attained: list[Number]
    open: int


class RunDetail(BaseModel):
    """One run: its key and metrics, its tiers and timeline if its requests are kept, and cautions."""

    run: RunOut
    key: dict[str, str]
    metrics: dict[str, Number]
    facts: bool
    tiers: list[TierOut]
    timeline: list[StretchOut]
    warnings: list[str]
    replay: dict[str, Any] | None
    beside: list[RunOut]  # other runs on the same window in the same region


class CompareQuery(Strict):
    """Two studies, or two runs as STUDY/RUN."""

    a: str = Field("", max_length=330)
    b: str = Field("", max_length=330)


class Difference(BaseModel):
    """One metric of two runs; ``relative`` is (b - a) / a."""

    metric: str
    words: str
    a: Number
    b: Number
    relative: Number


class CompareOut(BaseModel):
    """Two studies over the runs they have in common, or two runs."""

    kind: Literal["studies", "runs"]
    a: str
    b: str
    pairs: int
    errors: list[dict[str, Any]]
    pooled: dict[str, dict[str, float]]
    ranks: list[dict[str, Any]]
    differences: list[Difference]
    tiers: list[list[TierOut]]  # of a and of b, for two runs


class MapQuery(Strict):
    """What of a study's comparisons to show."""

    metric: str = Field("", max_length=60)
    axis: Axis = "source"
    source: str = Field("", max_length=100)
    region: str = Field("", max_length=20)
    scheduler: str = Field("", max_length=300)
    outcome: str = Field("", max_length=60)
    page: int = Field(1, ge=1, le=1_000_000)


class MatrixOut(BaseModel):
    """Agreement of orders along an axis: halves of windows against halves, beside the noise ceiling."""

    axis: str
    source: str
    region: str
    metric: str
    labels: list[str]
    agreement: list[list[Number]]
    ceiling: list[list[Number]]
    gap: list[list[Number]]
    tau: list[list[Number]]
    counted: list[list[bool]]


class HypothesisOut(BaseModel):
    """Two schedulers in two conditions."""

    a: str
    b: str
    source_x: str
    region_x: str
    metric_x: str
    source_y: str
    region_y: str
    metric_y: str
    difference_x: Number
    difference_y: Number
    p_reversal: Number
    outcome: str


class MapOut(BaseModel):
    """Matrices and reversals of a study."""

    study: str
    metric: str
    metrics: list[str]
    sources: dict[str, str]
    regions: list[str]
    schedulers: list[str]
    doubts: list[str]
    sentences: list[str]
    matrices: list[MatrixOut]
    counts: dict[str, int]
    adjustment: str
    total: int
    page: int
    pages: int
    hypotheses: list[HypothesisOut]


class PairQuery(Strict):
    """Two schedulers in two conditions."""

    a: str = Field(max_length=300)
    b: str = Field(max_length=300)
    source_x: str = Field(max_length=100)
    region_x: str = Field(max_length=20)
    source_y: str = Field(max_length=100)
    region_y: str = Field(max_length=20)
    metric_x: str = Field("", max_length=60)
    metric_y: str = Field("", max_length=60)
    metric: str = Field("", max_length=60)


class PairWindow(BaseModel):
    """Both schedulers on one window; ``difference`` is A - B on the compared scale, higher is better."""

    window_id: str
    a: Number
    b: Number
    difference: Number
    run_a: str
    run_b: str


class PairSide(BaseModel):
    """Both schedulers in one condition."""

    source: str
    region: str
    metric: str
    margin: float
    mean: Number
    low: Number
    high: Number
    windows: list[PairWindow]


class PairOut(BaseModel):
    """Which windows make a difference."""

    study: str
    a: str
    b: str
    sides: list[PairSide]


class TierCell(BaseModel):
    """One scheduler in one condition, means over windows."""

    scheduler: str
    source: str
    region: str
    driver: str
    windows: int
    attainment: Number
    worst_group: Number
    tiers: list[Number]  # attainment a tier, empty if requests are not kept


class TiersOut(BaseModel):
    """Attainment by tier over a study."""

    study: str
    names: list[str]
    targets: list[dict[str, Number]]
    measured: int  # runs whose requests were read
    cells: list[TierCell]


class TrafficFiles(BaseModel):
    """Files that may be pointed to, and the most that may be sent."""

    files: list[str]
    upload_bytes: int


class TrafficNamed(Strict):
    """A file of the folders that were given."""

    file: str = Field(max_length=1000)
    source: str = Field("auto", max_length=60)
    columns: str = Field("", max_length=1000)


class TrafficOut(BaseModel):
    """A traffic file in numbers; definitions are those of ``windtunnel traces inspect``."""

    trace: dict[str, Any]
    statistics: dict[str, Any]
    rates: list[float]
    rate_width_s: float


class TableOut(BaseModel):
    """A table as people read it."""

    name: str
    title: str
    columns: list[str]
    rows: list[list[str]]


class TierAnswerOut(BaseModel):
    """How many tiers pay, as ``windtunnel study tiers`` tells it."""

    sentences: list[str]
    facts: dict[str, str]
    tables: list[TableOut]
