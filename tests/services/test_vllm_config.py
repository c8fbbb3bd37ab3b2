"""What vLLM is started with, and which settings no real engine can keep."""

from dataclasses import replace

import pytest

from loadgen.plan import Fleet
from schedulers.errors import InputError
from services.worker.process import UNTOLD
from services.worker.vllm.config import EngineConfig, engine_args
from services.worker.vllm.prompts import block_of, drawn
from services.worker.vllm.settings import NAME, tiers_from

CPU = EngineConfig(model="m", fleet=Fleet(block_tokens=32, blocks=100, prefix_cache=False))


def test_the_engine_gets_the_limits_and_the_scheduler_its_policy_and_targets():
    told = engine_args(replace(CPU, engine_policy="edf", paced=True), UNTOLD, "/tmp/line")
    assert told["num_gpu_blocks_override"] == 101
    assert (told["dtype"], told["async_scheduling"], told["enable_prefix_caching"]) == (
        "float32",
        False,
        False,
    )
    inside = told["additional_config"][NAME]
    assert (inside["policy"], inside["paced"], inside["socket"]) == ("edf", True, "/tmp/line")
    assert all((a == b).all() for a, b in zip(tiers_from(inside["tiers"]), UNTOLD, strict=True))


def test_a_card_gets_its_share_of_memory_and_its_neighbours():
    told = engine_args(
        EngineConfig(model="m", device="gpu", tensor_parallel=2, fleet=Fleet(prefix_cache=False)), UNTOLD
    )
    assert (told["tensor_parallel_size"], told["gpu_memory_utilization"], told["dtype"]) == (2, 0.9, "auto")
    assert "num_gpu_blocks_override" not in told


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": ""}, "no model is named"),
        ({"device": "tpu"}, "no device 'tpu'"),
        ({"speed": 2.0}, "as fast as it is"),
        ({"fleet": replace(CPU.fleet, block_tokens=16)}, "16 tokens a block"),
        ({"fleet": replace(CPU.fleet, blocks=0)}, "blocks must be said"),
        ({"fleet": replace(CPU.fleet, prefix_cache=True)}, "not told what vLLM"),
    ],
)
def test_what_no_real_engine_can_keep_is_refused(change, said):
    with pytest.raises(InputError, match=said):
        engine_args(replace(CPU, **change), UNTOLD)


def test_prompts_have_their_exact_length_and_begin_alike_where_hashes_do():
    one, other = drawn(1100, [7, 8], 1, 2048), drawn(1050, [7, 9], 2, 2048)
    assert (len(one), len(other)) == (1100, 1050)
    assert one[:512] == other[:512]
    assert one[512:1024] != other[512:1024]
    assert drawn(1100, [7, 8], 3, 2048)[:1024] == one[:1024]
    assert drawn(1100, [7, 8], 3, 2048)[1024:] != one[1024:]
    assert 0 not in one
    assert max(one) < 2048
    assert (block_of(100, 6), block_of(100, 7), block_of(1100, 2), block_of(1100, 3)) == (16, 16, 512, 512)
