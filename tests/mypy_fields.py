"""A plugin of mypy: a field of a structured array is `Any`.

NumPy gives `rows["end"]` the type of an array of no known dtype. Each operation with one matches most overloads of
NumPy, of which mypy tries all, to come to `Any` in the end.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy.nodes import Expression, NameExpr, StrExpr
from mypy.plugin import MethodContext, MethodSigContext, Plugin
from mypy.types import AnyType, CallableType, FunctionLike, Instance, Type, TypeOfAny, get_proper_type

NDARRAY = "numpy.ndarray"


class Fields(Plugin):
    """Hooks into the indexing of arrays."""

    def get_method_signature_hook(self, fullname: str) -> Callable[[MethodSigContext], FunctionLike] | None:
        return _by_name if fullname in {f"{NDARRAY}.__getitem__", f"{NDARRAY}.__setitem__"} else None

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        return _field if fullname == f"{NDARRAY}.__getitem__" else None


def _by_name(context: MethodSigContext) -> CallableType:
    """For `rows["end"]` each overload takes the name and any value, so that the first one matches."""
    signature = context.default_signature
    name, some = context.api.named_generic_type("builtins.str", []), AnyType(TypeOfAny.special_form)
    if not (_dtype(context.type) == "numpy.void" and _is_name(context.args[0][0], context)):
        return signature
    given = signature.ret_type if len(signature.arg_types) == 2 else some
    return signature.copy_modified(arg_types=[name, some][: len(signature.arg_types)], ret_type=given)


def _is_name(index: Expression, context: MethodSigContext) -> bool:
    """Whether the index is a text, written there or in a variable: the type of anything else would take time."""
    if not isinstance(index, NameExpr):
        return isinstance(index, StrExpr)
    given = get_proper_type(context.api.get_expression_type(index))
    return isinstance(given, Instance) and given.type.fullname == "builtins.str"


def _field(context: MethodContext) -> Type:
    """`Any` for an array of no known dtype, else what NumPy says."""
    given = context.default_return_type
    return AnyType(TypeOfAny.special_form) if _dtype(given) == "Any" else given


def _dtype(array: Type) -> str:
    """The name of an array's scalar type; "" for what is no array."""
    array = get_proper_type(array)
    if not (isinstance(array, Instance) and array.type.fullname == NDARRAY):
        return ""
    dtype = get_proper_type(array.args[1])
    scalar = get_proper_type(dtype.args[0]) if isinstance(dtype, Instance) else dtype
    return scalar.type.fullname if isinstance(scalar, Instance) else "Any" if isinstance(scalar, AnyType) else ""


def plugin(version: str) -> type[Plugin]:
    """Called by mypy."""
    return Fields
