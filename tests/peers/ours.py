"""The project's codecs under one face: schemes in, unpacked int64 codes and values out."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from blockscale.numerics import codec
from blockscale.numerics.codec import Params
from blockscale.numerics.layout import Layout, bind
from blockscale.numerics.packing import pack, unpack
from blockscale.numerics.scheme import Scheme

Array = Any
NAMES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


class Ours(Protocol):
    """Parameters are as in `codec.Params`, whatever computes."""

    name: str

    def fake_quantize(
        self, x: Array, scheme: Scheme, params: Params | None = None, tensor_scale: Any = None
    ) -> Array: ...

    def quantize(
        self, x: Array, scheme: Scheme, params: Params | None = None, tensor_scale: Any = None
    ) -> tuple[Array, Params]: ...

    def choose_params(self, x: Array, scheme: Scheme) -> Params: ...

    def dequantize(self, codes: Array, scheme: Scheme, params: Params, dtype: str = "float32") -> Array: ...


class Reference:
    name = "reference"

    def fake_quantize(
        self, x: Array, scheme: Scheme, params: Params | None = None, tensor_scale: Any = None
    ) -> Array:
        layout, name = bind(scheme, x.shape), NAMES[x.dtype.name]
        return codec.fake_quantize(x, layout, params, tensor_format=name, tensor_scale=tensor_scale)

    def quantize(
        self, x: Array, scheme: Scheme, params: Params | None = None, tensor_scale: Any = None
    ) -> tuple[Array, Params]:
        layout, name = bind(scheme, x.shape), NAMES[x.dtype.name]
        return codec.quantize(x, layout, params, tensor_format=name, tensor_scale=tensor_scale)

    def choose_params(self, x: Array, scheme: Scheme) -> Params:
        return codec.choose_params(x, bind(scheme, x.shape), NAMES[x.dtype.name])

    def dequantize(self, codes: Array, scheme: Scheme, params: Params, dtype: str = "float32") -> Array:
        return codec.dequantize(codes, bind(scheme, codes.shape), params, NAMES[dtype])


class Native:
    """The compiled core."""

    name = "native"

    def __init__(self) -> None:
        from blockscale.numerics import native

        self.native = native

    def stored(self, params: Params | None, layout: Layout) -> Any:
        if params is None:
            return None
        zeros, t = params.zero_points, params.tensor_scale
        return self.native.Stored(
            params.scales.astype(self.native.scale_dtype(layout.numbers)),
            None if zeros is None else zeros.astype(np.int32),
            None if t is None else np.asarray(t, np.float32),
        )

    def params(self, stored: Any) -> Params:
        wide = np.int64 if stored.scales.dtype == np.uint8 else np.float32
        zeros = stored.zero_points
        return Params(
            stored.scales.astype(wide), None if zeros is None else zeros.astype(np.int64),
            stored.tensor_scale,
        )  # fmt: skip

    def fake_quantize(
        self, x: Array, scheme: Scheme, params: Params | None = None, tensor_scale: Any = None
    ) -> Array:
        layout = bind(scheme, x.shape)
        return self.native.fake_quantize(x, layout, self.stored(params, layout), tensor_scale=tensor_scale)

    def quantize(
        self, x: Array, scheme: Scheme, params: Params | None = None, tensor_scale: Any = None
    ) -> tuple[Array, Params]:
        layout = bind(scheme, x.shape)
        codes, stored = self.native.quantize(
            x, layout, self.stored(params, layout), tensor_scale=tensor_scale
        )
        return unpack(codes, layout.numbers.element_format, x.shape[-1]), self.params(stored)

    def choose_params(self, x: Array, scheme: Scheme) -> Params:
        return self.params(self.native.choose_params(x, bind(scheme, x.shape)))

    def dequantize(self, codes: Array, scheme: Scheme, params: Params, dtype: str = "float32") -> Array:
        layout = bind(scheme, codes.shape)
        packed = pack(codes, layout.numbers.element_format)
        return self.native.dequantize(packed, layout, self.stored(params, layout), NAMES[dtype])


CODECS: dict[str, type[Reference] | type[Native]] = {"reference": Reference, "native": Native}
