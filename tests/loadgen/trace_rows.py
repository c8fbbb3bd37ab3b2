"""Hand-made files in the schemas of the published traces: no row of them was recorded by anybody."""

import hashlib
import json
from pathlib import Path

import numpy as np

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
AZURE_2023 = (
    "2023-11-16 18:17:03.9799600,4808,10",
    "2023-11-16 18:17:04.0319600,3180,8",
    "2023-11-16 18:17:04.0781490,110,27",
    "2023-11-16 18:17:09.0000001,7434,14",
)
AZURE_2024 = (
    "2024-05-10 00:00:00.009930+00:00,2162,5",
    "2024-05-10 00:00:01+00:00,7743,9",
    "2024-05-10 00:00:01.500000+00:00,12,700",
)
AZURE_2025 = (
    "2024-10-15T12:00:00.269Z,0,100,7",
    "2024-10-15T12:00:00.300Z,2,1234,8",
)
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
BURST_ROWS = (
    "5,ChatGPT,472,18,490,Conversation log",
    "45,ChatGPT,1087,230,1317,Conversation log",
    "45,GPT-4,417,276,693,API log",
    "45,ChatGPT,20,3,23,API log",
    "118,ChatGPT,0,0,0,Conversation log",
    "119,GPT-4,1360,647,2007,Conversation log",
)
BURST_3 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
BURST_3_ROWS = (
    "19440110.0,11111111-aaaa-4bbb-8ccc-000000000001,43,GPT-4,906,446,1352,Conversation log",
    "19440161.0,11111111-aaaa-4bbb-8ccc-000000000002,2,ChatGPT,36,29,65,Conversation log",
    "19440170.0,,0,ChatGPT,900,12,912,API log",
    "19440200.0,11111111-aaaa-4bbb-8ccc-000000000001,20,GPT-4,1400,100,1500,Conversation log",
)


def write(path: Path, header: str, rows, *, end="\n", last=True, bom=False) -> Path:
    """Write a table with the given line end, with or without the last one and a byte-order mark."""
    text = end.join([header, *rows]) + (end if last else "")
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + text.encode())
    return path


def azure_2023(count: int, *, seed=0) -> list[str]:
    """Rows in the 2023 form, strictly increasing."""
    drawn = np.random.Generator(np.random.PCG64(seed))
    ticks = np.cumsum(drawn.integers(1, 9_000_000, count))
    rows = []
    for tick, prompt, output in zip(
        ticks.tolist(),
        drawn.integers(3, 8000, count).tolist(),
        drawn.integers(6, 500, count).tolist(),
        strict=True,
    ):
        seconds, rest = divmod(tick, 10_000_000)
        hours, minutes = divmod(seconds // 60, 60)
        stamp = f"2023-11-16 {hours % 24:02d}:{minutes:02d}:{seconds % 60:02d}.{rest:07d}"
        rows.append(f"{stamp},{prompt},{output}")
    return rows


def chat(number, parent, second, blocks, *, tokens=0, output=50, kind="text", block=16, **fields) -> dict:
    """One object in Bailian's schema; the prompt fills its blocks but for one token unless told."""
    record = {
        "chat_id": number,
        "parent_chat_id": parent,
        "timestamp": second,
        "input_length": tokens or len(blocks) * block - 1,
        "output_length": output,
        "type": kind,
        "turn": 1 if parent < 0 else 2,
        "hash_ids": list(blocks),
    }
    return record | fields


def batch(millisecond, blocks, *, tokens=0, output=50) -> dict:
    """One object in Mooncake's schema."""
    return {
        "timestamp": millisecond,
        "input_length": tokens or len(blocks) * 512 - 1,
        "output_length": output,
        "hash_ids": list(blocks),
    }


def write_json(path: Path, records) -> Path:
    """Write one object a line; a record that is a string is written as it is."""
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("\n".join(lines) + "\n")
    return path


def digest(trace, *, rows=True) -> str:
    """Digest of all that a trace's rows say; ``rows`` False leaves out where they stood in the file."""
    seen = hashlib.sha256()
    for name, column in trace._asdict().items():
        if name in ("info", "kinds") or column is None or (name == "source_row" and not rows):
            continue
        seen.update(name.encode() + str(column.dtype).encode() + np.ascontiguousarray(column).tobytes())
    return seen.hexdigest()
