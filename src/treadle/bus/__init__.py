"""How work reaches workers."""
