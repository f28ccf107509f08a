"""One process around a core: threads, event loop, readers, wake-ups, news."""
