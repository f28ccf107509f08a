"""The other side of the inline Python pool: runs one task after another in a process of its own.

A stand-alone script (standard library only), started with any interpreter. A request comes in on
stdin: the call's id of 16 bytes, a length of 4, JSON. What goes out on what was stdout begins the same
way, so that nothing else on that pipe can be taken for the answer to a call. Bytes travel as base64
under a key made of the id. What the code prints goes out as frames too; what C code or child processes
print goes to stderr, whose tail the parent keeps to explain a crash.

It protects the engine from the code, not the code from itself: modules stay loaded (that is what
makes it warm), all else is put back after each call, see `python_state`. A process that the code
forks has no part in this: it loses both pipes when it is made, and ends with the code.
"""

from __future__ import annotations

import ast
import asyncio
import base64
import contextlib
import contextvars
import importlib
import importlib.metadata
import inspect
import io
import json
import linecache
import os
import runpy
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

_HERE = os.path.dirname(os.path.abspath(__file__))
_PORTABLE = os.path.join(_HERE, "portable.py")
portable: Callable[[Any], Any] = runpy.run_path(_PORTABLE)["portable"]
_RAISED = runpy.run_path(os.path.join(os.path.dirname(_HERE), "work", "raised.py"))
_STATE = runpy.run_path(os.path.join(_HERE, "python_state.py"))

OUTPUT_BYTES_MAX = 1024 * 1024
OUTPUT_CHUNK = 8192
OUTPUT_INTERVAL_S = 0.1
_WRAPPER = "__treadle_body__"


class Channel:
    """Frames out, each under the id of its call. Several threads of the code may print at once, hence
    the lock. Only this very process may use it, not one that was forked from it."""

    def __init__(self, requests: BinaryIO, stream: BinaryIO) -> None:
        self._requests = requests
        self._stream = stream
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self.call = b""
        os.register_at_fork(after_in_child=self._detach)

    @property
    def tag(self) -> str:
        return self.call.hex()

    @property
    def is_ours(self) -> bool:
        return os.getpid() == self._owner

    def receive(self) -> dict[str, Any] | None:
        """The next request; None when there will be none."""
        head = self._requests.read(20)
        if len(head) < 20:
            return None
        self.call, size = head[:16], struct.unpack(">I", head[16:])[0]
        tag = self.tag

        def revive(pairs: dict[str, Any]) -> Any:
            if tag in pairs:
                return base64.b64decode(pairs[tag])
            if "status_code" in pairs and "data" in pairs:
                # The answer to a request has its body under both names, for code as for templates.
                pairs.setdefault("body", pairs["data"])
            return pairs

        request: dict[str, Any] = json.loads(self._requests.read(size))
        for key in ("args", "context"):
            request[key] = json.loads(request[key], object_hook=revive)
        return request

    def encode(self, frame: dict[str, Any]) -> bytes:
        tag = self.tag
        return json.dumps(frame, default=lambda raw: {tag: base64.b64encode(raw).decode()}).encode()

    def send(self, data: bytes) -> None:
        with self._lock:
            self._stream.write(self.call + struct.pack(">I", len(data)) + data)
            self._stream.flush()

    def _detach(self) -> None:
        """In a process that the code forked: neither requests nor answers are its business."""
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, self._requests.fileno(), inheritable=False)
        os.dup2(nothing, self._stream.fileno(), inheritable=False)
        os.close(nothing)
        self._lock = threading.Lock()


class ChildOutput(io.TextIOBase):
    """`sys.stdout` and `sys.stderr` of the code: batched into frames, bounded in size."""

    def __init__(self, channel: Channel, stream: str) -> None:
        self._channel = channel
        self._stream = stream
        self._parts: list[str] = []
        self._waiting = 0
        self._left = OUTPUT_BYTES_MAX
        self._sent_at = 0.0

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        kept = text[: self._left]
        self._left -= len(kept)
        if kept:
            self._parts.append(kept)
            self._waiting += len(kept)
            if self._left == 0:
                self._parts.append("\n[the rest of the output was dropped]\n")
            due = time.monotonic() - self._sent_at > OUTPUT_INTERVAL_S
            if self._waiting >= OUTPUT_CHUNK or (due and "\n" in kept):
                self.flush()
        return len(text)

    def flush(self) -> None:
        if self._parts:
            text = "".join(self._parts).encode("utf-8", "replace").decode()
            self._parts, self._waiting, self._sent_at = [], 0, time.monotonic()
            self._channel.send(self._channel.encode({"out": text, "stream": self._stream}))


def execute(request: dict[str, Any]) -> Any:
    """Runs the code of one request and gives its result: of a top-level `return`, else the variable
    `result`, else of calling `main`."""
    code, name, args = str(request["code"]), str(request["name"]), dict(request["args"])
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    context = {**request["context"], **args}
    # An argument of one of these names is that argument: what the author wrote wins.
    given = {"args": args, "input_data": args, "context": context, **args}
    names = {"__name__": "__treadle__", "__file__": name, **import_libraries(request["libs"]), **given}
    tree = ast.parse(code, name)
    if returns_at_top(tree):
        wrap(tree, [key for key in given if key.isidentifier()])
        exec(compile(tree, name, "exec"), names)  # noqa: S102 - running the user's code is the task
        return finish(names[_WRAPPER](**{key: given[key] for key in given if key.isidentifier()}))
    before = names.get("result")
    exec(compile(tree, name, "exec"), names)  # noqa: S102 - running the user's code is the task
    result = names.get("result")
    if result is before and callable(main := names.get("main")) and main is not given.get("main"):
        return finish(main(**main_arguments(main, args, given)))
    return finish(result)


