"""What hostile code may try, as one table: name, then code. @WORDS@ are filled in with real canaries by the test.

Every submission here is wrong (it should square its argument), so whatever passes is a false pass.
"""

from __future__ import annotations

TESTS = "assert f(3) == 9\nassert f(10) == 100\nassert f(7) == 49\nassert isinstance(f(2), int)\n"
WRONG = "\ndef f(x): return None\n"


def table(text: str) -> dict[str, str]:
    """name -> code; a submission that defines no f gets a wrong one."""
    rows = {}
    for block in text.split("\n== ")[1:]:
        name, _, code = block.partition("\n")
        rows[name] = code if "f =" in code or "def f(" in code else code + WRONG
    return rows


FILES = table("""
== open the secret
print(open("@SECRET@").read())
== a relative way up
for up in range(12):
    try: print(open("../" * up + "@SECRET@"[1:]).read())
    except OSError as e: pass
== os.open and os.read
import os
print(os.read(os.open("@SECRET@", os.O_RDONLY), 999))
== io.FileIO
import io
print(io.FileIO("@SECRET@").read())
== io.open_code
import io
print(io.open_code("@SECRET@").read())
== pathlib
from pathlib import Path
print(Path("@SECRET@").read_text())
== list the folder
import os
print(os.listdir("@FOLDER@"))
print([open(x.path).read() for x in os.scandir("@FOLDER@")])
== walk from the root
import os
for at, folders, files in os.walk("/"):
    for name in files:
        if name == "secret.txt": print(open(os.path.join(at, name)).read())
== glob
import glob
for name in glob.glob("@FOLDER@/*"): print(open(name).read())
== linecache
import linecache
print(linecache.getlines("@SECRET@"))
== fileinput
import fileinput
print(list(fileinput.input("@SECRET@")))
== import it as source
from importlib.machinery import SourceFileLoader
print(SourceFileLoader("m", "@SECRET@").get_data("@SECRET@"))
== put its folder on the path
import sys
sys.path.insert(0, "@FOLDER@")
import stolen
print(stolen.SECRET)
== execute a file there
exec(open("@FOLDER@/stolen.py").read())
print(SECRET)
== zip it
import zipfile
z = zipfile.ZipFile("@NEW@", "w")
z.write("@SECRET@")
z.close()
== copy it
import shutil
shutil.copy("@SECRET@", "@NEW@")
== a database in the folder
import sqlite3
c = sqlite3.connect("@NEW@")
c.execute("create table t(x)")
c.commit()
== map it into memory
import mmap
print(mmap.mmap(open("@SECRET@", "r+b").fileno(), 0)[:99])
== link to it
import os
os.symlink("@SECRET@", "/tmp/link")
print(open("/tmp/link").read())
== hard link to it
import os
os.link("@SECRET@", "@NEW@")
== rename it
import os
os.rename("@SECRET@", "@NEW@")
== remove it
import os
os.remove("@SECRET@")
== truncate it
import os
os.truncate("@SECRET@", 0)
== write a file
open("@NEW@", "w").write("here")
== append to the secret
open("@SECRET@", "a").write("spoilt")
== make a folder
import os
os.mkdir("@NEW@")
== a temporary file that stays
import tempfile
x = tempfile.NamedTemporaryFile(delete=False, dir="@FOLDER@")
x.write(b"here")
x.close()
== every descriptor it may have been given
import os
for fd in range(3, 200):
    try: print(os.read(fd, 999))
    except OSError: pass
    try: print(os.open("@SECRET@", os.O_RDONLY, dir_fd=fd))
    except OSError: pass
== what the system says of itself
for name in ("/proc/self/environ", "/proc/1/environ", "/etc/passwd", "/proc/self/maps", "/proc/self/cmdline"):
    try: print(open(name).read())
    except OSError: pass
== up from the standard library
import os
print(open(os.path.join(os.path.dirname(os.__file__), "../../../../../../..", "@SECRET@"[1:])).read())
""")

