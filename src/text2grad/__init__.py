"""text2grad: train language models from natural-language feedback (Text2Grad, arXiv 2505.22338)."""

__version__ = "0.1.0"
