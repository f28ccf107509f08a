"""Reactive applications as operations: publish, apply, shadow, governance."""
