"""Published benchmarks with a way of counting of their own."""
