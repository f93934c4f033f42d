"""Forms of a quantized ONNX file: what its quantizers are written as."""
