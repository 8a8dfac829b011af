"""Published benchmarks: MT-Bench, ARC-Challenge, AlpacaEval. Their tasks hold out every question."""