def finish(value: Any) -> Any:
    """The plain value; a coroutine is run first."""

    async def wait() -> Any:
        return await value

    return portable(asyncio.run(wait()) if inspect.isawaitable(value) else value)


def returns_at_top(tree: ast.Module) -> bool:
    """Whether a `return` stands outside any function, which plain Python does not allow."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Return):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))
    return False


def wrap(tree: ast.Module, parameters: list[str]) -> None:
    """Puts the body into a function that takes the arguments, so that they can be assigned too."""
    empty = ast.parse(f"def {_WRAPPER}({', '.join(parameters)}): return").body[0]
    assert isinstance(empty, ast.FunctionDef)
    empty.body = tree.body
    tree.body = [empty]
    ast.fix_missing_locations(tree)


def main_arguments(main: Callable[..., Any], args: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The arguments that `main` asks for by name. A lone parameter that no argument is named after
    gets all of them as one mapping."""
    parameters = inspect.signature(main).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return args
    chosen = {key: given[key] for key in parameters if key in given}
    missing = [key for key, p in parameters.items() if key not in chosen and p.default is p.empty]
    if len(parameters) == 1 and missing:
        return {missing[0]: args}
    if missing:
        raise TypeError(
            f"main() wants {', '.join(missing)}; the task's args have {', '.join(args) or 'nothing'}"
        )
    return chosen


def import_libraries(libs: dict[str, Any]) -> dict[str, Any]:
    """`{pd: pandas, dt: {from: datetime, import: datetime}}` as names of the code."""
    found = {}
    for alias, what in libs.items():
        if isinstance(what, dict) and what.get("from"):
            found[alias] = imported_from(str(what["from"]), str(what.get("import") or alias))
        else:
            name = str(what["import"] if isinstance(what, dict) else what)
            found[alias] = importlib.import_module(name)
            # `import os.path` binds `os`: what is written without an alias is named as Python does.
            if alias == name and "." in name:
                found[name.partition(".")[0]] = importlib.import_module(name.partition(".")[0])
    return found


def imported_from(package: str, name: str) -> Any:
    """`from package import name`, where the name may be a module of the package that nobody imported yet."""
    module = importlib.import_module(package)
    try:
        return getattr(module, name)
    except AttributeError:
        if not hasattr(module, "__path__"):
            raise
        return importlib.import_module(f"{package}.{name}")


def check_packages(packages: list[str]) -> None:
    """Packages are never installed by a task; a missing one is named together with the remedy."""
    missing = []
    for package in packages:
        try:
            importlib.metadata.version(
                package.split("[")[0].split("=")[0].split(">")[0].split("<")[0].strip()
            )
        except importlib.metadata.PackageNotFoundError:
            missing.append(package)
    if missing:
        command = f"{sys.executable} -m pip install {' '.join(missing)}"
        raise ModuleNotFoundError(f"packages are missing: {', '.join(missing)}. Install them with: {command}")


def surround(request: dict[str, Any]) -> None:
    """Environment, working folder, import path and memory limit of one call; `State` takes them back."""
    limit_memory(request["memory_bytes"])
    os.environ.update(request["env"])
    if request["cwd"]:
        os.chdir(request["cwd"])
    sys.path[:0] = request["sys_path"]
    # Last, so that a file beside the definition never hides a library.
    sys.path.extend([request["cwd"]] if request["cwd"] else [])
    check_packages(request["packages"])


def limit_memory(size: int) -> None:
    """The soft limit of the address space. Not every system has it; those do without."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(
            resource.RLIMIT_AS, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard)
        )


def answer(request: dict[str, Any], channel: Channel, state: Any) -> None:
    """Runs one request, sends its output and then exactly one result or error."""
    out, err = ChildOutput(channel, "stdout"), ChildOutput(channel, "stderr")
    reply: dict[str, Any]
    state.begin()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            surround(request)
            # In a context of its own: what the code sets in context variables ends with it.
            reply = {"result": contextvars.copy_context().run(execute, request)}
        except SystemExit as error:
            reply = {"result": None} if not error.code else failure(error, request)
        except BaseException as error:
            reply = failure(error, request)
    if not channel.is_ours:
        os._exit(0 if "result" in reply else 1)
    reply["retire"] = not state.clean()
    out.flush()
    err.flush()
    channel.send(encoded(reply, channel, request["result_bytes_max"]))


def encoded(reply: dict[str, Any], channel: Channel, bytes_max: int) -> bytes:
    """The reply, or why it cannot be one: it is larger than what is taken."""
    data = channel.encode(reply)
    if len(data) <= bytes_max:
        return data
    wrong = {"error": "RESULT_TOO_LARGE", "message": str(len(data)), "traceback": "", "retire": True}
    return channel.encode(wrong)


def failure(error: BaseException, request: dict[str, Any]) -> dict[str, Any]:
    text = _RAISED["words"](error) or (
        "the memory limit was reached" if isinstance(error, MemoryError) else ""
    )
    told = _RAISED["trace"](error, hidden=(__file__, _PORTABLE))
    return {"error": type(error).__name__, "message": text, "traceback": told}


def die_with_parent() -> None:
    """On Linux the kernel ends this process with the engine, even one that was killed."""
    if sys.platform == "linux":
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            pr_set_pdeathsig = 1
            ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def main() -> None:
    channel = Channel(os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb"))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    die_with_parent()
    _STATE["adopt_orphans"]()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    state = _STATE["State"]()
    try:
        while (request := channel.receive()) is not None:
            answer(request, channel, state)
    except BaseException as error:  # the code has broken what answers are made with
        os.write(2, _RAISED["trace"](error).encode())
        os._exit(1)
    # At once: what earlier calls left to be done at the end is nobody's any more, and may take for ever.
    os._exit(0)


if __name__ == "__main__":
    main()
