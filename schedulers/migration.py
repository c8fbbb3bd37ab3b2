"""Who moves by default when a policy names two engines and no request (reference/multitier.md section 6)."""

from math import inf

from schedulers.cost import owed_tokens
from schedulers.view import RUNNING, View


def decoding(view: View, request: int) -> bool:
    """True if a request is in a batch and past its prompt: its KV is worth a copy."""
    running = view.requests.state[request] == RUNNING and view.requests.generated_tokens[request] > 0
    return bool(running and owed_tokens(view, request) == 0)


def movable(view: View, request: int) -> float:
    """Key of a request that might move: the least important tier first, then the fewest blocks; decodes only."""
    if not decoding(view, request):
        return inf
    return float(view.requests.blocks[request] - 1e9 * view.requests.tier[request])
