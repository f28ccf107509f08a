"""Enough of SQL to cut a script into statements, and to see what no database would take.

It is no parser: dialects differ. What it reports is wrong in all of them: a quote or a parenthesis
that is never closed, a statement that begins with no word of SQL.
"""

from __future__ import annotations

import re
from typing import Final

from treadle.lang.slips import nearest

# What a semicolon may stand in without ending a statement. Comments of SQL nest. (Compiled by whoever reads SQL: few
# playbooks have any.)
_PIECE: Final = r"""(?xs)
    --[^\n]*
    | (?P<quoted> (?<![\w$])[eE]'(?:[^'\\]|\\.|'')*'
      | '(?:[^']|'')*'
      | "(?:[^"]|"")*"
      | (?<![\w$])(?P<tag>\$(?:[A-Za-z_]\w*)?\$).*?(?P=tag) )
    | (?P<open> /\* ) | (?P<end> ; )
    """
_COMMENT_EDGE: Final = r"/\*|\*/"
_OPENS: Final = r"['\"]|\$(?:[A-Za-z_]\w*)?\$|/\*"
_FIRST: Final = r"(?:\s|\()*([A-Za-z_]+)"
_WORDS: Final = """
    select with values table from insert update delete merge truncate copy create alter drop comment grant revoke
    begin start commit rollback end abort savepoint release set reset show explain analyze vacuum call do execute
    prepare deallocate declare fetch move close listen notify unlisten lock refresh reindex cluster import discard
    checkpoint load reassign security attach detach use install pragma export describe desc summarize pivot unpivot
    force replace upsert exec list put get remove undrop
    """
_VERBS: Final = frozenset(_WORDS.split())


def split_statements(text: str) -> list[str]:
    """The statements of a script. Semicolons in quotes, dollar quotes and comments do not count, and
    a part that is nothing but comments is no statement."""
    found: list[str] = []
    start = at = 0
    solid = False
    while match := re.compile(_PIECE).search(text, at):
        solid = solid or bool(text[at : match.start()].strip() or match["quoted"])
        at = _comment_end(text, match.end()) if match["open"] else match.end()
        if match["end"]:
            if solid:
                found.append(text[start : match.start()].strip())
            start, solid = at, False
    if solid or text[at:].strip():
        found.append(text[start:].strip())
    return found


def _comment_end(text: str, at: int) -> int:
    depth = 1
    while depth and (match := re.compile(_COMMENT_EDGE).search(text, at)):
        depth += 1 if match[0] == "/*" else -1
        at = match.end()
    return at if not depth else len(text)


def wrong_with(text: str) -> tuple[str, str] | None:
    """What no database would take of a script, and what to do about it; None if nothing is seen."""
    bare = _bare(text)
    if left := re.search(_OPENS, bare):
        return f"{left[0]} is never closed", "close it; inside a text a quote is written twice"
    if bare.count("(") != bare.count(")"):
        return f"{bare.count('(')} parentheses are opened and {bare.count(')')} closed", "balance them"
    for statement in split_statements(text):
        first = re.match(_FIRST, _bare(statement))
        word = first[1] if first else ""
        if word and word.lower() not in _VERBS:
            near = nearest(word.lower(), sorted(_VERBS), cutoff=0.75)
            if near:
                return f"a statement begins with {word!r}", f"did you mean {near[0].upper()}?"
    return None


def _bare(text: str) -> str:
    """The text with what is quoted or comment blanked out."""
    out, at = [], 0
    while match := re.compile(_PIECE).search(text, at):
        out.append(text[at : match.start()])
        if match["end"]:
            out.append(";")
        elif match["open"]:
            end = _comment_end(text, match.end())
            if not text[:end].endswith("*/"):
                return "".join(out) + "/*"
            at = end
            continue
        else:
            out.append(" ")
        at = match.end()
    return "".join([*out, text[at:]])
