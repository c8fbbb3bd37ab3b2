"""What a dispatcher knows of prompts: how much of each it sent to each engine before that the engine may still hold.

The rule is the simulator's (``sim.prefix``, recall and remember): what went to an engine counts until as many new
tokens as its memory holds have gone there after it. The first dimension of [h_e] in ``schedulers.view.View.sent``.
"""

from collections import OrderedDict
from typing import NamedTuple

from schedulers.view import View


class Prefix(NamedTuple):
    """A prompt's beginning: chained ids, one a block of ``tokens`` tokens, each standing for all up to its end."""

    ids: tuple[int, ...] = ()
    tokens: int = 0


class Recall:
    """Prefixes by engine row; bounded, since what no longer counts is dropped."""

    def __init__(self) -> None:
        self.of: dict[int, Prefix] = {}  # open requests' prefixes, by row
        self.sent_at: dict[
            int, OrderedDict[int, int]
        ] = {}  # engine: id to the tokens sent when it was last sent
        self.sent_tokens: dict[int, int] = {}

    def look(self, view: View, row: int) -> None:
        """Write how many tokens of a request's prompt each engine was sent before."""
        prefix, prompt = self.of.get(row, Prefix()), int(view.requests.prompt_tokens[row])
        for engine in range(view.sent.shape[0]):
            size, known = int(view.engines.block_tokens[engine]), self.sent_at.get(engine)
            found = 0
            while known and found < len(prefix.ids) and prefix.ids[found] in known:
                found += 1
            view.sent[engine, row] = max(0, min(found * prefix.tokens, prompt - 1)) // size * size

    def note(self, view: View, engine: int, row: int) -> None:
        """A request goes to an engine."""
        fresh = int(view.requests.prompt_tokens[row] - view.sent[engine, row])
        total = self.sent_tokens[engine] = self.sent_tokens.get(engine, 0) + fresh
        known = self.sent_at.setdefault(engine, OrderedDict())
        for one in self.of.get(row, Prefix()).ids:
            known[one] = total
            known.move_to_end(one)
        held = int(view.engines.blocks_total[engine]) * int(view.engines.block_tokens[engine])
        while known and next(iter(known.values())) <= total - held:
            known.popitem(last=False)
