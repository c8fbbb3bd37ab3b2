"""Cluster policies, one idea a file: which engine takes a request."""