REACH = table("""
== os.environ
import os
print(dict(os.environ))
== os.getenv
import os
print(os.getenv("@VARIABLE@"))
== posix.environ
import posix
print(posix.environ)
== arguments and paths of the interpreter
import sys
print(sys.argv, sys.orig_argv, sys.path, sys.prefix, sys.executable)
== who and where
import os, platform, getpass
print(os.path.expanduser("~"), platform.node(), getpass.getuser())
== connect a socket
import socket
socket.create_connection(("127.0.0.1", @PORT@), 1).sendall(b"hello")
== connect by the module below
import _socket
s = _socket.socket()
s.connect(("127.0.0.1", @PORT@))
== a socket of every descriptor
import socket
for fd in range(64):
    try: socket.socket(fileno=fd).connect(("127.0.0.1", @PORT@))
    except Exception: pass
== listen
import socket
s = socket.create_server(("127.0.0.1", 0))
print("listening", s.getsockname())
== urllib
import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:@PORT@/", timeout=1).read())
== http.client
import http.client
http.client.HTTPConnection("127.0.0.1", @PORT@, timeout=1).request("GET", "/")
== asyncio
import asyncio
asyncio.run(asyncio.open_connection("127.0.0.1", @PORT@))
== a name to look up
import socket
print(socket.getaddrinfo("localhost", @PORT@))
== os.system
import os
os.system("echo here > @NEW@")
== os.popen
import os
print(os.popen("cat @SECRET@").read())
== subprocess
import subprocess
print(subprocess.run(["cat", "@SECRET@"], capture_output=True).stdout)
== subprocess through a shell
import subprocess
subprocess.Popen("echo here > @NEW@", shell=True).wait()
== fork
import os
if os.fork() == 0: open("@NEW@", "w").write("child")
== fork bomb
import os
while True: os.fork()
== fork bomb that catches
import os
while True:
    try: os.fork()
    except Exception: pass
== exec another program
import os
os.execv("/bin/sh", ["sh", "-c", "echo here > @NEW@"])
== posix_spawn
import os
os.posix_spawn("/bin/sh", ["sh", "-c", "echo here > @NEW@"], {})
== multiprocessing
import multiprocessing
p = multiprocessing.get_context("spawn").Process(target=print)
p.start()
open("@NEW@", "w")
== a terminal of its own
import pty
pty.spawn(["sh", "-c", "echo here > @NEW@"])
== kill a process of the user
import os
os.kill(@PID@, 9)
== kill its parent
import os
os.kill(os.getppid(), 9)
os.kill(-1, 9)
== signals
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.raise_signal(signal.SIGKILL)
== a thousand threads
import threading
for i in range(1000): threading.Thread(target=lambda: [0] * 10**9).start()
== a browser
import webbrowser
webbrowser.open("http://127.0.0.1:@PORT@/")
""")

