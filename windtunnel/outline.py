"""The commented policy file that ``windtunnel schedulers new`` writes: it works as it stands, and invites changes."""

OUTLINE = '''\
"""{title}: short prompts first, but a second of waiting outweighs so many prompt tokens."""

# The first line above is the policy's idea: `windtunnel schedulers show` prints it. Keep it one sentence.
#
# A hook answers one question about one request, as a number. It reads the view, writes to memo columns only, and
# keeps to the small Python that both numba and the live services run (schedulers/README.md, "The dialect").
# Leave out what you don't need: a hook that isn't there costs nothing.

from schedulers.cost import blocks_for, owed_tokens, ranked
from schedulers.policy import TAKE, WAIT, EnginePolicy, Param
from schedulers.view import View

RATE, SPARE = 0, 1
"""Places of the parameters in view.params, in the order in which POLICY declares them."""


def order(view: View, request: int, now_s: float) -> float:
    """Return the key of a waiting request, the smallest goes first: its prompt, plus a handicap for coming late."""
    table = view.requests
    # arrival, not now_s - arrival: all keys would move alike, so the order is the same and never changes by itself
    return float(table.prompt_tokens[request] + view.params[RATE] * table.arrival_s[request])


def admit(view: View, request: int, now_s: float) -> float:
    """Take a request if its whole prompt and a token fit beside the spare share of memory, or nobody runs."""
    engine, fleet = int(view.requests.engine[request]), view.engines
    if fleet.running[engine] == 0:
        return TAKE  # a request that nobody stands in the way of must never wait for ever
    need = blocks_for(view, engine, int(view.requests.prefill_tokens[request]) + 1)
    spare = view.params[SPARE] * fleet.blocks_total[engine]
    # the answer changes with events (somebody ends, is evicted), never by time alone: so no `wake` is needed
    return TAKE if fleet.blocks_free[engine] - need >= spare else WAIT


def serve(view: View, request: int, now_s: float) -> float:
    """Serve decodes first, then started prompts, each by arrival; +inf would hold a request back this step."""
    started = owed_tokens(view, request) > 0
    return ranked(1.0 if started else 0.0, float(view.requests.arrival_s[request]))


def evict(view: View, request: int, now_s: float) -> float:
    """Return the score of a running request when memory runs out, the LARGEST leaves: the fewest tokens made."""
    return float(-view.requests.generated_tokens[request])


POLICY = EnginePolicy(
    name="{name}",
    order=order,
    admit=admit,
    serve=serve,
    evict=evict,
    params=(
        # name, default, lowest, highest, unit, meaning; set one with {file}:POLICY:rate=50
        Param("rate", 100.0, 0.0, 1e6, "tokens/s", "prompt tokens that a second of waiting outweighs"),
        Param("spare", 0.01, 0.0, 0.5, "share", "KV memory left free when a request joins"),
    ),
    scan="stop",  # "skip" looks past a request that waits, to one that may fit
    # reads=("forecast", "targets", "tier", "tenant"),  # declare what you use of these: the check tells
    # memo=Memo(engines=1),  # columns of your own: view.engines.memo[engine, 0], 0 at the start of a run
    # observe=observe, watches=(FINISH,),  # be told of events: observe(view, request, event, now_s)
    # wake=wake,  # the next moment at which an answer changes though nothing happened
    version=1,  # raise it when answers change: it is part of a result's key
)
'''


def outline(name: str, file: str) -> str:
    """Return the text of a policy file for a policy of this name, to be kept under this file name."""
    return OUTLINE.format(name=name, file=file, title=name.replace("-", " ").replace("_", " ").capitalize())
