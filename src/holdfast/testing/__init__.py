"""Conformance suites for third-party extensions of Holdfast.

`stores` contains the suite for dialog stores. It needs pytest.
"""
