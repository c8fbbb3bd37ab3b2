"""The manifest: what is frozen can be read back, verified, added to, and is never half there."""

import errno
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.candidate import Recipe
from loadgen.manifest import freeze, manifest_sha256, read_manifest, verify
from loadgen.window import content_sha256, cut, read_window, window_path
from schedulers.errors import InputError
from tests.loadgen.window_rows import hand_made, with_prefixes

RECIPE = Recipe(kind="published", count=4)


def files(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def answers(folder, sources=None):
    return [verdict.answer for verdict in verify(folder, sources)]


def test_same_inputs_same_bytes(tmp_path):
    traces = [with_prefixes(hand_made(1000, source="b")), hand_made(700, seed=1, source="a")]
    freeze(traces, tmp_path / "one", RECIPE)
    freeze(traces[::-1], tmp_path / "two", RECIPE)
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert len(files(tmp_path / "one")) == 5


def test_what_is_frozen_is_read_back(tmp_path):
    trace = with_prefixes(hand_made(1000))
    frozen = freeze([trace], tmp_path, RECIPE)
    assert (len(frozen.lines), frozen.written, frozen.total) == (4, 4, 4)
    lines = read_manifest(tmp_path)
    assert sorted(lines, key=lambda line: line.id) == list(lines)
    assert {line.id: line for line in frozen.lines} == {line.id: line for line in lines}
    for line in lines:
        window = read_window(tmp_path, line)
        assert content_sha256(window) == line.content_sha256
        again = cut(trace, line.first_row, line.rows, line.kind, line.seed)
        assert again.line.id == line.id
        assert line.split in ("dev", "test")
        assert line.stratum.startswith("w")
        assert line.descriptors["requests_per_s"] > 0
        payload = window_path(tmp_path, line).read_bytes()
        assert hashlib.sha256(payload).hexdigest() == line.file_sha256
    digest = hashlib.sha256((tmp_path / "manifest.jsonl").read_bytes()).hexdigest()
    assert manifest_sha256(tmp_path) == frozen.manifest_sha256 == digest


def test_a_line_says_where_its_rows_come_from(tmp_path):
    freeze([hand_made(1000, licence="CC-BY-4.0", citation="Somebody")], tmp_path, RECIPE)
    line = json.loads((tmp_path / "manifest.jsonl").read_text().splitlines()[0])
    assert (line["file"], line["bytes"], line["sha256"]) == ("rows.csv", 1234, "ab" * 32)
    assert (line["licence"], line["citation"], line["rows"]) == ("CC-BY-4.0", "Somebody", 200)
    assert line["t0"].startswith("2024-05-10 00:0")
    assert line["label"] == "own"


def test_another_source_is_added_and_what_is_there_stays(tmp_path):
    freeze([hand_made(1000)], tmp_path, RECIPE)
    before = files(tmp_path)
    other = hand_made(
        1000, seed=5, source="mooncake-synthetic", family="mooncake", label="real", sha256="cd" * 32
    )
    frozen = freeze([other], tmp_path, RECIPE)
    assert frozen.total == 8
    after = files(tmp_path)
    assert {name: after[name] for name in before if name != "manifest.jsonl"} == {
        name: data for name, data in before.items() if name != "manifest.jsonl"
    }
    lines = read_manifest(tmp_path)
    assert [line.id for line in lines] == sorted(line.id for line in lines)
    assert {line.source for line in lines} == {"own", "mooncake"}


def test_freezing_again_writes_nothing_and_a_larger_count_adds(tmp_path):
    trace = hand_made(2000)
    freeze([trace], tmp_path, RECIPE)
    before = files(tmp_path)
    again = freeze([trace], tmp_path, RECIPE)
    assert (again.written, again.total) == (0, 4)
    assert files(tmp_path) == before
    more = freeze([trace], tmp_path, replace(RECIPE, count=7))
    assert (more.written, more.total) == (3, 7)


def test_a_damaged_window_is_named_and_freezing_again_mends_it(tmp_path):
    trace = hand_made(1000)
    line = freeze([trace], tmp_path, RECIPE).lines[2]
    path = window_path(tmp_path, line)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    with pytest.raises(InputError, match=rf"cannot be read.*{line.id}.*freeze it again"):
        read_window(tmp_path, line)
    assert next(verdict for verdict in verify(tmp_path) if verdict.id == line.id).answer == "differs"
    assert sorted(answers(tmp_path)) == ["differs", "equal", "equal", "equal"]
    assert freeze([trace], tmp_path, RECIPE).written == 1
    assert path.read_bytes() == whole


def test_a_window_under_another_ones_name_is_noticed(tmp_path):
    first, second, *_ = freeze([hand_made(1000)], tmp_path, RECIPE).lines
    window_path(tmp_path, first).write_bytes(window_path(tmp_path, second).read_bytes())
    with pytest.raises(InputError, match=rf"not the one that was frozen.*{first.id}\.parquet"):
        read_window(tmp_path, first)


def test_a_missing_window_is_named(tmp_path):
    line = freeze([hand_made(1000)], tmp_path, RECIPE).lines[0]
    window_path(tmp_path, line).unlink()
    with pytest.raises(InputError, match=rf"missing.*{line.id}\.parquet.*freeze it again"):
        read_window(tmp_path, line)
    assert answers(tmp_path).count("differs") == 1


def test_another_writer_gives_the_same_window(tmp_path):
    """The id and the results rest on values: only the file's digest may change with the library."""
    import pyarrow.parquet as pq

    line = freeze([hand_made(1000)], tmp_path, RECIPE).lines[0]
    path = window_path(tmp_path, line)
    pq.write_table(pq.read_table(path), path, compression="gzip")
    assert hashlib.sha256(path.read_bytes()).hexdigest() != line.file_sha256
    assert content_sha256(read_window(tmp_path, line)) == line.content_sha256
    assert set(answers(tmp_path)) == {"equal"}


@pytest.mark.parametrize("half", ['{"id": "own-publ', "", "[]", '{"id": "own-published-x"}'])
def test_a_half_written_line_is_named(tmp_path, half):
    freeze([hand_made(1000)], tmp_path, RECIPE)
    path = tmp_path / "manifest.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], half, *lines[3:]]))
    for act in (lambda: read_manifest(tmp_path), lambda: freeze([hand_made(1000)], tmp_path, RECIPE)):
        with pytest.raises(InputError, match=r"half-written.*manifest\.jsonl:3.*delete that line"):
            act()


def test_a_line_whose_id_leaves_the_folder_is_refused(tmp_path):
    freeze([hand_made(1000)], tmp_path, RECIPE)
    path = tmp_path / "manifest.jsonl"
    line = json.loads(path.read_text().splitlines()[0])
    path.write_text(json.dumps({**line, "id": "../../elsewhere"}))
    with pytest.raises(InputError, match=r"manifest\.jsonl:1"):
        read_manifest(tmp_path)


def test_the_same_line_twice_is_refused(tmp_path):
    freeze([hand_made(1000)], tmp_path, RECIPE)
    path = tmp_path / "manifest.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[0]]))
    with pytest.raises(InputError, match="twice"):
        read_manifest(tmp_path)


def test_no_manifest_is_said(tmp_path):
    for act in (read_manifest, manifest_sha256):
        with pytest.raises(InputError, match=r"no frozen windows.*manifest\.jsonl.*windows freeze"):
            act(tmp_path)


def test_an_emptied_manifest_is_said_and_filled_again(tmp_path):
    """No line agrees with everything: a folder of nothing must not verify."""
    before = freeze([hand_made(1000)], tmp_path, RECIPE)
    (tmp_path / "manifest.jsonl").write_bytes(b"")
    for act in (read_manifest, verify):
        with pytest.raises(InputError, match=r"holds no windows.*manifest\.jsonl.*windows freeze"):
            act(tmp_path)
    assert freeze([hand_made(1000)], tmp_path, RECIPE).manifest_sha256 == before.manifest_sha256
    assert set(answers(tmp_path)) == {"equal"}


def full_after(monkeypatch, writes, error):
    """Let so many files be written, then half of one, then fail."""
    real, done = Path.write_bytes, []

    def write(path, data):
        if len(done) == writes:
            real(path, data[: len(data) // 2])
            raise error
        done.append(path)
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", write)


@pytest.mark.parametrize("writes", [0, 2, 4])
@pytest.mark.parametrize(
    ("error", "raised", "says"),
    [
        (OSError(errno.ENOSPC, "No space"), InputError, r"disk is full.*(parquet|manifest\.jsonl)"),
        (OSError(errno.EACCES, "Permission denied"), InputError, r"cannot be written.*Permission"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
)
def test_a_stop_in_the_middle_leaves_no_half_file(tmp_path, monkeypatch, writes, error, raised, says):
    """The disk fills, or Ctrl-C comes, at the first window, in the middle, or at the manifest."""
    full_after(monkeypatch, writes, error)
    with pytest.raises(raised, match=says):
        freeze([hand_made(1000)], tmp_path, RECIPE)
    monkeypatch.undo()
    left = files(tmp_path)
    assert "manifest.jsonl" not in left
    assert len(left) == writes
    assert all(name.endswith(".parquet") and not Path(name).name.startswith(".") for name in left)
    frozen = freeze([hand_made(1000)], tmp_path, RECIPE)
    for name, data in left.items():
        assert (tmp_path / name).read_bytes() == data
    for line in frozen.lines:
        read_window(tmp_path, line)


def test_a_stop_while_adding_keeps_the_old_manifest(tmp_path, monkeypatch):
    freeze([hand_made(2000)], tmp_path, RECIPE)
    before = (tmp_path / "manifest.jsonl").read_bytes()
    full_after(monkeypatch, 3, OSError(errno.ENOSPC, "full"))
    with pytest.raises(InputError, match="disk is full"):
        freeze([hand_made(2000)], tmp_path, replace(RECIPE, count=10))
    monkeypatch.undo()
    assert (tmp_path / "manifest.jsonl").read_bytes() == before
    assert set(answers(tmp_path)) == {"equal"}


def test_a_place_that_cannot_be_a_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be written.*file/windows"):
        freeze([hand_made(1000)], tmp_path / "file", RECIPE)


def test_the_same_rows_with_other_luck_are_refused(tmp_path):
    freeze([hand_made(1000)], tmp_path, RECIPE)
    before = files(tmp_path)
    with pytest.raises(InputError, match=r"rows in common.*another folder"):
        freeze([hand_made(1000)], tmp_path, replace(RECIPE, seed=1))
    assert files(tmp_path) == before


def test_no_window_at_all_is_an_error_that_counts_the_reasons(tmp_path):
    with pytest.raises(InputError, match=r"no window of 1250 rows.*few_rows 1.*rows\.csv.*--kind short"):
        freeze([hand_made(1000)], tmp_path, Recipe())
    with pytest.raises(InputError, match=r"few_rows 1.*use a longer file$"):
        freeze([hand_made(100)], tmp_path, Recipe())
    assert files(tmp_path) == {}


def test_one_source_at_a_time(tmp_path):
    other = hand_made(1000, source="mooncake-x", family="mooncake", label="real")
    with pytest.raises(InputError, match="one source at a time, not from mooncake, own"):
        freeze([hand_made(1000), other], tmp_path, RECIPE)
    with pytest.raises(InputError, match="from none"):
        freeze([], tmp_path, RECIPE)
    with pytest.raises(InputError, match="several files hold own-rows"):
        freeze([hand_made(1000), hand_made(1000)], tmp_path, RECIPE)


@pytest.mark.parametrize(("family", "label"), [("azure2023", "surrogate"), ("azure_surrogate", "real")])
def test_a_surrogate_never_carries_a_plain_name(tmp_path, family, label):
    with pytest.raises(InputError, match="ends with _surrogate"):
        freeze([hand_made(1000, family=family, label=label)], tmp_path, RECIPE)


def test_the_label_reaches_every_line(tmp_path):
    freeze([hand_made(1000, family="azure2024", label="unpinned")], tmp_path, RECIPE)
    assert {line.label for line in read_manifest(tmp_path)} == {"unpinned"}


def test_short_windows_of_the_azure_hour_hold_nothing_out(tmp_path):
    trace = hand_made(625 * 10, source="azure2023-conv", family="azure2023", label="real")
    lines = freeze([trace], tmp_path, Recipe(kind="short")).lines
    assert {(line.source, line.split) for line in lines} == {("azure2023_short", "dev")}
    lines = freeze([trace], tmp_path, RECIPE).lines
    assert {line.source for line in lines} == {"azure2023"}


def test_the_real_azure_hour_gives_22_windows(tmp_path, traces_dir):
    from loadgen.trace import read

    traces = [read(path) for path in sorted((traces_dir / "azure").glob("*.csv"))]
    frozen = freeze(traces, tmp_path, Recipe())
    assert len(frozen.lines) == 22
    assert sorted(line.trace for line in frozen.lines) == ["azure2023-code"] * 7 + ["azure2023-conv"] * 15
    assert frozen.choice.rejected == {"few_rows": 2}
    assert {line.label for line in frozen.lines} == {"real"}
    firsts = {line.trace: line for line in frozen.lines if line.first_row == 0}
    code, conv = (
        read_window(tmp_path, firsts["azure2023-code"]),
        read_window(tmp_path, firsts["azure2023-conv"]),
    )
    assert (code.prompt_tokens.sum(), code.output_tokens.sum()) == (2_593_364, 35_210)
    assert (conv.prompt_tokens.sum(), conv.output_tokens.sum()) == (1_302_493, 307_930)
    assert (code.arrival_s[-1], conv.arrival_s[-1]) == (574.338986, 262.064063)
    assert set(answers(tmp_path, traces_dir / "azure")) == {"equal"}


def test_real_mooncake_windows_keep_their_prefixes(tmp_path, traces_dir):
    from loadgen.trace import read

    traces = [read(path) for path in sorted((traces_dir / "mooncake").glob("*.jsonl.gz"))]
    frozen = freeze(traces, tmp_path, Recipe())
    assert len(frozen.lines) == 12
    line = min(frozen.lines, key=lambda line: (line.trace, line.first_row))
    window = read_window(tmp_path, line)
    assert (line.trace, line.block_tokens) == ("mooncake-conversation", 512)
    blocks = -(-window.prompt_tokens // 512)
    assert ((window.hash_offsets[1:] - window.hash_offsets[:-1]) == blocks).all()
    assert set(answers(tmp_path, traces_dir / "mooncake")) == {"equal"}
