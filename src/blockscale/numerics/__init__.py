"""What numbers are: formats, schemes and layouts, the reference codec and the compiled one."""
