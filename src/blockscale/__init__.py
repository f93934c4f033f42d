"""blockscale: a quantization compiler for block-scaled numbers."""

__version__ = "0.1.0"
