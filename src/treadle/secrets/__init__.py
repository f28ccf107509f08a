"""Secrets: where they come from, how they are kept, and that they never leave."""
