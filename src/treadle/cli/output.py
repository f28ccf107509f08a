"""What commands write, and where.

Standard output carries what was asked for: with `--json` exactly one JSON document (or JSON Lines),
otherwise the table, text or picture. Progress, hints and errors go to standard error. Commands say
what to write; this module decides how it looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from treadle.kernel.errors import TreadleError
from treadle.lang.json_text import to_json

from . import stdout

if TYPE_CHECKING:
    from rich.console import Console

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_WAITING: Final = 3
EXIT_CANCELLED: Final = 4
EXIT_PARTIAL: Final = 5
EXIT_INTERRUPTED: Final = 130
EXIT_TERMINATED: Final = 143

_BY_STATUS: Final = {
    "completed": EXIT_OK,
    "deleted": EXIT_OK,
    "running": EXIT_OK,
    "failed": EXIT_FAILED,
    "waiting": EXIT_WAITING,
    "queued": EXIT_WAITING,
    "stalled": EXIT_WAITING,
    "cancelled": EXIT_CANCELLED,
    "partial": EXIT_PARTIAL,
}
# From best to worst, for the exit code of several runs.
_SEVERITY: Final = (EXIT_OK, EXIT_WAITING, EXIT_PARTIAL, EXIT_CANCELLED, EXIT_FAILED, EXIT_USAGE)
# Errors that say "you asked for something that cannot be": everything else was refused (1).
_USAGE_CODES: Final = frozenset(
    [
        "BACKUP_DAMAGED",
        "EXTRA_MISSING",
        "FILE_EXISTS",
        "INPUT_INVALID",
        "NOT_A_BACKUP",
        "NOT_AN_ARCHIVE",
        "NO_FOLDER",
        "LIMITS_INVALID",
        "LIMIT_NOT_FOUND",
        "NO_SUCH_RECORD",
        "ORIGINAL_AT_WORK",
        "PRICES_INVALID",
        "RETENTION_INVALID",
        "RETENTION_NOT_FOUND",
        "RUN_EXISTS",
        "RUN_NOT_FOUND",
        "SCHEDULE_EXISTS",
        "SCHEDULE_INVALID",
        "SCHEDULE_NOT_FOUND",
        "SCRIPT_INVALID",
        "STORE_IS_BACKUP",
        "STORE_NOT_EMPTY",
        "STORE_TOO_OLD",
        "STORE_UNFINISHED",
        "STORE_URL_INVALID",
        "TASK_NOT_FOUND",
        "UNKNOWN_PROVIDER",
        "VALUE_REFUSED",
    ]
)

STATUS_STYLES: Final = {
    "completed": "green",
    "done": "green",
    "running": "blue",
    "waiting": "yellow",
    "queued": "yellow",
    "open": "yellow",
    "claimed": "cyan",
    "stalled": "dark_orange",
    "failed": "red",
    "expired": "red",
    "cancelled": "magenta",
    "partial": "dark_orange",
    "available": "green",
    "unavailable": "red",
}


class Usage(TreadleError):
    """The command was not used as it can be used; `treadle COMMAND --help` shows examples."""

    cls = "user"
    code = "USAGE"


def exit_code(document: Mapping[str, Any]) -> int:
    """The exit code for the state a run was left in. What came too late (`stale`) changed nothing, so it reports
    nothing. An idle cell is running and well; any other run that nothing drives on is stuck."""
    if document.get("stale"):
        return EXIT_OK
    if document["status"] == "running" and document.get("dialect") != "reactive":
        return EXIT_WAITING
    return _BY_STATUS.get(document["status"], EXIT_FAILED)


def worst(codes: Iterable[int]) -> int:
    return max(codes, key=lambda code: _SEVERITY.index(code) if code in _SEVERITY else 99, default=EXIT_OK)


def error_code(error: TreadleError) -> int:
    usage = isinstance(error, Usage) or error.cls == "definition" or error.code in _USAGE_CODES
    return EXIT_USAGE if usage else EXIT_FAILED


def unforeseen(error: Exception) -> TreadleError:
    """What nobody has put into words: what the system says of a file or folder, else a bug."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return TreadleError(f"{error.filename!s:.200}: {error.strerror}", code="FILE_ERROR", cls="user")
    return TreadleError(
        f"{type(error).__name__}: {error}. This is a bug in Treadle; TREADLE_DEBUG=1 shows where."
    )


