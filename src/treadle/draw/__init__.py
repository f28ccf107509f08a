"""Graphs of definitions and runs as pictures: SVG, Mermaid, DOT, text."""
