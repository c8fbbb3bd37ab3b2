"""The vocabulary and every scheduling decision: pure functions over arrays, numpy only."""
