"""What runs a quantized model: the operators of each framework."""
