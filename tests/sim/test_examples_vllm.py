"""``fcfs-chunked`` against vLLM V1's documented rules, step by step: who gets how many tokens, who is evicted."""

import numpy as np
import pytest

from schedulers.load import load
from sim import kernel
from sim.run import simulate
from tests.sim.stage import ask, setup


class Sequence:
    """A request as vLLM's scheduler knows it."""

    def __init__(self, number, arrival_s, prompt, output):
        self.number, self.arrival_s, self.prompt, self.output = number, arrival_s, prompt, output
        self.computed = self.generated = self.blocks = 0

    @property
    def lacking(self):
        """num_tokens - num_computed_tokens; an idle decode lacks one."""
        return max(1, self.prompt + self.generated - self.computed)


class V1:
    """vLLM V1's scheduler with default settings, written from its documentation.

    Each step: (1) running requests in list order, each min(what it lacks, budget) tokens; where a block is
    lacking the last of the list is preempted, loses everything and goes to the front of the queue, until it fits or
    is itself preempted; (2) only if nobody was preempted, the queue in order, until budget or slots run out or the
    head's blocks aren't there. The one thing added is our watermark: admission leaves 1 % of blocks free and counts
    the token after the chunk (V1 dropped the watermark that v0 had).
    """

    def __init__(self, blocks, slots, budget):
        self.total, self.free, self.slots, self.budget = blocks, blocks, slots, budget
        self.running, self.waiting = [], []

    def allocate(self, one, tokens):
        need = -(-(one.computed + tokens) // 16) - one.blocks
        if need > self.free:
            return False
        self.free -= need
        one.blocks += need
        return True

    def preempt(self):
        victim = self.running.pop()
        self.free += victim.blocks
        victim.blocks = victim.computed = 0
        self.waiting.insert(0, victim)
        return victim

    def admits(self, one, tokens):
        left = self.free - -(-(tokens + 1) // 16)
        return left >= 0.01 * self.total or (not self.running and left >= -1)

    def schedule(self):
        """Tokens of each request in this step, and who was preempted."""
        budget, given, gone, place = self.budget, {}, [], 0
        while place < len(self.running) and budget > 0:
            one = self.running[place]
            tokens = min(one.lacking, budget)
            while one in self.running and not self.allocate(one, tokens):
                gone.append(self.preempt().number)
            if one not in self.running:
                break
            given[one.number] = tokens
            budget -= tokens
            place += 1
        while not gone and self.waiting and budget > 0 and len(self.running) < self.slots:
            one = self.waiting[0]
            tokens = min(one.lacking, budget)
            if not (self.admits(one, tokens) and self.allocate(one, tokens)):
                break
            self.running.append(self.waiting.pop(0))
            given[one.number] = tokens
            budget -= tokens
        return given, gone

    def deliver(self, given):
        for one in list(self.running):
            one.computed += given.get(one.number, 0)
            if given.get(one.number) and one.computed == one.prompt + one.generated:
                one.generated += 1
            if one.generated == one.output:
                self.running.remove(one)
                self.free += one.blocks


def steps_of(demand, place, monkeypatch):
    """(time, tokens of each request, requests evicted) of every step that our engine forms."""
    log, form = [], kernel.form

    def forming(rig, engine, now_s):
        before = rig.known.requests.evictions.copy()
        made = form(rig, engine, now_s)
        chunk = rig.plant.chunk
        given = {int(r): int(chunk[r]) for r in np.flatnonzero(chunk)}
        log.append((now_s, given, set(np.flatnonzero(rig.known.requests.evictions > before).tolist())))
        return made

    monkeypatch.setattr(kernel, "form", forming)
    simulate(demand, load("fcfs-chunked"), place, "interpreted", audit=True)
    monkeypatch.undo()
    return log


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("blocks", [40, 70, 400])
def test_every_step_is_vllms(seed, blocks, monkeypatch):
    """Drawn windows, mostly short of memory: equal chunks, victims and order at every step."""
    draw = np.random.default_rng(seed)
    n = 30
    demand = ask(
        np.cumsum(draw.exponential(0.05, n)), draw.integers(1, 300, n), draw.integers(1, 60, n), seed
    )
    place = setup(blocks=blocks, sequences=8, budget=128)
    vllm, coming, steps = V1(blocks, 8, 128), list(range(n)), 0
    evicted = 0
    for now_s, given, gone in steps_of(demand, place, monkeypatch):
        while coming and demand.arrival_s[coming[0]] <= now_s:
            r = coming.pop(0)
            row = (r, demand.arrival_s[r], int(demand.prompt_tokens[r]), int(demand.output_tokens[r]))
            vllm.waiting.append(Sequence(*row))
        theirs, lost = vllm.schedule()
        assert (given, gone) == (theirs, set(lost)), now_s
        vllm.deliver(theirs)
        steps, evicted = steps + 1, evicted + len(lost)
    assert not vllm.running
    assert not vllm.waiting
    assert not coming
    assert steps > 60
    assert evicted > 0 or blocks > 70
