"""Workers: they perform the intents that the engine does not settle itself."""
