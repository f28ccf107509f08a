"""The control plane: an engine behind HTTP. `/api/v1` for programs, live streams for those who watch."""
