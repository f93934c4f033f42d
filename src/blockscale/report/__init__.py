"""What is shown to people and machines: facts, measurements, tables."""
