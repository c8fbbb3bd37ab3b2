"""The prefix cache against vLLM V1's documented rules, step by step: what is found, reused, evicted and given."""

import numpy as np
import pytest

from schedulers.load import load
from sim.checks import kindred
from sim.run import simulate
from tests.sim.stage import ask, setup
from tests.sim.test_examples_vllm import V1, Sequence, steps_of

SIZE = 16


class Prompt(Sequence):
    """A request with its tokens: prompts begin alike where they share a prefix, all other tokens are unique."""

    def __init__(self, number, demand):
        super().__init__(
            number,
            demand.arrival_s[number],
            int(demand.prompt_tokens[number]),
            int(demand.output_tokens[number]),
        )
        self.held, self.found = [], None
        start, stop = demand.prefixes.offsets[number : number + 2]
        known = [
            ("shared", one, place)
            for one in demand.prefixes.ids[start:stop].tolist()
            for place in range(demand.prefixes.block_tokens)
        ]
        own = [(number, place) for place in range(len(known), self.prompt)]
        self.prompt_tokens = (known + own)[: self.prompt]

    def block_hash(self, place):
        """vLLM hashes a block with the hash of the one before: all tokens up to its end tell it."""
        tokens = [*self.prompt_tokens, *((self.number, "out", n) for n in range(self.generated))]
        return tuple(tokens[: (place + 1) * SIZE])


class V1Cached(V1):
    """vLLM V1's block pool and KV cache manager with prefix caching on.

    get_computed_blocks: full blocks found by hash from the first on, at most num_tokens - 1 tokens.
    allocate_slots: blocks found that nobody holds leave the free queue and count as needed; the others are only
    counted up; new ones are popped from the queue's front and lose their hash. free: last block first, to the
    queue's back; hashes stay. Several blocks may have one hash; the first is found. The one difference, said in
    ``sim.prefix``: blocks get their hash when the step that fills them ends, not when it is scheduled.
    """

    def __init__(self, blocks, slots, budget):
        super().__init__(blocks, slots, budget)
        self.queue, self.holders, self.by_hash, self.hash_of = list(range(blocks)), [0] * blocks, {}, {}

    def allocate(self, one, tokens):
        need = -(-(one.computed + tokens) // SIZE) - len(one.held)
        if need > len(self.queue):
            return False
        for _ in range(need):
            block = self.queue.pop(0)
            if block in self.hash_of:
                self.by_hash[self.hash_of.pop(block)].remove(block)
            self.holders[block] = 1
            one.held.append(block)
        return True

    def release(self, one):
        for block in reversed(one.held):
            self.holders[block] -= 1
            if self.holders[block] == 0:
                self.queue.append(block)
        one.held = []

    def preempt(self):
        victim = self.running.pop()
        self.release(victim)
        victim.computed = 0
        self.waiting.insert(0, victim)
        return victim

    def computed_blocks(self, one):
        found = []
        for place in range((one.prompt + one.generated - 1) // SIZE):
            known = self.by_hash.get(one.block_hash(place))
            if not known:
                break
            found.append(known[0])
        return found

    def schedule(self):
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
            found = self.computed_blocks(one)
            tokens = min(one.prompt + one.generated - len(found) * SIZE, budget)
            free = len(self.queue) - sum(self.holders[block] == 0 for block in found)
            left = free - -(-(tokens + 1) // SIZE)
            if not (left >= 0.01 * self.total or (not self.running and left >= -1)):
                break
            if -(-tokens // SIZE) > free:
                break
            for block in found:
                if self.holders[block] == 0:
                    self.queue.remove(block)
                self.holders[block] += 1
            one.held, one.computed = list(found), len(found) * SIZE
            one.found = one.computed if one.found is None else one.found
            assert self.allocate(one, tokens)
            self.running.append(self.waiting.pop(0))
            given[one.number] = tokens
            budget -= tokens
        return given, gone

    def deliver(self, given):
        for one in list(self.running):
            before = one.computed // SIZE
            one.computed += given.get(one.number, 0)
            for place in range(before, one.computed // SIZE):
                self.hash_of[one.held[place]] = one.block_hash(place)
                self.by_hash.setdefault(one.block_hash(place), []).append(one.held[place])
            if given.get(one.number) and one.computed == one.prompt + one.generated:
                one.generated += 1
            if one.generated == one.output:
                self.running.remove(one)
                self.release(one)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("blocks", [40, 70, 200])
def test_every_step_is_vllms(seed, blocks, monkeypatch):
    """Drawn windows of related prompts, mostly short of memory: equal chunks, victims and hits at every step."""
    draw, n = np.random.default_rng(seed), 30
    demand = ask(
        np.cumsum(draw.exponential(0.05, n)), draw.integers(1, 300, n), draw.integers(1, 60, n), seed
    )
    demand = kindred(demand, seed)
    place = setup(blocks=blocks, sequences=8, budget=128)
    vllm, coming, everybody = V1Cached(blocks, 8, 128), list(range(n)), []
    evicted = 0
    for now_s, given, gone in steps_of(demand, place, monkeypatch):
        while coming and demand.arrival_s[coming[0]] <= now_s:
            everybody.append(Prompt(coming.pop(0), demand))
            vllm.waiting.append(everybody[-1])
        theirs, lost = vllm.schedule()
        assert (given, gone) == (theirs, set(lost)), now_s
        vllm.deliver(theirs)
        evicted += len(lost)
    assert not vllm.running
    assert not vllm.waiting
    assert not coming
    assert evicted > 0 or blocks > 70
    found = simulate(demand, load("fcfs-chunked"), place, "interpreted").facts.cached_tokens
    assert found.tolist() == [one.found for one in everybody]
    assert found.sum() > 100, "the case must be able to tell"