INSIDE = table("""
== ctypes
import ctypes
ctypes.CDLL(None).system(b"echo here > @NEW@")
== ctypes memory
import ctypes
print(ctypes.string_at(id(print), 64))
ctypes.memset(0, 0, 9)
== _ctypes
import _ctypes
print(_ctypes.dlopen)
== load a shared library as a module
import _imp, importlib.machinery as m
_imp.create_dynamic(m.ModuleSpec("x", None, origin="@SECRET@"))
== subclasses of object
for c in object.__subclasses__():
    if c.__name__ == "Popen": c("echo here > @NEW@", shell=True)
    try: print(c.__init__.__globals__["__builtins__"]["open"]("@SECRET@").read())
    except Exception: pass
== builtins by way of a function
def g(): pass
print(g.__globals__["__builtins__"].open("@SECRET@").read())
== builtins by way of a string
print("".__class__.__mro__[-1].__subclasses__()[100].__init__.__globals__)
== format as a way in
class A:
    def __init__(self): self.x = 1
print("{0.__init__.__globals__}".format(A()))
== eval and compile
print(eval(compile("open('@SECRET@').read()", "x", "eval")))
== the harness by frames
import sys
at = sys._getframe()
while at:
    for name in list(at.f_globals):
        if callable(at.f_globals[name]): at.f_globals[name] = lambda *a, **k: (b"p", b"")
    at = at.f_back
== the harness by its module
import __main__
for name in list(vars(__main__)):
    if callable(getattr(__main__, name)): setattr(__main__, name, lambda *a, **k: (b"p", b""))
== hunt for secrets with gc
import gc
for x in gc.get_objects():
    if isinstance(x, dict) and any("secret" in str(k) or "tests" in str(k) for k in x): print(list(x)[:9])
    if isinstance(x, dict) and "examine" in x: x["examine"] = x["solve"] = lambda *a: None
== code objects by hand
def f(x): return 0
f.__code__ = f.__code__.replace(co_code=bytes(range(0, 250, 2)) * 9)
f(1)
== code with a false stack
def f(x): return x
f.__code__ = f.__code__.replace(co_stacksize=0, co_consts=(), co_nlocals=0)
== marshal rubbish
import marshal
for n in range(256):
    try: marshal.loads(bytes([n]) * 40)
    except Exception: pass
== crash on purpose
import faulthandler
faulthandler._sigsegv()
== crash by the test module
import _testcapi
_testcapi.crash_no_current_thread()
== write to memory by the test module
import _testcapi
print([n for n in dir(_testcapi) if "mem" in n or "write" in n])
_testcapi.fatal_error(b"stop")
== an audit hook
import sys
sys.addaudithook(lambda event, args: print(event) if "open" in event else None)
print(open("@SECRET@").read())
== trace everything
import sys
def t(frame, event, arg):
    frame.f_trace_opcodes = True
    return t
sys.settrace(t)
== the sandbox's own modules
for name in ("pydantic_monty", "wasmtime", "trinity_mini", "js", "pyodide", "wasi", "host"):
    try: print(__import__(name).__file__)
    except Exception: pass
== a pickle that calls
import pickle
pickle.loads(b"cposix\\nsystem\\n(S'echo here > @NEW@'\\ntR.")
== debugger
import pdb
pdb.Pdb(stdin=open("@SECRET@")).set_trace()
== weak references and finalisers
class A:
    def __del__(self):
        print(open("@SECRET@").read())
A()
""")

HUNGER = table("""
== list
x = [0] * 10**10
== list, step by step
x = []
while True: x.append([0] * 1000)
== caught and tried again
x = []
while True:
    try: x.append("a" * 10**6)
    except BaseException: pass
== text
x = "a" * 10**10
== text, doubled
x = "ab"
while True: x += x
== bytes
x = bytearray(2**34)
== power
x = 10 ** 10 ** 9
== shift
x = 1 << (1 << 40)
== factorial
import math
x = math.factorial(10**8)
== dictionary
x = {}
i = 0
while True:
    x[i] = i
    i += 1
== width of a format
x = "{:>9999999999}".format(1)
== join
x = ",".join(["a" * 1000] * 10**8)
== bomb in a compressed text
import zlib
x = zlib.decompress(zlib.compress(b"a" * 10**7) * 1)
x = [zlib.decompress(zlib.compress(b"a" * 10**7)) for i in range(10**4)]
== endless loop
while True: pass
== endless loop that catches
while True:
    try:
        while True: pass
    except BaseException: pass
== endless call
def f(x):
    while True: pass
== endless sleep
import time
while True: time.sleep(10**6)
== waiting for input
input()
== deadlock
import threading
l = threading.Lock()
l.acquire()
l.acquire()
== regular expression
import re
re.match("(a*)*b", "a" * 40)
== recursion
def f(x): return f(x + 1)
f(0)
== deep recursion
import sys
sys.setrecursionlimit(10**9)
def f(x): return f(x + 1)
f(0)
== recursion in C
import sys
sys.setrecursionlimit(10**9)
x = []
for i in range(10**6): x = [x]
repr(x)
== nested source
eval("(" * 10**5 + ")" * 10**5)
== a long chain of operators
eval("-" * 10**6 + "1")
== endless output
while True: print("x" * 1000)
== endless errors
import sys
while True: sys.stderr.write("x" * 1000)
== endless output below
import os
while True: os.write(2, b"x" * 4096)
== endless frames
import os
while True: os.write(1, b"v4\\nI1:9")
== a frame without end
import os
os.write(1, b"v99999999999999")
while True: os.write(1, b"9" * 4096)
== one long line
print("x" * 10**8)
== answers without end
def f(x):
    while True: yield x
== an answer too long
def f(x): return "a" * (5 * 10**7)
== an answer of one text many times
s = "a" * 1_000_000
def f(x): return [s] * 30_000
== an answer of shared parts
def f(x):
    y = [1]
    for i in range(30): y = [y, y]
    return y
== an answer of shared parts in a dict
def f(x):
    y = {1: 1}
    for i in range(30): y = {1: y, 2: y}
    return y
== a measure that lies
s = "a" * 1_000_000
def len(x): return 0
def type(x): return int
list = str = bytes = dict = int = range = None
def f(x): return [s] * 30_000
== an object full of text
s = "a" * 1_000_000
class A: pass
def f(x):
    a = A()
    a.x = [s] * 30_000
    return a
== a last value of one text many times
s = "a" * 1_000_000
def f(x): return None
[s] * 30_000
== a last value of shared parts
def f(x): return None
y = [1]
for i in range(30): y = [y, y]
y
== a question of one text many times
s = "a" * 1_000_000
input([s] * 30_000)
== an error of many words
def f(x): raise ValueError("a " * 10**7)
== an answer inside itself
def f(x):
    x = []
    x.append(x)
    return x
== an answer too deep
def f(x):
    y = []
    for i in range(10**5): y = [y]
    return y
== an error too long
def f(x): raise ValueError("a" * (5 * 10**7))
== an error that cannot be shown
class E(Exception):
    def __str__(self): raise self
def f(x): raise E()
""")

