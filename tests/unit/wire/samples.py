"""Frames to test with: hypothesis strategies for every frame there is, made from the frames' own annotations."""

from __future__ import annotations

import types
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

from holdfast.group.frames import GROUP_FRAMES
from holdfast.health.frames import HEALTH_FRAMES
from holdfast.wire.frames import LINK_FRAMES, Frame

FRAMES: tuple[type[Frame], ...] = (*LINK_FRAMES, *HEALTH_FRAMES, *GROUP_FRAMES)

LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(1 << 63), (1 << 64) - 1),
    bool: st.booleans(),
    str: st.text(max_size=20),
    bytes: st.binary(max_size=40),
    memoryview: st.binary(max_size=300).map(memoryview),
    type(None): st.none(),
}


def of_type(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of one annotation of a frame."""
    if annotation in LEAVES:
        return LEAVES[annotation]
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return of_struct(annotation)
    arguments = get_args(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        return st.one_of([of_type(argument) for argument in arguments])
    assert get_origin(annotation) is tuple, annotation
    if arguments[-1] is Ellipsis:
        return st.lists(of_type(arguments[0]), max_size=3).map(tuple)
    return st.tuples(*[of_type(argument) for argument in arguments])


def of_struct(struct: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(struct)
    names = struct.__struct_fields__
    return st.tuples(*[of_type(hints[name]) for name in names]).map(lambda values: struct(*values))


any_frame: st.SearchStrategy[Any] = st.one_of([of_struct(frame) for frame in FRAMES])
