"""Static partition: each tier has engines of its own, as many as its share of the work; crowded ones spill."""

from schedulers.dispatcher import serving
from schedulers.fleet import crowded, fewest, held, serving_count
from schedulers.policy import HOLD, ClusterPolicy, Memo, Param
from schedulers.scaling import work_s
from schedulers.view import View

SPILL, LEARN = 0, 1
TIERS_MAX = 10  # columns of engine 0's memo: work of each tier so far, the last for all further ones
SEEN = TIERS_MAX  # one more column: requests counted


def learn(view: View, request: int, column: int) -> None:
    """Count a request's work for its tier, while the partition is still being learnt."""
    memo = view.engines.memo[0]
    if memo[SEEN] < view.params[LEARN]:
        memo[SEEN] += 1.0
        memo[column] += work_s(view, request)


def part(view: View, column: int, count: int) -> tuple[int, int]:
    """First and last of the serving engines, by rank, that a tier may use: those its share of the work touches."""
    memo, above, total = view.engines.memo[0], 0.0, 0.0
    for tier in range(TIERS_MAX):
        total += memo[tier]
        if tier < column:
            above += memo[tier]
    if total <= 0.0 or memo[column] <= 0.0:
        return 0, count - 1
    first = min(count - 1, int(count * above / total + 1e-9))
    last = int(count * (above + memo[column]) / total - 1e-9)
    return first, max(first, min(count - 1, last))


def dispatch(view: View, request: int, now_s: float) -> float:
    """Choose the fewest requests among the tier's engines; of all, where that one holds over ``spill`` x the mean.

    Shares are those of the first ``learn`` requests: a load known beforehand, and one part for all until then.
    """
    count = serving_count(view)
    if count == 0:
        return HOLD
    column = min(int(view.requests.tier[request]), TIERS_MAX - 1)
    learn(view, request, column)
    first, last = part(view, column, count)
    size, rank = last - first + 1, -1
    begin, chosen, least, soonest = int(view.requests.luck[request] * size), -1, 0, 0
    for engine in range(len(view.engines.alive)):
        if serving(view, engine):
            rank += 1
            if first <= rank <= last:
                here, turn = (
                    held(view, engine),
                    (rank - first - begin) % size,
                )  # ties: first from luck's place on
                if chosen < 0 or here < least or (here == least and turn < soonest):
                    chosen, least, soonest = engine, here, turn
    return float(fewest(view, request) if crowded(view, chosen, view.params[SPILL]) else chosen)


POLICY = ClusterPolicy(
    name="partition",
    dispatch=dispatch,
    params=(
        Param("spill", 1.5, 1.0, 1000.0, "x mean", "requests that an engine may hold before others are used"),
        Param("learn", 200, 0, 1e9, "requests", "from whose work each tier's share is taken"),
    ),
    memo=Memo(engines=TIERS_MAX + 1),
    reads=("forecast", "tier"),
    source="classic, reference/multitier.md section 3 (placed)",
)
