"""Stubs made from proto/ by `python -m services.stubs`: never edited by hand."""
