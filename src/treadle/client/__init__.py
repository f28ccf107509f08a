"""A server as commands see it: the same questions that an engine on a store answers, asked over HTTP."""
