"""Reads results and runs nothing: metrics, ranks, portability and the report."""
