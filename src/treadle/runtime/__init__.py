"""The runtime: admits events, steps runs, commits in groups, dispatches only what is durable."""
