"""A process's calls: transports."""
