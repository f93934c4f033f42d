"""How a model is seen: one view over FX and ONNX graphs (view, overlay), what operators are (ops), adapters."""
