"""`config` in compiled functions: constants are part of the code, parameters are read from memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import from_dtype, typeof, types
from numba.core.datamodel import models
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, intrinsic, lower_getattr_generic, register_model


class ConfigType(types.Type):
    """The Numba type of `config`. Each set of constants has its own type.

    Args:
        constants: The constants by name.
        parameters: The dtype of the parameters of one env.
        key: A hash of the constants. It is part of the type's name, by which Numba tells types apart.
    """

    def __init__(self, constants: dict[str, Any], parameters: np.dtype[Any], key: str) -> None:
        self.constants, self.parameters = constants, parameters
        super().__init__(f"config({key}, {parameters})")


@register_model(ConfigType)
class _ConfigModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, ir.IntType(64))


@infer_getattr
class _ConfigAttributes(AttributeTemplate):
    key = ConfigType

    def generic_resolve(self, config: ConfigType, name: str) -> Any:
        if name in config.constants:
            return typeof(config.constants[name])
        if name in (config.parameters.names or ()):
            return from_dtype(config.parameters[name])
        return None


@lower_getattr_generic(ConfigType)
def _get(context: Any, builder: Any, config: ConfigType, value: Any, name: str) -> Any:
    if name in config.constants:
        kind = typeof(config.constants[name])
        return context.get_constant_generic(builder, kind, config.constants[name])
    fields: Any = config.parameters.fields
    dtype, offset = fields[name][:2]
    kind = from_dtype(dtype)
    address = builder.add(value, ir.Constant(ir.IntType(64), offset))
    pointer = builder.inttoptr(address, context.get_data_type(kind).as_pointer())
    return context.unpack_value(builder, kind, pointer)


def config_at(config: ConfigType) -> Any:
    """Return a compiled function that returns the config whose parameters lie at an address."""

    @intrinsic
    def at(typing: Any, address: Any) -> Any:
        return config(types.uint64), lambda context, builder, signature, args: args[0]

    return at