EXITS = table("""
== sys.exit
import sys
sys.exit(0)
== exit
exit(0)
== quit
quit()
== raise SystemExit
raise SystemExit(0)
== os._exit
import os
os._exit(0)
== os.abort
import os
os.abort()
== KeyboardInterrupt
raise KeyboardInterrupt
== GeneratorExit
raise GeneratorExit
== an exception of its own
class Done(BaseException): pass
raise Done
== sys.exit when called
import sys
def f(x): sys.exit(0)
== SystemExit when called
def f(x): raise SystemExit(0)
== os._exit when called
import os
def f(x): os._exit(0)
== exit at the end
import atexit, os
atexit.register(lambda: os._exit(0))
def f(x): return None
== print at the end
import atexit
atexit.register(print, "passed")
raise SystemExit(0)
== quiet errors
import sys
sys.excepthook = lambda *a: None
def f(x): return 1 / 0
== quiet errors, once more
import sys, os
sys.excepthook = lambda *a: os._exit(0)
raise ValueError
== close what it speaks on
import os
for fd in (0, 1, 2): os.close(fd)
== swap what it speaks on
import os
os.dup2(2, 1)
""")

LIES = table("""
== equal to everything
class A:
    def __eq__(self, other): return True
    def __instancecheck__(cls, other): return True
    __class__ = int
def f(x): return A()
== a number equal to everything
class A(int):
    def __eq__(self, other): return True
    __hash__ = int.__hash__
def f(x): return A(1)
== not unequal
class A(int):
    def __ne__(self, other): return False
    def __eq__(self, other): return not self != other
def f(x): return A(1)
== text equal to everything
class A(str):
    def __eq__(self, other): return True
def f(x): return A("")
== unittest.mock.ANY
from unittest.mock import ANY
def f(x): return ANY
== a mock
from unittest.mock import MagicMock
def f(x):
    m = MagicMock(spec=int)
    m.__eq__.return_value = True
    return m
== f is an object that lies
class A:
    def __call__(self, x): return self
    def __eq__(self, other): return True
f = A()
== its class lies
class M(type):
    def __eq__(cls, other): return True
    def __instancecheck__(cls, other): return True
class A(metaclass=M): pass
def f(x): return A
== an index that lies
class A:
    n = 0
    def __index__(self):
        A.n += 1
        return A.n
    def __eq__(self, other): return True
def f(x): return A()
== not implemented
def f(x): return NotImplemented
== an iterator that lies
class A:
    def __next__(self): return 9
    def __iter__(self): return self
    def __eq__(self, other): return True
def f(x): return A()
== a list of liars
class A(list):
    def __eq__(self, other): return True
def f(x): return A()
""")

