"""Verifying: equal, differs, or cannot tell, and each for the right reason."""

import gzip
import shutil
from dataclasses import replace

import pytest

from loadgen import manifest
from loadgen.candidate import Recipe
from loadgen.manifest import freeze, read_manifest, verify
from loadgen.surrogate import generate
from loadgen.trace import read
from loadgen.window import content_sha256, from_parquet, read_window, to_parquet, window_path
from schedulers.errors import InputError
from tests.loadgen.window_rows import hand_made

RECIPE = Recipe(kind="published", count=4)


def csv(path, rows=1000, seed=0):
    """Write rows of the user's own, and give back the trace that the reader makes of them."""
    trace = hand_made(rows, seed=seed)
    columns = zip(trace.arrival_ns / 1e9, trace.prompt_tokens, trace.output_tokens, strict=True)
    lines = "".join(f"{arrival:.9f},{prompt},{output}\n" for arrival, prompt, output in columns)
    path.write_text(f"arrival_s,prompt_tokens,output_tokens\n{lines}")
    return read(path, source="own")


def answers(folder, sources=None):
    return [verdict.answer for verdict in verify(folder, sources)]


def test_verify_cuts_again_from_the_source(tmp_path):
    source, folder = tmp_path / "traffic", tmp_path / "windows"
    source.mkdir()
    freeze([csv(source / "mine.csv")], folder, RECIPE)
    assert {verdict.note for verdict in verify(folder, source)} == {"rows as frozen, and as cut again"}
    assert set(answers(folder, source / "mine.csv")) == {"equal"}
    packed = tmp_path / "packed"
    packed.mkdir()
    (packed / "mine.csv.gz").write_bytes(gzip.compress((source / "mine.csv").read_bytes()))
    assert {verdict.note for verdict in verify(folder, packed)} == {"rows as frozen, and as cut again"}


def test_verify_cannot_tell_without_the_source_or_with_another(tmp_path):
    source, folder = tmp_path / "traffic", tmp_path / "windows"
    source.mkdir()
    freeze([csv(source / "mine.csv")], folder, RECIPE)
    empty = tmp_path / "empty"
    empty.mkdir()
    verdict = verify(folder, empty)[0]
    assert (verdict.answer, "mine.csv is not in" in verdict.note) == ("cannot tell", True)
    csv(source / "mine.csv", seed=3)
    verdict = verify(folder, source)[0]
    assert (verdict.answer, "another file" in verdict.note) == ("cannot tell", True)
    (source / "mine.csv").write_text("")
    verdict = verify(folder, source)[0]
    assert (verdict.answer, "cannot be read" in verdict.note) == ("cannot tell", True)
    with pytest.raises(InputError, match="no such file or folder"):
        verify(folder, tmp_path / "nowhere")


def test_verify_notices_a_manifest_that_claims_other_rows(tmp_path):
    """The file of rows agrees with the manifest; the source does not: a window moved by one row."""
    source, folder = tmp_path / "traffic", tmp_path / "windows"
    source.mkdir()
    lines = freeze([csv(source / "mine.csv")], folder, RECIPE).lines
    moved = [replace(lines[0], first_row=lines[0].first_row + 1), *lines[1:]]
    manifest.write_manifest(folder, moved)
    assert set(answers(folder)) == {"equal"}
    assert sorted(answers(folder, source)) == ["differs", "equal", "equal", "equal"]
    manifest.write_manifest(folder, [replace(lines[0], first_row=999), *lines[1:]])
    assert "differs" in answers(folder, source)


def test_a_manifest_without_rows_is_verified_from_the_source_alone(tmp_path):
    """What a repository may keep: lines, no rows."""
    source, folder = tmp_path / "traffic", tmp_path / "windows"
    source.mkdir()
    freeze([csv(source / "mine.csv")], folder, RECIPE)
    shutil.rmtree(folder / "windows")
    assert set(answers(folder, source)) == {"equal"}
    assert set(answers(folder)) == {"cannot tell"}


def test_a_tampered_window_with_a_matching_manifest_is_found_by_its_source(tmp_path):
    source, folder = tmp_path / "traffic", tmp_path / "windows"
    source.mkdir()
    line = freeze([csv(source / "mine.csv")], folder, RECIPE).lines[0]
    window = read_window(folder, line)
    window.prompt_tokens[0] += 1
    forged = replace(line, content_sha256=content_sha256(window))
    payload = to_parquet(window)
    window_path(folder, line).write_bytes(payload)
    lines = [forged if one.id == line.id else one for one in read_manifest(folder)]
    manifest.write_manifest(folder, lines)
    assert from_parquet(payload, forged, "w").prompt_tokens[0] == window.prompt_tokens[0]
    assert [verdict.answer for verdict in verify(folder, source) if verdict.id == line.id] == ["differs"]


def test_a_surrogate_is_drawn_again(tmp_path):
    trace = generate("azure_surrogate-code", rows=1000, seed=2)
    lines = freeze([trace], tmp_path, RECIPE).lines
    assert {(line.label, line.source) for line in lines} == {("surrogate", "azure_surrogate")}
    assert {verdict.note for verdict in verify(tmp_path)} == {"rows as frozen, and as cut again"}
    other = replace(lines[0], generator=trace.info.generator.replace("seed=2", "seed=3"))
    manifest.write_manifest(tmp_path, [other])
    verdict = verify(tmp_path)[0]
    assert (verdict.answer, "regenerated, differs" in verdict.note) == ("cannot tell", True)
    manifest.write_manifest(
        tmp_path, [replace(lines[0], generator="0 azure_surrogate-code rows=1000 seed=2")]
    )
    assert verify(tmp_path)[0].answer == "cannot tell"


def test_a_longer_surrogate_of_the_same_seed_shares_its_rows(tmp_path):
    for rows in (1000, 4000):
        trace = generate("azure_surrogate-code", rows=rows, seed=2)
        recipe = replace(RECIPE, seed=rows)
        if rows == 1000:
            freeze([trace], tmp_path, replace(recipe, count=5))
        else:
            with pytest.raises(InputError, match="rows in common"):
                freeze([trace], tmp_path, replace(recipe, count=20))
