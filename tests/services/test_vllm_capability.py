"""What vLLM can honour of a policy, and that the docs say the same."""

from pathlib import Path

import pytest

from schedulers.errors import InputError
from schedulers.load import engine_names, load, published_names
from services.worker.vllm.capability import ABILITIES, check_version, faults, markdown, needs, refuse_unable

DOCS = Path(__file__).resolve().parents[2] / "docs" / "vllm.md"


def test_docs_hold_the_table_as_it_is():
    text = DOCS.read_text()
    table = text.partition("<!-- table -->\n")[2].partition("<!-- /table -->")[0]
    policies = [load(name).engine for name in engine_names()]
    assert table == markdown(policies), "windtunnel schedulers pages --write"


def test_what_no_vllm_can_do_is_refused_by_name_and_reason():
    slai = load("slai")
    with pytest.raises(InputError, match="can't run slai: waiting_rank: vLLM always serves running"):
        refuse_unable(slai, 2048, 1024)
    refuse_unable(load("slo-guard"), 512, 1024)


def test_whole_prompts_need_a_step_that_holds_the_longest():
    orca = load("orca").engine
    assert faults(orca, 512, 1024) == ["whole prompts of up to 1024 tokens do not fit a step of 512"]
    assert faults(orca, 1024, 1024) == []


def test_every_need_of_every_policy_is_a_row_of_the_table():
    rows = {one.name for one in ABILITIES}
    for name in engine_names() + published_names():
        assert needs(load(name).engine) <= rows


def test_a_displacing_policy_that_reads_its_order_anew_is_refused():
    policy = load("strict-tiers").engine._replace(rekey=True)
    assert [fault.partition(":")[0] for fault in faults(policy, 1024, 1024)] == ["preempt with rekey"]


def test_another_vllm_is_refused():
    check_version("0.32.0+cpu")
    with pytest.raises(InputError, match=r"vLLM 0\.33\.0 was not tested"):
        check_version("0.33.0")
