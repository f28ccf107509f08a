"""Traces of runs, told to a collector that speaks OTLP. The journal is the queue: nothing waits for a collector, and
nothing is lost with one."""
