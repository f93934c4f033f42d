"""How a model is seen: a view of FX and ONNX graphs (view, overlay), what operators are (ops), adapters."""
