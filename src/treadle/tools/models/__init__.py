"""Providers of models: scripted, Anthropic, OpenAI and whatever speaks their language."""