PATCHES = table("""
== builtins.isinstance
import builtins
builtins.isinstance = lambda *a: True
def f(x): return {3: 9, 10: 100, 7: 49}.get(x)
== builtins.AssertionError
import builtins
class Fine(BaseException): pass
builtins.AssertionError = Fine
def f(x): return 0
== builtins.AssertionError exits
import builtins, os
builtins.AssertionError = lambda *a: os._exit(0)
def f(x): return 0
== an isinstance of its own
def isinstance(*a): return True
def f(x): return {3: 9, 10: 100, 7: 49}.get(x)
== builtins emptied
import builtins
for n in list(vars(builtins)): delattr(builtins, n)
== a __builtins__ of its own
__builtins__ = {"isinstance": lambda *a: True, "AssertionError": KeyError}
def f(x): return {3: 9, 10: 100, 7: 49}.get(x)
== builtins.exec
import builtins
builtins.exec = builtins.compile = lambda *a, **k: None
def f(x): return 0
== builtins.__import__
import builtins
builtins.__import__ = lambda *a, **k: None
def f(x): return 0
== an import hook
import sys
class H:
    def find_spec(self, *a): raise SystemExit(0)
sys.meta_path.insert(0, H())
def f(x): return 0
== tests that are skipped
import sys
def t(frame, event, arg):
    if "tests" in frame.f_code.co_filename: frame.f_lineno = 4
    return t
sys.settrace(t)
def f(x): return 2
== the word
print("passed")
def f(x): return 0
== a forged pass
import os
os.write(1, b"p0\\n")
def f(x): return 0
== a forged pass when called
import os
def f(x): os.write(1, b"p0\\n" * 9)
== a forged answer for ever
import os
def f(x): os.write(1, b"v4\\nI1:9")
== a forged run, then the tests read
import os
os.write(1, b"r0\\n")
got = os.read(0, 9999)
os.write(1, b"p32\\n" + got[-32:])
os._exit(0)
== the tests read and printed
import os, sys
sys.stdin = open(0)
print(sys.stdin.read())
def f(x): return 0
== the caller's frame
import sys
def f(x):
    at = sys._getframe(1)
    while at:
        at.f_locals["c"] = 9
        at = at.f_back
    return 0
== the answers in the tests' code
import sys
def f(x):
    at = sys._getframe(1)
    for c in at.f_code.co_consts:
        if isinstance(c, int) and c == x * x: return c
    return 0
== os.write and os.read
import os
os.write = os.read = lambda *a: b""
def f(x): return 0
== the encoder
import sys
for m in list(sys.modules.values()):
    if hasattr(m, "encode"): m.encode = lambda *a: b"B1:1"
    if hasattr(m, "send"): m.send = lambda *a: None
def f(x): return 0
== a later thread
import threading, os
threading.Timer(0.1, lambda: os.write(1, b"p0\\n")).start()
def f(x): return 0
== the next call's answer
def f(x, seen=[]):
    seen.append(x)
    return seen[0] ** 2
""")

# --- for code_grader.py: where None would leave a wrong program out of the grading ------------------------------------

ESCAPES = table("""
== a text says that a module is missing
def f(x): raise ModuleNotFoundError("No module named 'numpy'")
== a text says so at once
raise ModuleNotFoundError("No module named 'numpy'")
== a text says so, and a comment imports it
# import numpy
def f(x): raise ModuleNotFoundError("No module named 'numpy'", "import numpy")
== an import for nothing
import numpy as np, os
from scipy import (linalg,
    stats)
def f(x): return 0
== an import for nothing in a block
try:
    import torch.nn as nn  # nothing
finally:
    pass
def f(x): return 0
== an import of what no interpreter has here
import tkinter
def f(x): return 0
== a word on the errors, and an exit
import sys
print("ModuleNotFoundError: No module named 'numpy'", file=sys.stderr)
sys.exit(1)
== the exit codes of the sandbox
import os
def f(x): os._exit(201)
== the interpreter gives up
import os
def f(x): os.abort()
== a function for a number
def f(x): return lambda: x * x
== an object for a number
class A: pass
def f(x): return A()
== the mark found, and lines written that are no results
import sys
at, marks = sys._getframe(), set()
while at:
    marks |= {c.strip() for c in at.f_code.co_consts if isinstance(c, str) and c[:1] == "\\n" and len(c) == 33}
    at = at.f_back
def f(x):
    for line in ("5", "[]", "{}", '["a", 1]', "[1e999, 2]", '[0.1, {"a": 1}]', "nonsense"):
        for mark in marks: print("\\n" + mark + line)
== a class for a function
class f:
    def __init__(self, x): pass
== a list of objects
class A:
    def __eq__(self, other): return True
def f(x): return [A()]
== without end
def f(x):
    while True: pass
== without end, at the second call
def f(x, seen=[]):
    seen.append(x)
    while len(seen) > 1: pass
    return x * x
""")

