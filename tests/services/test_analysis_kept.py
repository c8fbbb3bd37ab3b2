"""What the analysis service keeps: answers once made, and whatever is still being made."""

import threading

import pytest

from services.analysis.kept import Kept, WorkingError


async def test_an_answer_that_is_being_made_is_not_made_again():
    """More of them than are kept, asked for in turn as pages do that refresh themselves."""
    kept, made, gate = Kept(1, 0.01), [], threading.Event()

    def work(key):
        made.append(key)
        gate.wait(10.0)
        return key

    for _ in range(3):
        for key in "ab":
            with pytest.raises(WorkingError):
                await kept.get(key, lambda key=key: work(key))
    assert sorted(made) == ["a", "b"]
    gate.set()
    await kept.close()
    assert await kept.get("b", lambda: "anew") == "b"
    assert len(kept) == 1, "of what is made only so many are kept"
    assert await kept.get("a", lambda: "anew") in ("a", "anew")


async def test_the_oldest_answer_goes_first():
    kept = Kept(2, 10.0)
    for key in "abc":
        assert await kept.get(key, lambda key=key: key) == key
    assert await kept.get("a", lambda: "anew") == "anew"
    assert await kept.get("c", lambda: "anew") == "c"
