"""The log of steps that a worker writes: what it holds, how it ends, and what the command says of two of them."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from loadgen.plan import Fleet
from schedulers.errors import InputError
from services.worker.config import WorkerConfig
from services.worker.process import UNTOLD
from services.worker.steps import CUT, Step, StepLog, StepReader, differences, line, log_file, read_log
from services.worker.worker import Worker
from tests.services.desk import order
from windtunnel.cli import app

FLEET = Fleet(sequences_max=6, budget_max=128, block_tokens=16, blocks=24, model_tokens=1024)
ONE, TWO = Step(1.0, 2.0, {"7": 3}), Step(2.0, 3.0, {"7": 1, "8": 64}, ("9",))


def written(path, *told, **limit):
    """A log that holds these steps."""
    log = StepLog(path, **limit)
    for step in told:
        log.add(step)
    log.close()
    return path


def asked(*words):
    """What the command says of two logs, and its exit code."""
    done = CliRunner().invoke(app, ["steps", *map(str, words)])
    return done.exit_code, done.stdout


async def test_a_worker_logs_the_steps_of_its_engine(tmp_path):
    """On a clock of its own: the log is what the engine's tables said whenever a step was under way."""
    clock, config = [5.0], WorkerConfig(fleet=FLEET, worker_id="a/b", steps=str(tmp_path / "steps"))
    worker, reader, seen = Worker(config, UNTOLD, lambda: clock[0]), StepReader(), []
    read = worker.engine.act

    def act(now_s, **how):
        gained = read(now_s, **how)
        if gained is not None and worker.engine.busy:
            seen.append(reader.read(worker.engine))
        return gained

    worker.engine.act = act
    for number in range(1, 13):
        worker.enqueue(order(number, prompt=40 + number, length=30 + number))
    while sum(worker.engine.load):
        clock[0] = worker.engine.next_s(clock[0])
        worker.step(clock[0])
    worker.log.close()
    read_back = read_log(tmp_path / "steps" / "a_b.jsonl")
    named = [
        step._replace(
            tokens={str(key): count for key, count in step.tokens.items()},
            evicted=tuple(map(str, step.evicted)),
        )
        for step in seen
    ]
    assert not differences(named, read_back.steps)
    assert not read_back.cut
    assert [step.end_s for step in read_back.steps] == [step.end_s for step in seen]
    assert any(step.evicted for step in seen)
    least = sum(40 + number + 30 + number - 1 for number in range(1, 13))
    assert sum(sum(step.tokens.values()) for step in read_back.steps) > least, "evicted ones were recomputed"


def test_a_worker_without_the_setting_writes_nothing(tmp_path):
    assert Worker(WorkerConfig(fleet=FLEET), UNTOLD).log is None
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"steps can.t be logged there: File exists.*file/w.jsonl"):
        log_file(str(tmp_path / "file"), "w")


def test_a_log_is_added_to_and_ends_before_its_limit(tmp_path, caplog):
    path = written(tmp_path / "log", ONE)
    assert read_log(written(path, TWO)) == ([ONE, TWO], False)
    full = written(tmp_path / "full", *[TWO] * 50, limit_bytes=1000)
    assert full.stat().st_size <= 1000
    assert full.read_text().endswith(f"}}\n{CUT}\n")
    steps, cut = read_log(full)
    assert cut
    assert 5 < len(steps) < 50
    assert "is full" in caplog.text
    assert full.stat().st_size + len(line(TWO)) + 1 > 1000 - len(line(TWO)), "it ended too early"


def test_evictions_of_a_step_that_carried_nothing_are_not_lost(tmp_path):
    path = written(tmp_path / "log", Step(0.0, 0.0, {}, (3,)), Step(1.0, 2.0, {1: 1}, (2,)))
    assert read_log(path).steps == [Step(1.0, 2.0, {"1": 1}, ("2", "3"))]


def test_a_line_that_its_writer_did_not_end_cuts_the_log_short(tmp_path):
    path = written(tmp_path / "log", ONE, TWO)
    path.write_text(path.read_text()[:-9])
    assert read_log(path) == ([ONE], True)


@pytest.mark.parametrize(
    "bad",
    ["{", "[]", "", '{"end_s": 1, "evicted": [], "tokens": {}}', CUT, "\xff",
     line(ONE).replace("3", '"3"'), line(ONE).replace("3", "-3"), line(ONE).replace("2.0", "NaN")],
)  # fmt: skip
def test_a_bad_line_is_named_with_its_file(tmp_path, bad):
    path = tmp_path / "steps.jsonl"
    path.write_bytes(f"{line(ONE)}\n{bad}\n{line(TWO)}\n".encode("latin1"))
    with pytest.raises(InputError, match=r"no step: .* at .*/steps\.jsonl:2; fix"):
        read_log(path)


def test_logs_that_differ_are_told_apart_and_only_then(tmp_path):
    sim, real = tmp_path / "sim", tmp_path / "real"
    for folder in (sim, real):
        folder.mkdir()
    written(sim / "worker-0.jsonl", ONE, TWO)
    late = [step._replace(start_s=step.start_s + 9.0) for step in (ONE, TWO)]
    written(real / "worker-0.jsonl", late[0], late[1]._replace(start_s=late[1].start_s + 0.01))
    assert asked(sim, real) == (0, "worker-0: 2 and 2 steps, none of them differ\n")
    assert asked(sim, real, "--within", "0.1")[0] == 0
    assert asked(sim, real, "--within", "0.001")[0] == 1
    other = written(tmp_path / "other.jsonl", ONE, TWO._replace(evicted=()), TWO)
    code, said = asked(sim / "worker-0.jsonl", other, "--json")
    told = json.loads(said)
    assert (code, told["same"]) == (1, False)
    assert (told["logs"][0]["steps"], told["logs"][0]["differing"]) == ([2, 3], 2)
    assert told["logs"][0]["first"][0]["step"] == 1
    assert told["logs"][0]["first"][1]["a"] is None
    assert "7:1 8:64 evicted 9" in asked(sim / "worker-0.jsonl", other)[1]
    with open(other, "a") as torn:
        torn.write("{")
    assert json.loads(asked(sim / "worker-0.jsonl", other, "--json")[1])["logs"][0]["differing"] == 1


def test_what_can_not_be_compared_is_refused(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    written(tmp_path / "a" / "worker-0.jsonl", ONE)
    for pair in ((tmp_path / "a", tmp_path / "b"), (tmp_path / "a" / "worker-0.jsonl", tmp_path / "none")):
        done = CliRunner().invoke(app, ["steps", *map(str, pair)])
        assert done.exit_code == 2


def test_a_testbed_has_a_folder_of_steps_of_its_own(tmp_path):
    from windtunnel.up import fresh

    assert fresh(None) is None
    assert fresh(tmp_path / "new") == tmp_path / "new"
    written(tmp_path / "worker-0.jsonl", ONE)
    with pytest.raises(InputError, match="steps of other workers"):
        fresh(tmp_path)


def test_a_testbed_tells_its_workers_where(tmp_path):
    import tomllib

    from services.local import State, Wish
    from services.settings import worker_toml
    from windtunnel.up import live_plan

    wish = Wish(tmp_path, live_plan("quick", 1), "edf", "edf", steps=tmp_path / "x")
    state = State(str(tmp_path), "", "edf", 1.0, "a", "w")
    assert tomllib.loads(worker_toml(wish, state, "worker-0", "d:1"))["steps"] == str(tmp_path / "x")
    assert "steps" not in tomllib.loads(worker_toml(replace(wish, steps=None), state, "worker-0", "d:1"))
