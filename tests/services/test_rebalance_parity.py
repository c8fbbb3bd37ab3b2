"""Which request moves where: the dispatcher's own choice, held against the simulator's at each of its own moments."""

from math import inf

import numpy as np
import pytest

import sim.cluster
from schedulers.load import load
from schedulers.migration import movable
from schedulers.rearrange import wanted_moves
from sim.fabric import Moving, Wiring
from sim.run import simulate
from tests.sim.test_moves import crowd, fleet


def copied(view):
    """The same tables, so that asking twice leaves no trace."""
    return view._replace(
        **{
            name: type(getattr(view, name))._make(np.copy(column) for column in getattr(view, name))
            for name in ("requests", "engines", "tenants")
        },
        waiting=view.waiting.copy(),
        running=view.running.copy(),
    )


class Witness:
    """Stands where the simulator moves requests, and asks the dispatcher's function first."""

    def __init__(self, scheduler, monkeypatch):
        self.policy, self.wanted, self.tried, self.pairs = scheduler.cluster, [], [], []
        self.migrate, self.begin = sim.cluster.migrate, sim.cluster.begin
        monkeypatch.setattr(sim.cluster, "migrate", self.seen_migrate)
        monkeypatch.setattr(sim.cluster, "begin", self.seen_begin)

    def seen_migrate(self, rig, source, now_s):
        if source == 0:
            self.settle()
            view = copied(rig.mover)

            def ask(name, one, none):
                if name == "migrate":
                    return float(self.policy.migrate(view, one, now_s))
                return float(self.policy.pick(view, one, now_s) if self.policy.pick else movable(view, one))

            self.wanted, self.tried = wanted_moves(view, ask), []
        self.migrate(rig, source, now_s)

    def seen_begin(self, rig, source, target, request, now_s):
        done = self.begin(rig, source, target, request, now_s)
        self.tried.append(((int(request), int(source), int(target)), bool(done)))
        return done

    def settle(self):
        """One moment: alike up to the first move that the simulator found no room for, which only it can know."""
        failed = next((place for place, (_, done) in enumerate(self.tried) if not done), inf)
        tried = [move for move, _ in self.tried]
        upto = int(min(failed + 1, max(len(tried), len(self.wanted))))
        self.pairs.append((self.wanted[:upto], tried[:upto]))


@pytest.mark.parametrize("spec", ["rebalance", "rebalance:low=100,high=0", "rebalance:candidate=2"])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_dispatcher_moves_what_the_simulator_moves(spec, seed, monkeypatch):
    """Same tables, same request, source and destination, at every moment of a crowded run."""
    scheduler = load(f"fcfs-chunked+{spec}")
    witness = Witness(scheduler, monkeypatch)
    place = fleet(4, Wiring(moving=Moving(bandwidth_gbps=1.0)), blocks=150)
    simulate(crowd(400, 25.0, seed), scheduler, place, "interpreted")
    witness.settle()
    moved = [pair for pair in witness.pairs if pair[1]]
    assert len(moved) >= 5, "the run has moves to compare"
    assert [pair for pair in witness.pairs if pair[0] != pair[1]] == []
