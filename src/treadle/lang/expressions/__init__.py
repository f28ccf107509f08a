"""The expression language: one grammar and one evaluator for every dialect that decides by data.

A dialect says which roots an expression may start from, and gives a `Scope` that reads them.
"""
