"""Treadle's own dialects and other durable engines, each behind `peer.Peer`, run by `driver.py`."""
