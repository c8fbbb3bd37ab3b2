"""``windtunnel windows freeze --set``: surrogates as they ship, files, and a user's own source beside them."""

import json

import pytest
from typer.testing import CliRunner

from loadgen.manifest import read_manifest
from loadgen.sets import read_set
from schedulers.errors import InputError
from tests.windtunnel.test_cli_windows import own_file
from windtunnel.cli import app
from windtunnel.sets import sources_of


def freeze(*words, code=0):
    result = CliRunner().invoke(app, ["windows", "freeze", "--json", *(str(word) for word in words)])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_the_first_windows_of_a_surrogate_set_are_those_that_ship(tmp_path):
    said = freeze(
        "--set", "published-120-surrogate", "--from", "azure_surrogate", "--count", 4, "--out", tmp_path
    )
    assert (said["as_shipped"], said["shipped"]) == (4, 120)
    assert [one["source"] for one in said["sources"]] == ["azure_surrogate"]
    assert said["sources"][0]["strata"] == {"early": 2, "middle": 1, "late": 1}
    assert read_set(tmp_path)["manifest_sha256"] == said["manifest_sha256"]


def test_a_users_own_source_takes_the_same_road_beside_a_surrogate(tmp_path):
    """Its name is what the user says, its label tells whose it is, and it can be verified from its file."""
    mine = own_file(tmp_path / "mine.csv")
    out = tmp_path / "windows"
    said = freeze(
        "--set", "published-120", "--from", f"campus={mine}", "--from", "azure_surrogate",
        "--count", 3, "--out", out,
    )  # fmt: skip
    assert {line.source: line.label for line in read_manifest(out)} == {
        "campus": "own",
        "azure_surrogate": "surrogate",
    }
    assert said["shipped"] == 0
    assert read_set(out)["taken"]["campus"] == {"label": "own", "windows": 3}
    checked = CliRunner().invoke(app, ["windows", "verify", str(out), "--from", str(tmp_path), "--json"])
    assert json.loads(checked.stdout)["equal"] == 6


def test_real_sources_beside_each_other(tmp_path, traces_dir):
    said = freeze(
        "--set", "published-120", "--from", f"azure2023={traces_dir / 'azure'}",
        "--from", f"mooncake={traces_dir / 'mooncake'}", "--count", 4, "--out", tmp_path,
    )  # fmt: skip
    assert {line.source: line.label for line in read_manifest(tmp_path)} == {
        "azure2023": "real",
        "mooncake": "real",
    }
    assert [one["frozen"] for one in said["sources"]] == [4, 4]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--set", "published-120"], "--from azure2024=PATH"),
        (["--set", "published"], "published-120-surrogate"),
        ([], "name a source or a set"),
        (["--set", "published-120", "--source", "azure2023"], "name a source or a set"),
        (["--set", "published-120", "--kind", "short"], "its own kind"),
    ],
)
def test_bad_usage_says_what_to_do(tmp_path, words, says):
    said = freeze(*words, "--out", tmp_path, code=2)
    assert says in json.dumps(said["error"])


@pytest.mark.parametrize(
    "given",
    [
        ["azure2023"],
        ["azure_surrogate=x.csv"],
        ["nothing_surrogate"],
        ["a=b", "a=c"],
        ["a="],
        ["a b=c"],
        ["=x"],
    ],
)
def test_what_is_neither_files_nor_a_surrogate_is_refused(given):
    from loadgen.sets import find_set

    with pytest.raises(InputError):
        sources_of(find_set("published-120"), given)
