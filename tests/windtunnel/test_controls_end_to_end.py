"""Controls come out last and first on simulated traffic: if not, either the simulator or the analysis is broken."""

import json

from loadgen.candidate import Recipe
from loadgen.manifest import freeze
from windtunnel.traffic import generated

PLAN = """\
name = "controls"
schedulers = ["fcfs-prefill", "fcfs-chunked", "sarathi", "edf", "sjf-pred"]
controls = ["random", "lifo", "oracle-srpt"]
regions = [0.95, 1.1]

[[tiers]]
name = "interactive"
ttft_s = 0.5
tpot_s = 0.03
share = 0.5

[[tiers]]
name = "server"
ttft_s = 2.0
tpot_s = 0.1
share = 0.5
"""


def test_controls_come_out_last_and_first(windtunnel, tmp_path):
    windows, plan, out = tmp_path / "windows", tmp_path / "plan.toml", tmp_path / "out"
    for source in ("azure_surrogate", "bailian_surrogate", "burstgpt_surrogate"):
        freeze(generated(source, 3, "main", 0), windows, Recipe(kind="main", count=3, seed=0))
    plan.write_text(PLAN)
    swept = windtunnel("sweep", plan, "--windows", windows, "--out", out, "--jobs", 2)
    assert swept.code == 0, swept.said
    ranked = windtunnel("rank", out, "--json")
    assert ranked.code == 0, ranked.said
    told = json.loads(ranked.out)
    assert told["controls_broken"] == []
    places = {check["control"]: check for check in told["controls_checked"]}
    assert {name: check["status"] for name, check in places.items()} == {
        "oracle-srpt": "as expected",
        "lifo": "as expected",
        "random": "as expected",
    }
    expected = ("ahead of policies that know less", "behind arrival order")
    assert (places["oracle-srpt"]["place"], places["lifo"]["place"]) == expected
    ranked_names = {row["scheduler"] for ranking in told["rankings"] for row in ranking["rows"]}
    assert ranked_names == {"fcfs-prefill", "fcfs-chunked", "sarathi", "edf", "sjf-pred"}, (
        "controls are not ranked"
    )
