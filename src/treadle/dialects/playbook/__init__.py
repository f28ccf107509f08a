"""The playbook dialect: Petri-net playbooks in YAML (seeds 000 and 004, docs/playbook.md)."""

from __future__ import annotations

from .dialect import DIALECT

__all__ = ["DIALECT"]
