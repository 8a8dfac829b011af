"""What runs inside the sandbox: the standard library and this package, nothing else."""
