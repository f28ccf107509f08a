"""What a worker does for each dialect's intents: one folder a dialect."""