class Output:
    """One command's way to the user."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        # Several runs (or an open-ended list of events): one compact document per line.
        self.lines = False
        self._people: Console | None = None

    @property
    def people(self) -> Console:
        """Rich, on standard error."""
        if self._people is None:
            from rich.console import Console

            self._people = Console(stderr=True, highlight=False, soft_wrap=True)
        return self._people

    @property
    def console(self) -> Console:
        """Rich, on standard output; never used with --json."""
        from rich.console import Console

        # In a pipe a row is a line, however long: `treadle list | grep` must not miss a folded id.
        wide = None if self.is_terminal else 4096
        return Console(file=stdout.stream(), highlight=False, width=wide)

    @property
    def is_terminal(self) -> bool:
        """Whether what was asked for goes to a terminal."""
        return stdout.stream().isatty()

    def document(self, value: object) -> None:
        """The one JSON document of this command, or one of its lines."""
        text = to_json(value) if self.lines else to_json(value, indent=2)
        self.raw(text + "\n")

    def line(self, value: object) -> None:
        """One line of JSON Lines, at once."""
        self.raw(to_json(value) + "\n")

    def raw(self, text: str | bytes) -> None:
        """Exactly this, on standard output."""
        out = stdout.stream()
        if isinstance(text, bytes):
            out.flush()
            out.buffer.write(text)
            out.buffer.flush()
            return
        out.write(text)
        out.flush()

    def value(self, value: object) -> None:
        """A value for people on standard output: JSON, in colour on a terminal."""
        if self.is_terminal:
            self.console.print_json(to_json(value))
        else:
            self.raw(to_json(value, indent=2) + "\n")

    def note(self, text: str) -> None:
        """A remark for people; Rich markup is read, so escape what users wrote."""
        self.people.print(text)

    def done(self, document: object, said: str) -> None:
        """What a command did: its document, or a remark for people."""
        if self.as_json:
            self.document(document)
        else:
            self.note(said)

    def rows(self, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], *, empty: str) -> None:
        """A list: one JSON array, or a table with the given columns (key to heading)."""
        if self.as_json:
            self.document(list(rows))
            return
        if not rows:
            self.note(empty)
            return
        from rich.table import Table

        titled = any(columns.values())
        table = Table(box=None, pad_edge=False, header_style="bold dim", show_header=titled)
        for heading in columns.values():
            table.add_column(heading, overflow="fold")
        for row in rows:
            table.add_row(*(styled(key, row.get(key)) for key in columns))
        self.console.print(table)

    @contextmanager
    def waiting(self, what: str) -> Iterator[Callable[[str], None]]:
        """While something takes long: how far it came, for people at a terminal. Everybody else sees nothing."""
        if self.as_json or not self.people.is_terminal:
            yield lambda told: None
            return
        with self.people.status(what) as status:
            yield lambda told: status.update(f"{what}: {told}")

    def error(self, error: TreadleError) -> int:
        """Says what went wrong and what to do; gives the exit code."""
        if self.as_json:
            self.document({"error": error.to_value()})
        from rich.markup import escape

        problems = error.details.get("problems") or []
        if problems:
            self.problems(problems)
        else:
            place = f"{error.where}: " if error.where and error.where not in error.message else ""
            self.note(
                f"[bold red]error:[/] {escape(place + error.message)} [dim]{escape(f'[{error.code}]')}[/]"
            )
            self._details(error)
        return error_code(error)

    def _details(self, error: TreadleError) -> None:
        """What the message has not said already."""
        from rich.markup import escape

        details = error.details
        for item in details.get("errors") or ():
            place, message = "", str(item)
            if isinstance(item, Mapping):
                place, message = item.get("field") or item.get("path") or "", str(item.get("message"))
            if message not in error.message:
                self.note(f"  {escape(f'{place}: ' if place else '')}{escape(message)}")
        for key in ("blockers", "reasons"):
            for item in details.get(key) or ():
                self.note(f"  - {escape(item if isinstance(item, str) else to_json(item))}")

    def problems(self, problems: Sequence[Mapping[str, Any]]) -> None:
        """Problems of a definition, as compilers print them: place, severity, message, remedy."""
        from rich.markup import escape

        for problem in problems:
            spots = (problem.get("file"), problem.get("line"), problem.get("column"))
            place = (
                ":".join(str(spot) for spot in spots if spot is not None)
                or problem.get("path")
                or "definition"
            )
            colour = "red" if problem["severity"] == "error" else "yellow"
            self.note(
                f"[bold]{escape(place)}:[/] [{colour}]{problem['severity']}:[/] {escape(problem['message'])} "
                f"[dim]{escape('[' + str(problem['code']) + ']')}[/]"
            )
            if problem.get("hint"):
                self.note(f"    [cyan]{escape(problem['hint'])}[/]")


def styled(key: str, value: object) -> str:
    """One cell of a table."""
    from rich.markup import escape

    if value is None:
        return ""
    if key in ("status",):
        return f"[{STATUS_STYLES.get(str(value), 'default')}]{escape(str(value))}[/]"
    if isinstance(value, list | tuple):
        return escape(", ".join(map(str, value)))
    if isinstance(value, dict):
        return escape(to_json(value))
    if isinstance(value, str) and (key == "at" or key.endswith(("_at", "due", "last_active"))):
        from .moments import moment

        return escape(moment(value))
    return escape(str(value))


def elapsed(seconds: float) -> str:
    """`340 ms`, `2.1 s`, `3m 05s`, `2h 10m`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    return f"{minutes // 60}h {minutes % 60:02d}m"
