"""Published benchmarks to measure on: all their questions are held out. Nothing but the table names them."""
