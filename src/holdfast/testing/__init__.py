"""Suites for those who add a part of their own to Holdfast.

`stores` holds the conformance suite of dialog stores. It needs pytest.
"""
