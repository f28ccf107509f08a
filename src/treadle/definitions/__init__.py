"""Definitions: found in files, compiled, deployed, cached."""
