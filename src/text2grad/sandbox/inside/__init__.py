"""What runs inside the sandbox: standard library only, and nothing of text2grad but this package."""
