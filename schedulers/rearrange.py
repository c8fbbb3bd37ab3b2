"""Who moves where by the policy's word, for a dispatcher without a kernel: one request an engine at a time."""

from collections.abc import Callable
from math import inf

from schedulers.policy import HOLD
from schedulers.view import View

Ask = Callable[[str, int, float], float]
"""(hook, engine or request, answer where the policy has none) to the policy's answer."""


def wanted_moves(view: View, ask: Ask) -> list[tuple[int, int, int]]:
    """Return (request, source, destination) a move; both engines are marked as ``moving`` at once.

    As in the simulator: an engine that gives or takes already is not asked; of its batch the request of the least
    ``pick`` key goes, the newest among equals, none whose key is infinite.
    """
    fleet, table, moves = view.engines, view.requests, list[tuple[int, int, int]]()
    for source in range(len(fleet.alive)):
        if fleet.alive[source] != 1 or fleet.moving[source] == 1:
            continue
        answer = ask("migrate", source, HOLD)
        target = int(answer)
        if answer == HOLD or target != answer or target == source or not 0 <= target < len(fleet.alive):
            continue
        if fleet.alive[target] != 1 or fleet.draining[target] == 1 or fleet.moving[target] == 1:
            continue
        batch = [int(row) for row in view.running[source, : fleet.running[source]]]
        keys = {row: ask("pick", row, inf) for row in batch}
        able = [row for row in batch if keys[row] < inf]
        if able:
            row = min(able, key=lambda one: (keys[one], -table.arrival_s[one], -table.luck[one], -one))
            fleet.moving[source] = fleet.moving[target] = 1
            moves.append((row, source, target))
    return moves
