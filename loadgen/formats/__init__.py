"""Readers of published traffic files, one module a family, and what they share."""
