"""Tests, a package of its own: a library that we use brings another one called `tests`."""