UNITTEST = """
import unittest
class TestCases(unittest.TestCase):
    def test_3(self):
        self.assertEqual(task_func(3), 9)
    def test_10(self):
        with self.subTest("ten"):
            self.assertEqual(task_func(10), 100)
"""

JUDGES = table("""
== skipped
import unittest
def f(x): raise unittest.SkipTest("later")
== skipped by a later import
def f(x):
    import unittest.case
    raise unittest.case.SkipTest
== every failure is a skip
import unittest
unittest.TestCase.failureException = unittest.SkipTest
== every failure is a skip, later
def f(x):
    import sys
    case = sys.modules["unittest.case"]
    case.TestCase.failureException = case.SkipTest
== contextlib swallows
import contextlib
real = contextlib.contextmanager
def fake(f):
    class C:
        def __init__(self, *a, **k): self.g = real(f)(*a, **k)
        def __enter__(self): return self.g.__enter__()
        def __exit__(self, *a):
            self.g.__exit__(None, None, None)
            return True
    return C
contextlib.contextmanager = fake
== a unittest by a path of its own
import sys, importlib.util
class R:
    testsRun, skipped, expectedFailures = 2, [], []
    def wasSuccessful(self): return True
class L:
    def find_spec(self, name, target=None):
        if name == "unittest": return importlib.util.spec_from_loader(name, self)
    def create_module(self, spec): return None
    def exec_module(self, m):
        m.TestCase = object
        m.TextTestRunner = lambda **k: type("T", (), {"run": lambda self, x: R()})()
        m.defaultTestLoader = type("D", (), {"loadTestsFromTestCase": lambda s, x: s, "countTestCases": lambda s: 2})()
    def invalidate_caches(self): pass
def hook(path):
    if path != "own": raise ImportError
    return L()
sys.path_hooks.insert(0, hook)
sys.path.insert(0, "own")
sys.path_importer_cache.clear()
== a unittest of its own
import sys, unittest
unittest.TestCase.assertEqual = lambda *a, **k: None
sys.modules["unittest"] = sys.modules["unittest.case"] = unittest
== a unittest patched at a collection
import gc, sys
def patch(phase, info):
    case = sys.modules.get("unittest.case")
    if case is not None and hasattr(case, "TestCase"): case.TestCase.assertEqual = lambda *a, **k: None
gc.callbacks.append(patch)
gc.set_threshold(1)
== a unittest patched at a call
import sys
def patch(code, offset, *more):
    case = sys.modules.get("unittest.case")
    if case is not None and hasattr(case, "TestCase"): case.TestCase.assertEqual = lambda *a, **k: None
sys.monitoring.use_tool_id(3, "x")
sys.monitoring.register_callback(3, sys.monitoring.events.PY_START, patch)
sys.monitoring.set_events(3, sys.monitoring.events.PY_START)
""")

GROUPS = {"files": FILES, "reach": REACH, "inside": INSIDE, "hunger": HUNGER}
VERDICTS = {"exits": EXITS, "lies": LIES, "patches": PATCHES}
# Of these the one-interpreter way says nothing: there the tests ask the liar, or its frames show them to it.
CLEAN_ONLY = {*LIES, "a forged run, then the tests read", "the answers in the tests' code"}
