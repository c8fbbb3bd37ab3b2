"""Cluster policies that move requests all the time, and scale up and down."""

from schedulers.policy import HOLD, ClusterPolicy, Memo
from schedulers.view import View


def migrate(view: View, engine: int, now_s: float) -> float:
    """The next engine that can take something."""
    count = len(view.engines.alive)
    for turn in range(1, count):
        other = (engine + turn) % count
        if (
            view.engines.alive[other] == 1
            and view.engines.draining[other] == 0
            and view.engines.moving[other] == 0
        ):
            return float(other)
    return HOLD


def pick(view: View, request: int, now_s: float) -> float:
    """Anybody, running or waiting, another one as time goes."""
    luck = view.requests.luck[request] * 1000 + view.requests.generated_tokens[request] * 0.37
    return float(luck - int(luck))


def scale(view: View, nobody: int, now_s: float) -> float:
    """Down, up and down again."""
    view.engines.memo[0, 0] += 1
    step = view.engines.memo[0, 0] % 7
    return float(step % 3 - 1)


POLICY = ClusterPolicy(name="restless", migrate=migrate, pick=pick, period_s=0.03)
BOTH = ClusterPolicy(
    name="restless-fleet", migrate=migrate, pick=pick, scale=scale, period_s=0.03, memo=Memo(engines=1),
    reads=("usage",),
)  # fmt: skip
