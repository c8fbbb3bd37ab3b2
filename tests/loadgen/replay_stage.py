"""Small windows and senders for the tests of live replay."""

import asyncio

import numpy as np

from loadgen.demand import Demand
from loadgen.facts import FINISHED
from loadgen.replay.schedule import schedule_of
from loadgen.replay.tokens import tokens_at
from loadgen.replay.trails import Ending
from loadgen.window import cut
from tests.loadgen.window_rows import hand_made


def schedule(rows=20, gap_s=0.1, speed=1.0, output=3, parent=None, turns="absolute"):
    """A window of equal gaps as a schedule; two tiers take turns."""
    window = cut(hand_made(rows), 0, rows, "main", 1)
    zeros = np.zeros(rows, np.int64)
    demand = Demand(
        np.arange(rows) * gap_s, zeros + 50, zeros + output, np.full(rows, 5.0), np.arange(rows) % 2, zeros,
        zeros - 1, np.full(rows, 0.5),
    )  # fmt: skip
    if parent is not None:
        window = window._replace(parent=np.asarray(parent))
    return schedule_of(window, demand, "test", speed=speed, turns=turns)


class Silent:
    """A system that never answers."""

    def __init__(self, loop):
        self.loop, self.sent_s = loop, []

    async def send(self, asked, trails):
        self.sent_s.append(self.loop.time())
        await self.loop.create_future()


class Prompt:
    """A system that answers after a while, all tokens right."""

    def __init__(self, loop, after_s=0.05):
        self.loop, self.after_s = loop, after_s

    async def send(self, asked, trails):
        start_s = self.loop.time() - trails.now_s
        await asyncio.sleep(self.after_s)
        trails.took(asked.row, 0, tokens_at(asked.seed, 0, asked.output_tokens), self.loop.time() - start_s)
        trails.ended(
            asked.row,
            Ending(FINISHED, "length", engine=0, usage_tokens=asked.output_tokens),
            self.loop.time() - start_s,
        )
