"""What tests of workflows need: a driver without an engine, a virtual clock, scripted models."""
