"""Where a quantized model goes: one file a kind of model or file. Targets do not import one another."""
