"""Runs Python programs in processes of their own. Run as a program, it is the server that forks them.

`import torch` takes a second of each new interpreter. A server has imported torch, or another module that a test names,
and nothing else that a test could ask for. A test of the start of the interpreter itself uses subprocess.
"""

from __future__ import annotations

import atexit
import faulthandler
import functools
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any


def python(
    *arguments: str,
    path: Sequence[Path] = (),
    cwd: Path | None = None,
    input: str = "",
    timeout: int = 120,
    code: int | None = 0,
    new: bool = False,
    imported: str = "torch",
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Runs `python ARGUMENTS` with environment variables, where `path` precedes the module path of this process.

    The arguments begin with -c, -m or a file. Checks the exit code, unless `code` is None. A forked program that takes
    longer than `timeout` seconds prints its stack and ends. With `new`, or a PYTHONPATH among the variables,
    a new interpreter is started. `imported` names the module that a forked program finds imported.
    """
    joined = os.pathsep.join([*map(str, path), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": joined, **variables}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # to compile the modules of tridal takes 0.1 seconds
    if new or "PYTHONPATH" in variables:
        command: list[str] = [sys.executable, *arguments]
        done = subprocess.run(
            command, cwd=cwd, env=environment, input=input, capture_output=True, text=True, timeout=timeout
        )
    else:
        done = _forked(_channel(imported), arguments, cwd or Path.cwd(), environment, input, timeout)
    assert code is None or done.returncode == code, done.stdout + done.stderr
    return done


def _forked(
    channel: IO[str], arguments: Sequence[str], cwd: Path, environment: dict[str, str], input: str, timeout: int
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory(prefix="process-") as folder:
        files = [Path(folder, name) for name in ("stdin", "stdout", "stderr")]
        for file in files:
            file.write_text(input if file.name == "stdin" else "")
        request = {"arguments": arguments, "cwd": str(cwd), "environment": environment}
        channel.write(json.dumps({**request, "files": list(map(str, files)), "timeout": timeout}) + "\n")
        channel.flush()
        status = int(channel.readline())
        return subprocess.CompletedProcess(arguments, status, files[1].read_text(), files[2].read_text())


@functools.cache
def _channel(imported: str) -> IO[str]:
    """Starts a server that has imported a module. Returns the file that sends it requests and receives exit codes."""
    ours, theirs = socket.socketpair()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, __file__, imported, str(theirs.fileno())]
    server = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    theirs.close()
    channel = ours.makefile("rw")
    ours.close()

    def stop() -> None:
        channel.close()
        server.wait()

    atexit.register(stop)
    return channel


def _serve(channel: IO[str]) -> Any:
    """Forks a process for each request, and answers with its exit code. Returns the request in the new process."""
    for line in iter(channel.readline, ""):
        process = os.fork()
        if process == 0:
            channel.close()
            return json.loads(line)
        channel.write(f"{os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])}\n")
        channel.flush()
    sys.exit()


def _run(request: Any) -> None:
    """Becomes `python ARGUMENTS`."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for number, name in enumerate(request["files"]):
        file = os.open(name, os.O_RDWR)
        os.dup2(file, number)
        os.close(file)
    faulthandler.register(signal.SIGALRM, chain=True)  # a thread that waits would make the end of a fork wait, too
    signal.alarm(request["timeout"])
    kind, *rest = request["arguments"]
    sys.orig_argv = [sys.executable, kind, *rest]
    sys.argv = [kind, *rest[1:]] if kind in ("-c", "-m") else [kind, *rest]
    first = {"-c": "", "-m": request["cwd"]}.get(kind, str(Path(kind).resolve().parent))
    sys.path[:] = [first, *os.environ["PYTHONPATH"].split(os.pathsep), *sys.path[1:]]
    sys.modules["__main__"] = main = ModuleType("__main__")
    if kind == "-c":
        exec(compile(rest[0], "<string>", "exec", dont_inherit=True), main.__dict__)
    elif kind == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    importlib.import_module(sys.argv[1])

    with socket.socket(fileno=int(sys.argv[2])) as _socket:
        _file = _socket.makefile("rw")
    _run(_serve(_file))
